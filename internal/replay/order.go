package replay

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"redrive.dev/redrive/internal/deadletter"
)

// Action is what becomes of the selected messages.
type Action string

const (
	// ActionReplay sends them back to their work queues.
	ActionReplay Action = "Replay"
	// ActionDiscard deletes them, once that cannot be undone any more.
	ActionDiscard Action = "Discard"
)

// Order is what is to be done. It does not change while the replay lasts.
type Order struct {
	Action    Action               `json:"action"`
	Selection deadletter.Selection `json:"selection,omitzero"`
	// UndoFor is how long discarded messages are kept, so that they can be taken back; 0 deletes them at once.
	UndoFor time.Duration `json:"undoFor,omitempty"`
}

// Check says what is wrong with an order.
func (o *Order) Check() error {
	switch {
	case o.Action != ActionReplay && o.Action != ActionDiscard:
		return fmt.Errorf("%q is no action: %s or %s", o.Action, ActionReplay, ActionDiscard)
	case o.UndoFor < 0:
		return fmt.Errorf("an undo for %v: at least 0, which is none", o.UndoFor)
	case o.UndoFor > 0 && o.Action != ActionDiscard:
		return errors.New("a replay has no time in which it can be undone: cancel it")
	}
	_, err := o.Selection.Chooser(time.Time{})
	return err
}

// Is tells whether two orders are the same.
func (o *Order) Is(other *Order) bool { return o.text() == other.text() }

// text is the form that lasts: times in it are alike if they are the same moment.
func (o *Order) text() string {
	alike := *o
	alike.Selection.Since, alike.Selection.Before = o.Selection.Since.UTC(), o.Selection.Before.UTC()
	text, err := json.Marshal(alike)
	if err != nil {
		return err.Error() // a time of the year 10000
	}
	return string(text)
}
