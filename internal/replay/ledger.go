package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"redrive.dev/redrive/internal/message"
)

// maxCauses is how many causes are counted apart. The others are only among those that failed again.
const maxCauses = 20

// ledger is what of a replay has to last.
type ledger struct {
	selected   int64
	isSelected bool
	// next is the number that was given last.
	next int64
	// settled are the numbers of the messages whose outcome is known, and retrying of those that failed and are retried.
	settled, retrying Numbers

	handled, failedAgain, dropped, recalled, discarded, unknown int64

	causes map[string]int64
	// passed is true once the canary has passed, stopped is why nothing is released, and cancelling is true once the rest is taken back.
	passed     bool
	stopped    string
	cancelling bool
	// undoUntil is when discarded messages are deleted, and final is true once that has begun.
	undoUntil time.Time
	final     bool
}

// ended is how many messages have ended, in a known way or not.
func (l *ledger) ended() int64 { return l.known() + l.unknown }

// known is how many have ended in a known way.
func (l *ledger) known() int64 {
	return l.handled + l.failedAgain + l.dropped + l.recalled + l.discarded
}

func (l *ledger) count(event message.ReplayOutcome) {
	switch event.Kind {
	case message.OutcomeHandled:
		l.handled++
	case message.OutcomeFailedAgain:
		l.failedAgain++
		l.countCause(event.Cause)
	case message.OutcomeDropped:
		l.dropped++
	case message.OutcomeRecalled:
		l.recalled++
	case message.OutcomeDiscarded:
		l.discarded++
	case message.OutcomeRetried: // no end
	}
	// An event that came late, after its message was given up, tells what that one has become.
	if l.isSelected && l.ended() > l.selected && l.unknown > 0 {
		l.unknown--
	}
}

func (l *ledger) countCause(cause string) {
	if _, known := l.causes[cause]; cause == "" || !known && len(l.causes) >= maxCauses {
		return
	}
	if l.causes == nil {
		l.causes = map[string]int64{}
	}
	l.causes[cause]++
}

// checkpointVersion is that of the form of a checkpoint.
const checkpointVersion = 1

// checkpoint is the form in which a replay lasts.
type checkpoint struct {
	Version     int              `json:"version"`
	ID          string           `json:"id"`
	Revision    int64            `json:"revision"`
	Began       time.Time        `json:"began"`
	Order       Order            `json:"order"`
	Settings    Settings         `json:"settings,omitzero"`
	Selected    *int64           `json:"selected,omitempty"`
	Next        int64            `json:"next,omitempty"`
	Settled     Numbers          `json:"settled"`
	Retrying    Numbers          `json:"retrying"`
	Handled     int64            `json:"handled,omitempty"`
	FailedAgain int64            `json:"failedAgain,omitempty"`
	Dropped     int64            `json:"dropped,omitempty"`
	Recalled    int64            `json:"recalled,omitempty"`
	Discarded   int64            `json:"discarded,omitempty"`
	Unknown     int64            `json:"unknown,omitempty"`
	Causes      map[string]int64 `json:"causes,omitempty"`
	Passed      bool             `json:"passed,omitempty"`
	Stopped     string           `json:"stopped,omitempty"`
	Cancelling  bool             `json:"cancelling,omitempty"`
	UndoUntil   time.Time        `json:"undoUntil,omitzero"`
	Final       bool             `json:"final,omitempty"`
}

// Checkpoint is all of a replay that has to last. Of two the one with the higher revision holds.
func (r *Replay) Checkpoint(id string, revision int64) ([]byte, error) {
	l := &r.ledger
	c := checkpoint{
		Version: checkpointVersion, ID: id, Revision: revision, Began: r.began, Order: r.order, Settings: r.settings, Next: l.next,
		Settled: l.settled, Retrying: l.retrying, Handled: l.handled, FailedAgain: l.failedAgain, Dropped: l.dropped, Recalled: l.recalled,
		Discarded: l.discarded, Unknown: l.unknown, Causes: l.causes, Passed: l.passed, Stopped: l.stopped, Cancelling: l.cancelling,
		UndoUntil: l.undoUntil, Final: l.final,
	}
	if l.isSelected {
		c.Selected = &l.selected
	}
	text, err := json.Marshal(&c) // so that the sets can be asked for their form
	if err != nil {
		return nil, fmt.Errorf("write a checkpoint of %s: %w", id, err)
	}
	return text, nil
}

// Restore reads a checkpoint of a replay. What is none, or contradicts itself, is an error.
func Restore(text []byte, id string) (r *Replay, revision int64, err error) {
	var c checkpoint
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, 0, fmt.Errorf("read a checkpoint of %s: %w", id, err)
	}
	if err := c.check(id); err != nil {
		return nil, 0, fmt.Errorf("read a checkpoint of %s: %w", id, err)
	}
	r = New(c.Order, c.Settings, c.Began)
	r.ledger = ledger{
		next: c.Next, settled: c.Settled, retrying: c.Retrying, handled: c.Handled, failedAgain: c.FailedAgain, dropped: c.Dropped,
		recalled: c.Recalled, discarded: c.Discarded, unknown: c.Unknown, causes: c.Causes, passed: c.Passed, stopped: c.Stopped,
		cancelling: c.Cancelling, undoUntil: c.UndoUntil, final: c.Final,
	}
	if c.Selected != nil {
		r.ledger.selected, r.ledger.isSelected = *c.Selected, true
	}
	return r, c.Revision, nil
}

func (c *checkpoint) check(id string) error {
	least := min(c.Revision, c.Next, c.Handled, c.FailedAgain, c.Dropped, c.Recalled, c.Discarded, c.Unknown)
	switch {
	case c.Version != checkpointVersion:
		return fmt.Errorf("its version is %d, and this one of Redrive reads %d", c.Version, checkpointVersion)
	case c.ID != id:
		return fmt.Errorf("it is of %q", c.ID)
	case least < 0 || c.Selected != nil && *c.Selected < 0:
		return errors.New("a count is negative")
	case c.Settled.Len() != c.Handled+c.FailedAgain+c.Dropped+c.Recalled+c.Discarded:
		return errors.New("its counts are not those of the settled messages")
	}
	return errors.Join(c.Order.Check(), c.Settings.check(c.Order.Action))
}
