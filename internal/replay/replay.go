// Package replay decides how failed messages are sent back to their work queues: how many at a time, when to stop, and what became of them.
// It is pure: the time is an argument, and it speaks to no broker.
package replay

import (
	"fmt"
	"time"

	"golang.org/x/time/rate"

	"redrive.dev/redrive/internal/message"
)

// Phase is how far a replay has come.
type Phase string

// Phases. Whoever carries a replay out may stop at any time and go on later: that is no phase of its own.
const (
	// Selecting moves messages from the failure queue into the staging queue.
	Selecting Phase = "Selecting"
	// Canary waits for the outcomes of the first messages.
	Canary Phase = "Canary"
	// Releasing sends messages back to their work queues.
	Releasing Phase = "Releasing"
	// Settling waits for the outcomes of the last messages.
	Settling Phase = "Settling"
	// Stopped releases nothing more until somebody decides.
	Stopped Phase = "Stopped"
	// Cancelling takes back what is staged.
	Cancelling Phase = "Cancelling"
	// Held keeps discarded messages as long as they can be taken back, and Discarding deletes them.
	Held       Phase = "Held"
	Discarding Phase = "Discarding"
	// Completed and Cancelled are the ends.
	Completed Phase = "Completed"
	Cancelled Phase = "Cancelled"
)

// MaxInFlight bounds Settings.MaxInFlight: the events of so many messages wait while nobody reads them.
const MaxInFlight = 10_000

// Settings of a replay.
type Settings struct {
	// Rate is how many messages are released in a second; 0 is no limit.
	Rate float64 `json:"rate,omitempty"`
	// MaxInFlight is how many released messages may be without an outcome, those that wait in lanes included.
	MaxInFlight int64 `json:"maxInFlight"`
	// Canary is how many messages are released first; 0 is none. The others follow when all of these have an outcome, and no more than
	// MaxFailed of them have failed again.
	Canary    int64 `json:"canary,omitempty"`
	MaxFailed int64 `json:"maxFailed,omitempty"`
	// CanaryWithin is how long these outcomes may take.
	CanaryWithin time.Duration `json:"canaryWithin,omitempty"`
	// FailingPercent stops the replay when so many of its outcomes are failures, after FailingAfter outcomes; 0 never does. A message that
	// failed and is retried counts as one: a partner that is still down shows in seconds, not after all retries.
	FailingPercent int64 `json:"failingPercent,omitempty"`
	FailingAfter   int64 `json:"failingAfter,omitempty"`
}

// Check says what is wrong with settings.
func (s Settings) Check() error {
	switch {
	case s.Rate < 0:
		return fmt.Errorf("a rate of %v messages a second: at least 0, which is no limit", s.Rate)
	case s.MaxInFlight < 1 || s.MaxInFlight > MaxInFlight:
		return fmt.Errorf("%d messages in flight: 1 to %d", s.MaxInFlight, MaxInFlight)
	case s.Canary < 0 || s.MaxFailed < 0 || s.CanaryWithin < 0:
		return fmt.Errorf("a canary of %d messages, of which %d may fail within %v: none of these is negative", s.Canary, s.MaxFailed, s.CanaryWithin)
	case s.FailingPercent < 0 || s.FailingPercent > 100 || s.FailingAfter < 0:
		return fmt.Errorf("a stop when %d percent fail after %d outcomes: 0 to 100 percent, and no negative number", s.FailingPercent, s.FailingAfter)
	}
	return nil
}

// check is Check for an action: discarding has no settings.
func (s Settings) check(action Action) error {
	if action == ActionDiscard {
		return nil
	}
	return s.Check()
}

// Counts say where the messages of a replay are. Selected is the sum of all others but Retrying, which are among those in flight.
type Counts struct {
	Selected    int64 `json:"selected"`
	Staged      int64 `json:"staged"`
	InFlight    int64 `json:"inFlight"`
	Retrying    int64 `json:"retrying"`
	Handled     int64 `json:"handled"`
	FailedAgain int64 `json:"failedAgain"`
	Dropped     int64 `json:"dropped"`
	// Recalled were taken back without an attempt.
	Recalled int64 `json:"recalled"`
	// Discarded were deleted.
	Discarded int64 `json:"discarded"`
	// Unknown have ended without an event.
	Unknown int64 `json:"unknown"`
}

// Replay is the state of one replay. A Checkpoint of it is all that has to last.
type Replay struct {
	order    Order
	began    time.Time
	settings Settings
	ledger   ledger
	limiter  *rate.Limiter
	// depth is how many messages are in the staging queue, to the knowledge of who counts them.
	depth int64
	// waited is since when the canary waits for outcomes; zero where it still releases. heard is when something last came of a message.
	waited, heard time.Time
}

