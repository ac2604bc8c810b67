package retry

import (
	"context"
	"fmt"

	"golang.org/x/sync/semaphore"
)

// Bodies is the memory that all decoded bodies of a process may take together, told in bytes of bodies as they came. A body waits until
// there is room for it. It is safe for concurrent use.
type Bodies struct {
	limit int64
	room  *semaphore.Weighted
}

// NewBodies makes an account; 0 is no limit.
func NewBodies(limit int64) *Bodies {
	if limit <= 0 {
		return nil
	}
	return &Bodies{limit: limit, room: semaphore.NewWeighted(limit)}
}

// take waits for the room that a body needs. The error says that it never fits. Nobody who has room waits for anything but the
// processor, so that the wait ends.
func (b *Bodies) take(size int) error {
	switch {
	case b == nil:
		return nil
	case int64(size) > b.limit:
		return plainError(fmt.Sprintf("message.body is not decoded: it has %d bytes, and the memory limit of the worker allows for %d; "+
			"raise that limit, or let the expression read a header", size, b.limit))
	}
	return b.room.Acquire(context.Background(), int64(size)) //nolint:wrapcheck // it does not fail
}

func (b *Bodies) give(size int) {
	if b != nil {
		b.room.Release(int64(size))
	}
}
