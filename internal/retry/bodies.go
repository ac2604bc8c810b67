package retry

import "fmt"

const (
	// smallBodies is the part of all room up to which a body is small, and shareOfSmall the part that small ones have for themselves.
	smallBodies  = 64
	shareOfSmall = 8
)

// Bodies is the memory that all decoded bodies of a process may take together, told in bytes of bodies as they came. A body waits until
// there is room for it. Small ones have a share of their own beside it: a large one takes all the room, and a third of a second to decode,
// so that nothing else went on while somebody sent many. It is safe for concurrent use.
type Bodies struct {
	limit        int64
	large, small *line
}

// NewBodies makes an account; 0 is no limit.
func NewBodies(limit int64) *Bodies {
	if limit <= 0 {
		return nil
	}
	return &Bodies{limit: limit, large: newLine(limit), small: newLine(limit / shareOfSmall)}
}

// take waits for the room that a body needs. The error says that it never fits. Nobody who has room waits for anything but the
// processor, so that the wait ends.
func (b *Bodies) take(queue string, size int) error {
	switch {
	case b == nil:
		return nil
	case int64(size) > b.limit:
		return plainError(fmt.Sprintf("message.body is not decoded: it has %d bytes, and the memory limit of the worker allows for %d; "+
			"raise that limit, or let the expression read a header", size, b.limit))
	}
	b.of(size).take(queue, int64(size))
	return nil
}

// tryTake takes the room that a body needs if there is enough at once.
func (b *Bodies) tryTake(size int) bool {
	return b == nil || b.of(size).tryTake(int64(size))
}

func (b *Bodies) give(size int) {
	if b != nil {
		b.of(size).give(int64(size))
	}
}

// of is where a body of this size has its room.
func (b *Bodies) of(size int) *line {
	if int64(size) <= b.limit/smallBodies {
		return b.small
	}
	return b.large
}
