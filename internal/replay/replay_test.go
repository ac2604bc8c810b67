package replay

import (
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/message"
)

var noon = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// selected is a replay of so many messages, with the numbers from 1.
func selected(settings Settings, messages int64) *Replay {
	if settings.MaxInFlight == 0 {
		settings.MaxInFlight = 1000
	}
	r := New(Order{Action: ActionReplay}, settings, noon)
	r.Select(messages, noon)
	return r
}

// release releases what may be at a time, and returns how many that were.
func release(r *Replay, now time.Time) (released int) {
	for {
		if may, _ := r.Next(now); !may {
			return released
		}
		r.Left()
		released++
	}
}

func settle(r *Replay, kind message.OutcomeKind, from, to int64) {
	for seq := from; seq <= to; seq++ {
		r.Observe(message.ReplayOutcome{Replay: message.Replay{ID: id, Seq: seq}, Kind: kind})
	}
}

func TestCanary_ReleasesTheRestWhenTheFirstAreHandled(t *testing.T) {
	r := selected(Settings{Canary: 3}, 10)
	if released := release(r, noon); released != 3 || r.Phase() != Canary {
		t.Fatalf("%d released, %s", released, r.Phase())
	}
	settle(r, message.OutcomeRetried, 1, 1)
	settle(r, message.OutcomeHandled, 1, 2)
	if released := release(r, noon); released != 0 {
		t.Fatalf("%d released before the last of the canary has ended", released)
	}
	settle(r, message.OutcomeHandled, 3, 3)
	if released := release(r, noon); released != 7 || r.Phase() != Settling {
		t.Errorf("%d released, %s", released, r.Phase())
	}
	settle(r, message.OutcomeFailedAgain, 4, 10)
	if c := r.Counts(); r.Phase() != Completed || c.Handled != 3 || c.FailedAgain != 7 {
		t.Errorf("%s, %+v", r.Phase(), c)
	}
}

func TestCanary_StopsWhenMoreFailAgainThanMay(t *testing.T) {
	r := selected(Settings{Canary: 3, MaxFailed: 1}, 10)
	release(r, noon)
	settle(r, message.OutcomeFailedAgain, 1, 1)
	if r.Phase() != Canary {
		t.Fatalf("one may fail: %s", r.Phase())
	}
	settle(r, message.OutcomeFailedAgain, 2, 2)
	if released := release(r, noon); released != 0 || r.Phase() != Stopped || !strings.Contains(r.Problem(), "2 of the first 3 messages have failed again") {
		t.Fatalf("%d, %s, %q", released, r.Phase(), r.Problem())
	}
	settle(r, message.OutcomeHandled, 3, 3)
	text, err := r.Checkpoint(id, 1)
	if err != nil {
		t.Fatal(err)
	}
	r, _, err = Restore(text, id)
	if err != nil {
		t.Fatal(err)
	}
	r.Count(7)
	if released := release(r, noon); released != 0 || r.Phase() != Stopped {
		t.Errorf("after a restart %d are released, %s", released, r.Phase())
	}
	settings := r.Settings()
	settings.MaxFailed = 2
	r.Change(settings)
	if released := release(r, noon); released != 7 || r.Problem() != "" {
		t.Errorf("with more that may fail %d are released, %q", released, r.Problem())
	}
}

func TestCanary_StopsWithoutOutcomesInTime(t *testing.T) {
	r := selected(Settings{Canary: 3, CanaryWithin: time.Minute}, 10)
	release(r, noon)
	if r.Look(noon) || r.Look(noon.Add(59*time.Second)) || r.Phase() != Canary {
		t.Fatalf("%s before its time", r.Phase())
	}
	if !r.Look(noon.Add(time.Minute)) || r.Phase() != Stopped || !strings.Contains(r.Problem(), "3 of the first 3 messages had no outcome within 1m0s") {
		t.Errorf("%s, %q", r.Phase(), r.Problem())
	}
}

func TestRate_IsThatOfTheSettings(t *testing.T) {
	r := selected(Settings{Rate: 50}, 10_000)
	released, most := 0, 0
	for second := range 60 {
		within := 0
		for step := range 100 {
			within += release(r, noon.Add(time.Duration(second)*time.Second+time.Duration(step)*10*time.Millisecond))
		}
		settle(r, message.OutcomeHandled, int64(released)+1, int64(released+within))
		released, most = released+within, max(most, within)
	}
	if released < 2950 || released > 3050 || most > 60 {
		t.Errorf("%d in a minute, up to %d in a second", released, most)
	}
	if _, wait := r.Next(noon.Add(60 * time.Second)); wait > 25*time.Millisecond {
		t.Errorf("the next one is %v away", wait)
	}
}

func TestMaxInFlight_IsNeverExceeded(t *testing.T) {
	r := selected(Settings{MaxInFlight: 5}, 20)
	if released := release(r, noon); released != 5 {
		t.Fatalf("%d released", released)
	}
	settle(r, message.OutcomeRetried, 1, 5)
	if released := release(r, noon); released != 0 || r.Counts().Retrying != 5 {
		t.Fatalf("%d released while those before are retried, %+v", released, r.Counts())
	}
	settle(r, message.OutcomeHandled, 2, 3)
	if released := release(r, noon); released != 2 {
		t.Errorf("%d released for two that have ended", released)
	}
}

