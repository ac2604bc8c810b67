package replay

import (
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/message"
)

// discarding is a discard of so many messages, with the numbers from 1.
func discarding(messages int64, undoFor time.Duration) *Replay {
	r := New(Order{Action: ActionDiscard, UndoFor: undoFor}, Settings{}, noon)
	r.Select(messages, noon)
	return r
}

func restored(t *testing.T, r *Replay, depth int64) *Replay {
	t.Helper()
	text, err := r.Checkpoint(id, 1)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := Restore(text, id)
	if err != nil {
		t.Fatal(err)
	}
	again.Count(depth)
	return again
}

func TestDiscard_IsHeldAsLongAsItCanBeUndone(t *testing.T) {
	r := discarding(3, time.Hour)
	r.Finish(noon.Add(time.Hour-1), false)
	if may, _ := r.Next(noon); may || r.Phase() != Held || !r.UndoUntil().Equal(noon.Add(time.Hour)) {
		t.Fatalf("%s until %v, and releases: %t", r.Phase(), r.UndoUntil(), may)
	}
	r = restored(t, r, 3)
	r.Finish(noon.Add(time.Hour), false)
	if r.Phase() != Discarding {
		t.Fatalf("the time is over: %s", r.Phase())
	}
	if r = restored(t, r, 3); r.Phase() != Discarding {
		t.Fatalf("a later session: %s", r.Phase())
	}
	for seq := int64(1); seq <= 3; seq++ {
		r.Left()
		settle(r, message.OutcomeDiscarded, seq, seq)
	}
	if c := restored(t, r, 0).Counts(); r.Phase() != Completed || c.Discarded != 3 || c.InFlight+c.Staged != 0 {
		t.Errorf("%s, %+v", r.Phase(), c)
	}
}

func TestDiscard_IsFinalWhereSomebodyAsksOrNoTimeWasGiven(t *testing.T) {
	for undoFor, asked := range map[time.Duration]bool{0: false, time.Hour: true} {
		r := discarding(3, undoFor)
		r.Finish(noon, asked)
		if r.Phase() != Discarding {
			t.Errorf("undo for %v, asked %t: %s", undoFor, asked, r.Phase())
		}
	}
}

func TestDiscard_ThatIsCancelledTakesBackWhatIsLeft(t *testing.T) {
	r := discarding(3, 0)
	r.Finish(noon, false)
	r.Left()
	settle(r, message.OutcomeDiscarded, 1, 1)
	r.Cancel()
	r = restored(t, r, 2)
	r.Finish(noon.Add(time.Hour), true)
	if r.Phase() != Cancelling {
		t.Fatalf("it is %s", r.Phase())
	}
	r.Left()
	r.Left()
	settle(r, message.OutcomeRecalled, 2, 3)
	if c := r.Counts(); r.Phase() != Cancelled || c.Discarded != 1 || c.Recalled != 2 {
		t.Errorf("%s, %+v", r.Phase(), c)
	}
}

func TestFinish_DoesNotDeleteWhatIsReplayed(t *testing.T) {
	r := selected(Settings{}, 3)
	r.Finish(noon.Add(time.Hour), true)
	if r.Phase() != Releasing {
		t.Errorf("it is %s", r.Phase())
	}
}

func TestOrder_IsTheSameAtTheSameMoment(t *testing.T) {
	order := Order{Action: ActionReplay, Selection: deadletter.Selection{Before: noon, Causes: []string{"0123abcd"}}}
	r := restored(t, New(order, Settings{MaxInFlight: 1}, noon), 0)
	kept, elsewhere := r.Order(), order
	elsewhere.Selection.Before = noon.In(time.FixedZone("east", 3600))
	if !elsewhere.Is(&kept) || !r.Began().Equal(noon) {
		t.Errorf("%+v is not %+v", kept, elsewhere)
	}
	for name, change := range map[string]func(*Order){
		"another moment": func(o *Order) { o.Selection.Before = noon.Add(1) },
		"another cause":  func(o *Order) { o.Selection.Causes = []string{"0123abce"} },
		"another action": func(o *Order) { o.Action = ActionDiscard },
		"another undo":   func(o *Order) { o.UndoFor = 1 },
	} {
		other := order
		if change(&other); other.Is(&kept) {
			t.Errorf("%s is the same", name)
		}
	}
}

func TestOrder_SaysWhatIsWrongWithIt(t *testing.T) {
	for want, order := range map[string]Order{
		`"Edit" is no action`:           {Action: "Edit"},
		"an undo for -1s":               {Action: ActionDiscard, UndoFor: -time.Second},
		"a replay has no time in which": {Action: ActionReplay, UndoFor: time.Second},
		"--where":                       {Action: ActionReplay, Selection: deadletter.Selection{Where: "nothing =="}},
	} {
		if err := order.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", order, err)
		}
	}
}

func TestStop_ComesWhenTooManyFailAndRetriesCount(t *testing.T) {
	r := selected(Settings{FailingPercent: 20, FailingAfter: 10}, 100)
	release(r, noon)
	r.Count(50)
	settle(r, message.OutcomeHandled, 1, 8)
	settle(r, message.OutcomeRetried, 9, 9)
	if r.Phase() != Releasing {
		t.Fatalf("9 outcomes: %s", r.Phase())
	}
	settle(r, message.OutcomeFailedAgain, 10, 10)
	if may, _ := r.Next(noon); may || r.Phase() != Stopped || !strings.Contains(r.Problem(), "2 of 10 messages have failed") {
		t.Fatalf("%s, %q", r.Phase(), r.Problem())
	}
	settle(r, message.OutcomeHandled, 9, 9)
	if r = restored(t, r, 50); r.Phase() != Stopped {
		t.Fatal("it goes on before somebody decides")
	}
	r.Change(Settings{MaxInFlight: 1000, FailingPercent: 10, FailingAfter: 10})
	if r.Phase() != Stopped {
		t.Fatal("one of 10 is 10 percent")
	}
	r.Change(Settings{MaxInFlight: 1000, FailingPercent: 11, FailingAfter: 10})
	if r.Phase() != Releasing {
		t.Fatalf("10 percent may fail: %s", r.Phase())
	}
}

func TestStop_ComesByRetriesAlone(t *testing.T) {
	r := selected(Settings{FailingPercent: 50}, 100)
	release(r, noon)
	r.Count(50)
	settle(r, message.OutcomeRetried, 1, 1)
	if r.Phase() != Stopped {
		t.Errorf("a partner that is down: %s", r.Phase())
	}
}

func TestSettings_RefuseAStopThatIsNone(t *testing.T) {
	for _, s := range []Settings{{FailingPercent: 101}, {FailingPercent: -1}, {FailingAfter: -1}} {
		if s.MaxInFlight = 1; s.Check() == nil {
			t.Errorf("%+v", s)
		}
	}
}
