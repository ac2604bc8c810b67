package deadletter

import (
	"cmp"
	"slices"
	"time"
)

// Bounds of what is counted apart.
const (
	maxCauses = 1000
	maxQueues = 64
	// OtherCauses stands for all causes beyond the first thousand.
	OtherCauses = "other"
)

// Cause is a number of messages that failed alike.
type Cause struct {
	ID       string   `json:"cause"`
	Messages int      `json:"messages"`
	Queues   []string `json:"queues"`
	Reason   string   `json:"reason,omitempty"`
	Strategy string   `json:"strategy,omitempty"`
	// Error is the headline of its messages.
	Error string `json:"error,omitempty"`
	// First and Last are when the first and the last of them were given up; nil where nothing tells.
	First *time.Time `json:"first,omitempty"`
	Last  *time.Time `json:"last,omitempty"`
}

// Causes count messages by how they failed. The zero value is ready.
type Causes struct{ known map[string]*Cause }

// Add counts a message.
func (c *Causes) Add(e Entry) {
	if c.known == nil {
		c.known = map[string]*Cause{}
	}
	id := e.Cause
	cause, is := c.known[id]
	if !is && len(c.known) >= maxCauses {
		id = OtherCauses
		cause, is = c.known[id]
	}
	if !is {
		cause = &Cause{ID: id}
		if id != OtherCauses {
			cause.Reason, cause.Strategy, cause.Error = e.Reason, e.Strategy, e.Headline()
		}
		c.known[id] = cause
	}
	cause.Messages++
	if len(cause.Queues) < maxQueues && !slices.Contains(cause.Queues, e.Queue) {
		cause.Queues = append(cause.Queues, e.Queue)
	}
	if e.FailedAt == nil {
		return
	}
	if cause.First == nil || e.FailedAt.Before(*cause.First) {
		cause.First = e.FailedAt
	}
	if cause.Last == nil || e.FailedAt.After(*cause.Last) {
		cause.Last = e.FailedAt
	}
}

// List has the causes of most messages first.
func (c *Causes) List() []Cause {
	list := make([]Cause, 0, len(c.known))
	for _, cause := range c.known {
		slices.Sort(cause.Queues)
		list = append(list, *cause)
	}
	slices.SortFunc(list, func(a, b Cause) int { return cmp.Or(cmp.Compare(b.Messages, a.Messages), cmp.Compare(a.ID, b.ID)) })
	return list
}