func TestCancel_EndsWhenNothingIsStagedOrInFlight(t *testing.T) {
	r := selected(Settings{MaxInFlight: 4}, 10)
	release(r, noon)
	r.Cancel()
	settle(r, message.OutcomeHandled, 1, 4)
	if released := release(r, noon); released != 0 || r.Phase() != Cancelling {
		t.Fatalf("%d released, %s", released, r.Phase())
	}
	settle(r, message.OutcomeRecalled, 5, 10)
	for range 6 {
		r.Left()
	}
	if c := r.Counts(); r.Phase() != Cancelled || c.Handled != 4 || c.Recalled != 6 {
		t.Errorf("%s, %+v", r.Phase(), c)
	}
}

func TestGiveUp_CountsWhatNobodyHasHeardOf(t *testing.T) {
	r := selected(Settings{}, 3)
	release(r, noon)
	settle(r, message.OutcomeHandled, 1, 1)
	r.GiveUp()
	if c := r.Counts(); r.Phase() != Completed || c.Unknown != 2 || c.Handled != 1 {
		t.Fatalf("%s, %+v", r.Phase(), c)
	}
	settle(r, message.OutcomeFailedAgain, 2, 2) // it had been in a lane
	if c := r.Counts(); c.Unknown != 1 || c.FailedAgain != 1 {
		t.Errorf("%+v", c)
	}
}

func TestGiveUp_CountsWhatIsRetriedOnce(t *testing.T) {
	r := selected(Settings{FailingPercent: 60, FailingAfter: 1}, 10)
	release(r, noon)
	settle(r, message.OutcomeHandled, 1, 5)
	settle(r, message.OutcomeRetried, 6, 7)
	r.GiveUp() // 5 of 10 are unknown
	settle(r, message.OutcomeRetried, 8, 8)
	if c := r.Counts(); r.Problem() != "" || c.Unknown != 5 || c.Retrying != 0 {
		t.Errorf("%q, %+v", r.Problem(), c)
	}
}

func TestContinue_BeginsNoWaitAgain(t *testing.T) {
	settings := Settings{Canary: 2, CanaryWithin: time.Hour, MaxInFlight: 10}
	r := selected(settings, 10)
	release(r, noon)
	r.Hear(noon)
	r.Look(noon)
	text, err := r.Checkpoint(id, 1)
	if err != nil {
		t.Fatal(err)
	}
	next, _, err := Restore(text, id)
	if err != nil {
		t.Fatal(err)
	}
	next.Count(r.Counts().Staged)
	back := noon.Add(24 * time.Hour) // the broker was away
	next.Continue(r.Waits(noon.Add(time.Minute)), back)
	if silence := next.Silence(back.Add(time.Minute)); silence != 2*time.Minute {
		t.Errorf("nothing came for %s", silence)
	}
	if next.Look(back.Add(59*time.Minute-1)) || !next.Look(back.Add(59*time.Minute)) {
		t.Errorf("%s, %q", next.Phase(), next.Problem())
	}
}

func TestNumber_IsGivenOnceWhateverReachedTheBroker(t *testing.T) {
	r := New(Order{Action: ActionReplay}, Settings{MaxInFlight: 1}, noon)
	given := map[int64]bool{}
	for range 5 {
		r.BeginSelecting()
		kept, err := r.Checkpoint(id, 1)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if n := r.Number(); n < 1 || given[n] {
				t.Fatalf("the number %d is given twice", n)
			} else {
				given[n] = true
			}
		}
		if r, _, err = Restore(kept, id); err != nil { // it was killed, and nobody knows of the numbers that it gave
			t.Fatal(err)
		}
	}
}

func TestRestore_RefusesWhatIsNoCheckpointOfTheReplay(t *testing.T) {
	r := selected(Settings{}, 3)
	settle(r, message.OutcomeHandled, 1, 2)
	settle(r, message.OutcomeRetried, 3, 3)
	text, err := r.Checkpoint(id, 7)
	if err != nil {
		t.Fatal(err)
	}
	if again, revision, err := Restore(text, id); err != nil || revision != 7 || again.Counts().Retrying != 1 {
		t.Fatalf("%d, %v", revision, err)
	}
	for what, changed := range map[string]string{
		"another replay":         strings.Replace(string(text), id, "r-00000000", 1),
		"a later version":        strings.Replace(string(text), `"version":1`, `"version":2`, 1),
		"a negative count":       strings.Replace(string(text), `"selected":3`, `"selected":-3`, 1),
		"counts of other events": strings.Replace(string(text), `"handled":2`, `"handled":1`, 1),
		"a half":                 string(text[:len(text)/2]),
		"no messages in flight":  strings.Replace(string(text), `"maxInFlight":1000`, `"maxInFlight":0`, 1),
	} {
		if _, _, err := Restore([]byte(changed), id); err == nil {
			t.Errorf("%s is taken for a checkpoint", what)
		}
	}
}

func FuzzRestore(f *testing.F) {
	r := selected(Settings{Canary: 1}, 3)
	text, err := r.Checkpoint(id, 7)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		r, _, err := Restore(text, id)
		if err != nil {
			return
		}
		r.Count(5)
		if c := r.Counts(); min(c.Staged, c.InFlight) < 0 {
			t.Errorf("%+v", c)
		}
	})
}