// New is a replay that begins.
func New(order Order, settings Settings, began time.Time) *Replay {
	return &Replay{order: order, settings: settings, began: began, limiter: limiterOf(settings.Rate), heard: began}
}

// Waits are how long a replay has waited for outcomes. No checkpoint has them: whoever resumes a replay waits from then on.
type Waits struct{ silence, canary time.Duration }

// Waits are those at the end of a session.
func (r *Replay) Waits(now time.Time) Waits {
	waits := Waits{silence: now.Sub(r.heard)}
	if !r.waited.IsZero() {
		waits.canary = now.Sub(r.waited)
	}
	return waits
}

// Continue goes on with the waits of the session before, in the same process: between two sessions nobody could be heard.
func (r *Replay) Continue(before Waits, now time.Time) {
	r.heard = now.Add(-before.silence)
	if before.canary > 0 {
		r.waited = now.Add(-before.canary)
	}
}

// Hear says that something came of a message: an outcome, or its arrival.
func (r *Replay) Hear(now time.Time) { r.heard = now }

// Silence is for how long nothing has come of any message.
func (r *Replay) Silence(now time.Time) time.Duration { return now.Sub(r.heard) }

// limiterOf allows a tenth of a second's messages at once.
func limiterOf(perSecond float64) *rate.Limiter {
	if perSecond == 0 {
		return rate.NewLimiter(rate.Inf, 1)
	}
	return rate.NewLimiter(rate.Limit(perSecond), max(1, int(perSecond/10)))
}

// Order is what the replay was begun with.
func (r *Replay) Order() Order { return r.order }

// Began is when the replay was begun.
func (r *Replay) Began() time.Time { return r.began }

// Settings are those that hold.
func (r *Replay) Settings() Settings { return r.settings }

// Change takes over other settings. A replay that was stopped by the former ones goes on if these allow it.
func (r *Replay) Change(settings Settings) {
	r.settings, r.limiter = settings, limiterOf(settings.Rate)
	r.ledger.stopped, r.waited = "", time.Time{}
	r.judge()
}

// Number is the number of the next message that is selected. Each session that selects has numbers of its own: a message of a session that was
// killed may reach the staging queue later than the next session looks, and would else share its number with another one. Of two messages
// with one number the second would count as settled with the first.
func (r *Replay) Number() int64 {
	r.ledger.next++
	return r.ledger.next
}

// sessionNumbers is how many numbers each session has: more than a failure queue has messages.
const sessionNumbers = 1 << 32

// BeginSelecting takes the numbers of a new session. The caller keeps a checkpoint before it uses one of them.
func (r *Replay) BeginSelecting() {
	if next := r.ledger.next; next > 0 {
		r.ledger.next = (next-1)/sessionNumbers*sessionNumbers + sessionNumbers
	}
	r.ledger.next++ // so that a session which used no number differs from its successor, too
}

// Select ends the selection: so many messages are staged.
func (r *Replay) Select(messages int64, now time.Time) {
	r.ledger.selected, r.ledger.isSelected = messages, true
	r.depth = messages
	if r.order.Action == ActionDiscard {
		r.ledger.undoUntil = now.Add(r.order.UndoFor)
	}
	r.judge()
}

// IsSelected tells whether the selection has ended.
func (r *Replay) IsSelected() bool { return r.ledger.isSelected }

// Count takes over how many messages are in the staging queue.
func (r *Replay) Count(depth int64) { r.depth = depth }

// AtLeast takes over that so many messages of the staging queue are at hand, whatever was counted before.
func (r *Replay) AtLeast(depth int64) { r.depth = max(r.depth, depth) }

// Counts say where the messages are now.
func (r *Replay) Counts() Counts {
	l := &r.ledger
	c := Counts{
		Selected: l.selected,
		Handled:  l.handled, FailedAgain: l.failedAgain, Dropped: l.dropped, Recalled: l.recalled, Discarded: l.discarded, Unknown: l.unknown,
	}
	left := max(0, l.selected-l.ended())
	// A copy that was released and not yet acknowledged is in the staging queue, and may be settled.
	c.Staged = min(r.depth, left)
	c.InFlight = left - c.Staged
	c.Retrying = min(l.retrying.Len(), left) // one that was given up may yet tell that it is retried
	return c
}

// Phase is how far the replay has come.
func (r *Replay) Phase() Phase {
	l := &r.ledger
	over := l.isSelected && l.ended() >= l.selected && r.depth == 0
	switch {
	case l.cancelling && over:
		return Cancelled
	case l.cancelling:
		return Cancelling
	case !l.isSelected:
		return Selecting
	case over:
		return Completed
	case l.final:
		return Discarding
	case r.order.Action == ActionDiscard:
		return Held
	case l.stopped != "":
		return Stopped
	case r.depth == 0:
		return Settling
	case r.settings.Canary > 0 && !l.passed:
		return Canary
	default:
		return Releasing
	}
}

