package opmetrics

import (
	"slices"
	"time"

	"redrive.dev/redrive/internal/apply"
)

// maxMarks bounds how many looks at a queue are remembered; with one more, for a moment, they take 512 bytes. A queue that stands still for long is known
// the less exactly.
const maxMarks = 15

// backlog tells how long the oldest message of a queue has been there at least. RabbitMQ keeps no time of arrival for quorum
// queues, so it follows from counts: where fewer messages have left since a look than were there then, one of those is still
// there, whichever. So the age is never too high but by the delay of the broker's figures, and it begins with the first look.
type backlog struct {
	seen bool
	// acked, published and messages are the broker's counts at the last look.
	acked, published, messages int64
	// gone is how many messages have left since the first look.
	gone int64
	// marks are the looks of which a message is left, the oldest first.
	marks []mark
}

// mark is a look at a queue. When as many messages are gone as had come until then, none is left of those that were there.
type mark struct {
	at   time.Time
	come int64
}

// see takes a look into account and gives the age. What expires, or is dropped or purged, is not acknowledged and shows in the
// counts alone; what comes back from a lane shows in no counter of the broker.
func (b *backlog) see(queue apply.QueueCount, now time.Time) time.Duration {
	if b.seen && (queue.Acked < b.acked || queue.Published < b.published) {
		*b = backlog{} // the broker was started again and counts from zero
	}
	if b.seen {
		b.gone += max(0, queue.Acked-b.acked, b.messages+queue.Published-b.published-*queue.Messages)
	}
	b.seen, b.acked, b.published, b.messages = true, queue.Acked, queue.Published, *queue.Messages
	b.marks = slices.DeleteFunc(b.marks, func(m mark) bool { return m.come <= b.gone })
	come := b.gone + b.messages
	if n := len(b.marks); b.messages > 0 && (n == 0 || b.marks[n-1].come < come) {
		b.marks = append(b.marks, mark{now, come})
	}
	if len(b.marks) == 0 {
		return 0
	}
	b.thin()
	return now.Sub(b.marks[0].at)
}

// thin forgets every second look where there are many, but never the first and the last. What was there at a look that is
// forgotten counts as there from the next one on.
func (b *backlog) thin() {
	if len(b.marks) <= maxMarks {
		return
	}
	last := b.marks[len(b.marks)-1]
	kept := b.marks[:1]
	for i := 2; i < len(b.marks)-1; i += 2 {
		kept = append(kept, b.marks[i])
	}
	kept = append(kept, last)
	b.marks = kept
}
