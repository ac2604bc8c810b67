package deadletter

import (
	"fmt"
	"math"
	"slices"
	"time"

	"redrive.dev/redrive/internal/retry"
)

// Selection says which messages of a failure queue are meant. What is zero in it does not restrict. It is data, so that it lasts.
type Selection struct {
	// Where is an expression in CEL over the variables of policies, and over failure.
	Where string `json:"where,omitempty"`
	// Causes are fingerprints of failures, IDs those of messages, and Queues work queues.
	Causes []string `json:"causes,omitempty"`
	IDs    []string `json:"ids,omitempty"`
	Queues []string `json:"queues,omitempty"`
	// Since and Before bound when the messages were given up. What says no time was given up before everything.
	Since  time.Time `json:"since,omitzero"`
	Before time.Time `json:"before,omitzero"`
	// Limit is how many, the oldest first.
	Limit int64 `json:"limit,omitempty"`
}

// Bounds of a selection: it is in each checkpoint of its replay.
const (
	maxSelectedCauses = 64
	maxSelectedIDs    = 1000
	maxSelectedQueues = 64
)

// Chooser chooses messages by a Selection.
type Chooser struct {
	selection Selection
	filter    *retry.Filter
	now       time.Time
	left      int64
	failed    int
	first     error
}

// Chooser says what is wrong with a selection, or chooses by it. now is the time that the expression sees.
func (s Selection) Chooser(now time.Time) (*Chooser, error) {
	switch {
	case len(s.Causes) > maxSelectedCauses:
		return nil, fmt.Errorf("%d causes are selected, and at most %d may be", len(s.Causes), maxSelectedCauses)
	case len(s.IDs) > maxSelectedIDs:
		return nil, fmt.Errorf("%d messages are selected by their IDs, and at most %d may be", len(s.IDs), maxSelectedIDs)
	case len(s.Queues) > maxSelectedQueues:
		return nil, fmt.Errorf("%d queues are selected, and at most %d may be", len(s.Queues), maxSelectedQueues)
	case s.Limit < 0:
		return nil, fmt.Errorf("a limit of %d messages: at least 0, which is no limit", s.Limit)
	}
	c := &Chooser{selection: s, now: now, left: s.Limit}
	if s.Limit == 0 {
		c.left = math.MaxInt64
	}
	if s.Where == "" {
		return c, nil
	}
	var err error
	c.filter, err = retry.CompileFilter("--where", s.Where)
	return c, err
}

// Chooses tells whether a message is meant. It is asked once for each message, the oldest first: a limit counts those that it has chosen.
func (c *Chooser) Chooses(l *Letter) bool {
	if c.left <= 0 || !c.selection.has(l) || !c.matches(l) {
		return false
	}
	c.left--
	return true
}

// Chosen counts messages that were chosen before.
func (c *Chooser) Chosen(messages int64) { c.left -= messages }

// Failed is on how many messages the expression has failed, and its first error. They are not chosen.
func (c *Chooser) Failed() (messages int, first error) { return c.failed, c.first }

func (s Selection) has(l *Letter) bool {
	among := func(names []string, name string) bool { return len(names) == 0 || slices.Contains(names, name) }
	return among(s.Causes, l.Given.Cause) && among(s.IDs, l.Message.ID) && among(s.Queues, l.Message.Queue) &&
		!l.Given.At.Before(s.Since) && (s.Before.IsZero() || l.Given.At.Before(s.Before))
}

func (c *Chooser) matches(l *Letter) bool {
	if c.filter == nil {
		return true
	}
	is, err := c.filter.Matches(l.Message, l.Last, l.History, l.Given, c.now)
	if err != nil {
		if c.failed++; c.first == nil {
			c.first = err
		}
	}
	return is
}
