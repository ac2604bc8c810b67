package replay

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"redrive.dev/redrive/internal/message"
)

const id = "r-0123abcd"

// world is a broker, workers that tell of what they did, and one replay that is killed at any step and begun again from its last checkpoint.
type world struct {
	t        *rapid.T
	now      time.Time
	selected int64
	// staged, work and log are queues; of the staging queue the first message may be published and not acknowledged yet.
	staged, work []int64
	log          []message.ReplayOutcome
	published    bool
	// first has the event of each message that came into the log first: that is the truth.
	first map[int64]message.OutcomeKind
	// saved is the last checkpoint; read is how far the log was read, and kept how far when the checkpoint was made.
	saved      []byte
	read, kept int

	replay *Replay
}

func newWorld(t *rapid.T) *world {
	w := &world{
		t: t, now: time.Unix(1, 0), selected: rapid.Int64Range(0, 30).Draw(t, "selected"), first: map[int64]message.OutcomeKind{},
		replay: New(rapid.SampledFrom([]Order{{Action: ActionReplay}, {Action: ActionDiscard, UndoFor: 200 * time.Millisecond}}).Draw(t, "order"), Settings{
			MaxInFlight: rapid.Int64Range(1, 8).Draw(t, "in flight"), Rate: rapid.SampledFrom([]float64{0, 5}).Draw(t, "rate"),
		}, time.Unix(1, 0)),
	}
	w.replay.BeginSelecting()
	for range w.selected {
		w.staged = append(w.staged, w.replay.Number())
	}
	w.replay.Select(w.selected, w.now)
	w.save()
	return w
}

func (w *world) save() {
	text, err := w.replay.Checkpoint(id, 1)
	if err != nil {
		w.t.Fatal(err)
	}
	w.saved, w.kept = text, w.read
}

// publish is the first half of a release, and acknowledge the second.
func (w *world) publish() {
	if len(w.staged) == 0 || w.published {
		return
	}
	switch head := w.staged[0]; {
	case w.replay.IsSettled(head):
	case w.replay.Phase() == Cancelling:
		w.tell(head, message.OutcomeRecalled)
	case w.replay.Phase() == Discarding:
		w.tell(head, message.OutcomeDiscarded)
	default:
		if may, _ := w.replay.Next(w.now); !may {
			return
		}
		w.work = append(w.work, head)
	}
	w.published = true
}

// tell puts an event into the log.
func (w *world) tell(seq int64, kind message.OutcomeKind) {
	if _, told := w.first[seq]; !told && kind != message.OutcomeRetried {
		w.first[seq] = kind
	}
	w.log = append(w.log, message.ReplayOutcome{Replay: message.Replay{ID: id, Seq: seq}, Kind: kind, Cause: "0123abcd"})
}

func (w *world) acknowledge() {
	if w.published {
		w.staged, w.published = w.staged[1:], false
		w.replay.Left()
	}
}

// handle is what a worker does; where it dies before the ack, the message is handled again.
func (w *world) handle(kind message.OutcomeKind, at int, dies bool) {
	if len(w.work) == 0 {
		return
	}
	at %= len(w.work)
	seq := w.work[at]
	w.tell(seq, kind)
	if !dies && kind != message.OutcomeRetried {
		w.work = slices.Delete(w.work, at, at+1)
	}
}

func (w *world) observe() {
	if w.read < len(w.log) {
		w.replay.Observe(w.log[w.read])
		w.read++
	}
}

func (w *world) kill() {
	restored, revision, err := Restore(w.saved, id)
	if err != nil || revision != 1 {
		w.t.Fatalf("revision %d, %v", revision, err)
	}
	w.replay, w.read, w.kept, w.published = restored, 0, 0, false
	w.replay.Count(int64(len(w.staged)))
}

// check is the equation that holds at every moment.
func (w *world) check() {
	c := w.replay.Counts()
	sum := c.Staged + c.InFlight + c.Handled + c.FailedAgain + c.Dropped + c.Recalled + c.Discarded + c.Unknown
	if sum != w.selected || c.Selected != w.selected || c.Retrying > c.InFlight+c.Staged || min(c.Staged, c.InFlight, c.Retrying) < 0 {
		w.t.Fatalf("the messages do not add up to %d: %+v", w.selected, c)
	}
	// What is released and has no outcome yet, whoever knows of it.
	out := map[int64]bool{}
	for _, seq := range w.work {
		if _, ended := w.first[seq]; !ended && !slices.Contains(w.staged, seq) {
			out[seq] = true
		}
	}
	if int64(len(out)) > w.replay.settings.MaxInFlight {
		w.t.Fatalf("%d in flight, of at most %d", len(out), w.replay.settings.MaxInFlight)
	}
}

var kinds = []message.OutcomeKind{
	message.OutcomeRetried, message.OutcomeHandled, message.OutcomeFailedAgain, message.OutcomeDropped, message.OutcomeRecalled,
}

func TestReplay_CountsExactlyWhateverIsKilled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"publish":     func(*rapid.T) { w.publish() },
			"acknowledge": func(*rapid.T) { w.acknowledge() },
			"release": func(*rapid.T) {
				w.publish()
				w.acknowledge()
			},
			"handle": func(t *rapid.T) {
				w.handle(rapid.SampledFrom(kinds).Draw(t, "kind"), rapid.IntRange(0, 99).Draw(t, "at"), rapid.Bool().Draw(t, "dies"))
			},
			"observe": func(*rapid.T) { w.observe() },
			"save":    func(*rapid.T) { w.save() },
			"acknowledge log": func(*rapid.T) {
				w.log, w.read, w.kept = w.log[w.kept:], w.read-w.kept, 0
			},
			"kill": func(*rapid.T) { w.kill() },
			"cancel": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") == 0 {
					w.replay.Cancel()
					w.save() // before anything is taken back
				}
			},
			"finish": func(*rapid.T) {
				w.replay.Finish(w.now, false)
				w.save()
			},
			"sleep": func(*rapid.T) { w.now = w.now.Add(100 * time.Millisecond) },
			"":      func(*rapid.T) { w.check() },
		})
		w.finish()
	})
}

// finish lets everything come to its end, and compares that with the truth.
func (w *world) finish() {
	for range 1000 {
		if phase := w.replay.Phase(); phase == Completed || phase == Cancelled {
			break
		}
		w.replay.Finish(w.now, true)
		w.now = w.now.Add(time.Second)
		w.publish()
		w.acknowledge()
		w.handle(message.OutcomeHandled, 0, false)
		w.observe()
	}
	c := w.replay.Counts()
	told := map[message.OutcomeKind]int64{}
	for kind := range maps.Values(w.first) {
		told[kind]++
	}
	phase := w.replay.Phase()
	if phase != Completed && phase != Cancelled || c.Discarded != told[message.OutcomeDiscarded] || c.Handled != told[message.OutcomeHandled] ||
		c.FailedAgain != told[message.OutcomeFailedAgain] || c.Dropped != told[message.OutcomeDropped] ||
		c.Recalled != told[message.OutcomeRecalled] || c.Retrying > 0 {
		w.t.Fatalf("%s with %+v, and in truth %v", phase, c, told)
	}
	if failed := w.replay.Causes()["0123abcd"]; failed != told[message.OutcomeFailedAgain] {
		w.t.Fatalf("%d have the cause, want %d", failed, told[message.OutcomeFailedAgain])
	}
}
