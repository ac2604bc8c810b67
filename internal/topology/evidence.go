package topology

// Evidence is what a broker says of the messages in one queue, and what makes the saying good for a decision. Its zero value is
// that nobody knows. docs/lifecycle.md, "What an answer is worth", has the table of answers and of what each act needs.
type Evidence struct {
	// Messages that are ready, unacknowledged or being dead-lettered; nil while nobody knows, such as in the seconds after a queue was
	// made, without a leader, or with statistics off.
	Messages *int64
	// Leader is the node that leads the queue and so counts; empty where it is classic, or nobody is known to.
	Leader string
	// Tick tells one count of a quorum queue's leader from the next: RabbitMQ's "reductions", the work of the leader's process, which
	// has done some more each time that it counts. Zero where the queue is classic: one that is idle does not count anew.
	Tick int64
	// Published is the broker's count of messages that clients published into the queue since it runs.
	Published int64
}

// Empty is true where the queue is known to hold no message.
func (e Evidence) Empty() bool { return e.Messages != nil && *e.Messages == 0 }

// Holds is true where the queue is known to hold messages.
func (e Evidence) Holds() bool { return e.Messages != nil && *e.Messages > 0 }

// Follows is true where the leader has counted since a tick; nil where none has been noted. Two that follow each other, and the
// first of which was read after an event, show that the second count was made after it, however seldom the leader counts.
func (e Evidence) Follows(tick *int64) bool { return e.Tick == 0 || tick != nil && *tick != e.Tick }

// Noted is the tick as it is written down; nil where there is none.
func (e Evidence) Noted() *int64 {
	if e.Tick == 0 {
		return nil
	}
	return &e.Tick
}