// Problem is why it was stopped; empty where it was not.
func (r *Replay) Problem() string { return r.ledger.stopped }

// Causes count the messages that failed again by the causes of their failures, as far as they are known.
func (r *Replay) Causes() map[string]int64 { return r.ledger.causes }

// Cancel releases nothing more: what is staged is to be taken back.
func (r *Replay) Cancel() { r.ledger.cancelling = true }

// UndoUntil is until when discarded messages can be taken back; zero where nothing is discarded.
func (r *Replay) UndoUntil() time.Time { return r.ledger.undoUntil }

// Finish deletes discarded messages from now on: once they cannot be taken back any more, or before, where somebody asks for it.
func (r *Replay) Finish(now time.Time, asked bool) {
	if r.Phase() == Held && (asked || !now.Before(r.ledger.undoUntil)) {
		r.ledger.final = true
	}
}

// IsSettled tells whether the outcome of a message is known. A copy of it in the staging queue is one that was released before.
func (r *Replay) IsSettled(number int64) bool { return r.ledger.settled.Has(number) }

// Next tells whether the next message may be released now. Where only the rate is in the way, wait says for how long; else an event changes that.
func (r *Replay) Next(now time.Time) (may bool, wait time.Duration) {
	c := r.Counts()
	switch phase := r.Phase(); {
	case phase != Canary && phase != Releasing,
		c.InFlight >= r.settings.MaxInFlight,
		phase == Canary && c.Selected-c.Staged >= r.settings.Canary:
		return false, 0
	case r.limiter.AllowN(now, 1):
		return true, 0
	default:
		missing := 1 - r.limiter.TokensAt(now)
		return false, max(time.Millisecond, time.Duration(missing/r.settings.Rate*float64(time.Second)))
	}
}

// Left says that a message has left the staging queue: it was released, or taken back, or is a copy of one that was.
func (r *Replay) Left() { r.depth = max(0, r.depth-1) }

// Observe takes in an event. It is false where that changes nothing, as for one that came twice.
func (r *Replay) Observe(event message.ReplayOutcome) bool {
	l := &r.ledger
	if l.settled.Has(event.Seq) {
		return false
	}
	if event.Kind == message.OutcomeRetried {
		if !l.retrying.Add(event.Seq) {
			return false
		}
		r.judge()
		return true
	}
	l.retrying.Remove(event.Seq)
	l.settled.Add(event.Seq)
	l.count(event)
	r.judge()
	return true
}

// judge decides whether the canary has passed, and whether too much fails.
func (r *Replay) judge() {
	l := &r.ledger
	if !l.isSelected || l.cancelling {
		return
	}
	if r.settings.Canary > 0 && !l.passed {
		r.judgeCanary()
	}
	failing, outcomes := l.failedAgain+l.unknown+l.retrying.Len(), l.ended()+l.retrying.Len()
	if s := r.settings; s.FailingPercent > 0 && outcomes >= max(1, s.FailingAfter) && failing*100 >= s.FailingPercent*outcomes {
		l.stopped = fmt.Sprintf("%d of %d messages have failed, those that are retried included, and %d percent stop the replay", failing, outcomes,
			s.FailingPercent)
	}
}

func (r *Replay) judgeCanary() {
	l, s := &r.ledger, r.settings
	switch {
	case l.failedAgain+l.unknown > s.MaxFailed:
		l.stopped = fmt.Sprintf("%d of the first %d messages have failed again, and %d may", l.failedAgain+l.unknown, s.Canary, s.MaxFailed)
	case l.ended() >= min(s.Canary, l.selected):
		l.passed, l.stopped = true, ""
	}
}

// Look stops a canary whose outcomes take too long. It is true where something has changed.
func (r *Replay) Look(now time.Time) bool {
	c := r.Counts()
	waits := r.Phase() == Canary && c.InFlight > 0 && c.Selected-c.Staged >= r.settings.Canary
	switch {
	case !waits || r.settings.CanaryWithin == 0:
		r.waited = time.Time{}
	case r.waited.IsZero():
		r.waited = now
	case now.Sub(r.waited) >= r.settings.CanaryWithin:
		r.ledger.stopped = fmt.Sprintf("%d of the first %d messages had no outcome within %v", c.InFlight, r.settings.Canary, r.settings.CanaryWithin)
		return true
	}
	return false
}

// GiveUp ends the wait for outcomes: what is in flight has ended in a way that nobody knows. The caller has looked into the failure queue before.
func (r *Replay) GiveUp() {
	r.ledger.unknown += r.Counts().InFlight
	r.ledger.retrying = Numbers{} // they are among these
	r.judge()
}
