package retry

import (
	"bytes"
	"fmt"
	"math"
)

const (
	// quickBody is how large a body is at most that takes a few milliseconds to decode, in bytes.
	quickBody = 32 << 10
	// smallBodies is the part of all room up to which such a body is small, and shareOfSmall the part that small ones have for themselves,
	// but for what is more than quickBodies of them for each processor.
	smallBodies  = 64
	shareOfSmall = 8
	quickBodies  = 4
)

// Bodies is the memory that all decoded bodies of a process may take together, told in bytes of bodies as they came. A body waits until
// there is room for it. Small ones have a share of their own beside it: a large one takes all the room, and a third of a second to decode,
// so that nothing else went on while somebody sent many. It is safe for concurrent use.
type Bodies struct {
	// limit is the size of the largest body that is decoded, and most that of the largest small one.
	limit, most int64
	// least is what a large body takes at least.
	least        int64
	large, small *line
}

// NewBodies makes an account; a limit of 0 is none. At most as many large bodies are decoded at a time as there are processors: they would be
// done no sooner, and everybody else would wait for a processor behind all of them.
func NewBodies(limit int64, processors int) *Bodies {
	if limit <= 0 {
		limit = math.MaxInt64
	}
	small := min(limit/shareOfSmall, quickBodies*quickBody*int64(processors))
	return &Bodies{
		limit: limit, most: min(limit/smallBodies, quickBody), least: limit / int64(processors),
		large: newLine(limit, 0, limit), small: newLine(small, 0, small),
	}
}

// take waits for the room that a body needs. The error says that it never fits. Nobody who has room waits for anything but the
// processor, so that the wait ends.
func (b *Bodies) take(queue string, size int) error {
	switch {
	case b == nil:
		return nil
	case int64(size) > b.limit:
		return plainError(fmt.Sprintf("message.body is not decoded: it counts as %d bytes, and the memory limit of the worker allows for %d; "+
			"raise that limit, or let the expression read a header", size, b.limit))
	}
	from, room := b.roomOf(size)
	from.take(queue, room)
	return nil
}

// tryTake takes the room that a body needs if there is enough at once.
func (b *Bodies) tryTake(size int) bool {
	if b == nil {
		return true
	}
	from, room := b.roomOf(size)
	return from.tryTake(room)
}

func (b *Bodies) give(queue string, size int) {
	if b != nil {
		to, room := b.roomOf(size)
		to.give(queue, room, int64(size))
	}
}

// Decoded is the decoded body of one message: keys, rules and strategies that read it have it decoded once. Its memory is taken from Bodies until LetGo.
// Whoever keeps it must wait for nothing but the processor meanwhile, for others wait for its room. The zero value is a body that nobody has read. It
// is not safe for concurrent use.
type Decoded struct {
	done  bool
	value any
	err   error
	// from is where weight, the size by which the body is counted, was taken, for the message's queue.
	from   *Bodies
	queue  string
	weight int
}

// LetGo gives the memory of the decoded body back. Whoever reads it next decodes it anew, but one that cannot be decoded is not tried again.
func (d *Decoded) LetGo() {
	if d.weight > 0 {
		d.from.give(d.queue, d.weight)
	}
	*d = Decoded{done: d.err != nil, err: d.err}
}

// What a body becomes when it is decoded, in bytes: an object or a list, an element of either; and how many times its length is allowed for.
const (
	perNesting = 350
	perElement = 48
	perByte    = 32
)

// weightOf is the size of the body by which it is counted: its length, or, where it becomes more than perByte times that, as many objects in each
// other do, what allows for that.
func weightOf(body []byte) int {
	if len(body) <= quickBody {
		return len(body)
	}
	nested := bytes.Count(body, []byte("{")) + bytes.Count(body, []byte("["))
	return max(len(body), (len(body)+perNesting*nested+perElement*bytes.Count(body, []byte(",")))/perByte)
}

// roomOf is what a body of this size takes, and of what.
func (b *Bodies) roomOf(size int) (*line, int64) {
	if int64(size) <= b.most {
		return b.small, int64(size)
	}
	return b.large, max(int64(size), b.least)
}
