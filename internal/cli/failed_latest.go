package cli

import (
	"cmp"
	"slices"
	"time"

	"redrive.dev/redrive/internal/deadletter"
)

// latest keeps those messages that were given up last. RabbitMQ 4 does not deliver them in that order: those of a high priority come first.
type latest struct {
	limit int
	kept  []dated
	// arrived counts all, and before is when the last of them was given up of which that is known.
	arrived int
	before  time.Time
}

type dated struct {
	deadletter.Entry

	at     time.Time
	number int
}

// add takes the next message. One that does not tell when it was given up belongs behind the one before it.
func (l *latest) add(entry deadletter.Entry) {
	if entry.FailedAt != nil {
		l.before = *entry.FailedAt
	}
	l.arrived++
	l.kept = append(l.kept, dated{entry, l.before, l.arrived})
	if len(l.kept)-l.limit >= l.limit {
		l.cut()
	}
}

// cut leaves as many as may be shown, the latest first.
func (l *latest) cut() {
	slices.SortFunc(l.kept, func(a, b dated) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(b.number, a.number)) })
	l.kept = slices.Delete(l.kept, min(l.limit, len(l.kept)), len(l.kept))
}

// entries are the latest first.
func (l *latest) entries() []deadletter.Entry {
	l.cut()
	entries := make([]deadletter.Entry, len(l.kept))
	for i := range l.kept {
		entries[i] = l.kept[i].Entry
	}
	return entries
}
