package amqp

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"io"
	"math"
	"sync/atomic"
	"time"

	"redrive.dev/redrive/internal/message"
)

// headerUnreadable starts the name of the header that marks a delivery whose headers were withheld from the client library.
const headerUnreadable = message.HeaderPrefix + "unreadable-"

// What the client library reads. Beyond it, it ends the connection.
const (
	frameMax    = 128 << 10
	maxDepth    = 32
	maxElements = 8192
)

// Parts of AMQP's frames.
const (
	frameHead       = 7 // type, channel and size
	frameEnd        = 1
	method          = 1  // the type of the frames that are neither of both below
	contentHeader   = 2  // the type of the frame that holds a message's properties
	contentBody     = 3  // the type of the frames that hold its body
	bodySize        = 4  // where in a content header the size of the body is
	propertyFlags   = 12 // where in it the flags are, and after them the properties
	tableSize       = 4  // in front of the headers
	flagContentType = 1 << 15
	flagEncoding    = 1 << 14
	flagHeaders     = 1 << 13
)

// readBuffer is as large as nearly all frames are.
const readBuffer = 32 << 10

// longestFront is the most that comes before the headers in a content header's frame, with their length: two short strings beside
// what has a fixed size.
const longestFront = frameHead + propertyFlags + 2 + 2*(1+math.MaxUint8) + tableSize

// readable is what the broker sends, of which the client library can read every frame. The broker takes messages whose headers
// nest deeper, or have more entries, than the library reads, and makes headers longer than a frame when it dead-letters: there
// is no bound to that, for it repeats the keys of CC for each queue. The library ends the connection over such a message, and
// again over its redelivery: it would stop every queue. Here its headers are replaced by a mark, by which the worker knows to
// leave the message, whole, to the broker. Headers that are longer than a frame are never kept in memory.
type readable struct {
	in *bufio.Reader
	// read is when something was last read.
	read time.Time
	// mark is the name of the header. No producer can know it, for it is drawn for each connection.
	mark string
	// marks are headers that consist of the mark alone.
	marks []byte
	// unread are the bytes of bodies, by their channels, that are not passed on.
	unread map[[2]byte]uint64
	// apart are the bodies that are read here.
	apart *bodies
	// bodyMax is the largest body that is passed on, in bytes; 0 is no limit. A larger one is left out: it would end the process before
	// anybody saw it.
	bodyMax atomic.Int64
	// bodiless is true where no body is passed on: each message comes as an empty one, with all else that it has.
	bodiless atomic.Bool
	// door is where bodies take the room for which they wait, and entered is true once the next one has it. Nothing is waited for
	// once ended is closed.
	door    atomic.Pointer[door]
	entered bool
	ended   <-chan struct{}
	// frameMax is the size of the largest frame that the library reads, in bytes.
	frameMax atomic.Int64
	// replaced is read first, then pass bytes of in as they are.
	replaced []byte
	pass     int
}

func newReadable(conn io.Reader) *readable {
	r := &readable{unread: map[[2]byte]uint64{}, apart: newBodies(), mark: headerUnreadable + rand.Text()}
	r.in = bufio.NewReaderSize(reading(func(p []byte) (int, error) {
		n, err := conn.Read(p)
		r.read = time.Now()
		return n, err //nolint:wrapcheck // an io.Reader gives the errors of its source
	}), readBuffer)
	entry := append([]byte{byte(len(r.mark))}, r.mark+"t\x01"...)                      //nolint:gosec // a short name
	r.marks = append(binary.BigEndian.AppendUint32(nil, uint32(len(entry))), entry...) //nolint:gosec // as above
	r.frameMax.Store(frameMax)
	return r
}

// reading is an io.Reader.
type reading func(p []byte) (int, error)

// Read implements io.Reader.
func (r reading) Read(p []byte) (int, error) { return r(p) }

// agreed takes over the size of a frame, in bytes, that both sides agreed on: the library reads no larger ones.
func (r *readable) agreed(frameMax int) {
	if frameMax > 0 {
		r.frameMax.Store(int64(frameMax))
	}
}

// Read implements io.Reader. It gives as many frames as have arrived, and waits only for the first.
func (r *readable) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(r.replaced) == 0 && r.pass == 0 {
			if n > 0 && !r.arrived() {
				return n, nil
			}
			if err := r.next(); err != nil {
				return n, err
			}
		}
		if len(r.replaced) > 0 {
			copied := copy(p[n:], r.replaced)
			r.replaced = r.replaced[copied:]
			n += copied
			continue
		}
		if r.pass == 0 {
			continue // what came is not passed on
		}
		if n > 0 && r.in.Buffered() == 0 {
			return n, nil
		}
		passed, err := r.in.Read(p[n:min(len(p), n+r.pass)])
		r.pass -= passed
		n += passed
		if err != nil {
			return n, err //nolint:wrapcheck // an io.Reader gives the errors of its source
		}
	}
	return n, nil
}

// arrived tells whether next has what it needs.
func (r *readable) arrived() bool {
	if r.in.Buffered() < frameHead {
		return false
	}
	head, _ := r.in.Peek(frameHead) // it is there
	if head[0] == contentBody && !r.isUnread(head) && !r.apart.isReading(head) {
		return true
	}
	size := frameSize(head)
	if head[0] == method {
		return r.in.Buffered() >= min(size, longestDeliver)
	}
	if r.in.Buffered() < size {
		return false
	}
	front, _ := r.in.Peek(min(size, longestFront)) // as above
	return head[0] != contentHeader || r.isTooLarge(front) || r.enters(front)
}

// enters is true where the body of a content header has room at once.
func (r *readable) enters(front []byte) bool {
	if !r.entered && hasBody(front) {
		r.entered = r.door.Load().enter(int64(sizeOfBody(front))) || r.replaces(front) //nolint:gosec // it is not too large
		return r.entered
	}
	return true
}

// waits is true where the body of a content header has room before it is too late to wait.
func (r *readable) waits(front []byte) bool {
	entered := r.enters(front) || r.door.Load().await(r.ended, r.read, int64(sizeOfBody(front))) || r.replaces(front) //nolint:gosec // as above
	r.entered = false
	return entered
}

// replaces is true where the body of a content header that came back has the room that is kept for another one.
func (r *readable) replaces(front []byte) bool {
	return r.apart.cameBack(front) && r.door.Load().enterInPlace(int64(sizeOfBody(front))) //nolint:gosec // as above
}

// isUrgent is true of a content header that came back often, whose body then has room after all. It is looked for in headers that fit the buffer.
// A message that comes for the first time has no count but one that its producer wrote.
func (r *readable) isUrgent(front []byte, size int) bool {
	if !r.apart.cameBack(front) {
		return false
	}
	frame, err := r.in.Peek(min(size, r.in.Size()))
	if err != nil || len(frame) < size {
		return false
	}
	parts, ok := partsOf(frame, size)
	return ok && deliveriesIn(frame[parts.before+tableSize:parts.before+parts.table]) >= urgentReturns &&
		r.door.Load().enterUrgently(int64(sizeOfBody(frame))) //nolint:gosec // it is not too large
}

// deliveriesIn is the delivery count that stands in a table of headers; 0 where none does.
func deliveriesIn(fields []byte) uint64 {
	for len(fields) > 0 {
		name, rest, ok := cut(fields, 1)
		if !ok || len(rest) == 0 {
			return 0
		}
		kind, rest := rest[0], rest[1:]
		size := fixedSize(kind)
		if size < 0 {
			if _, fields, ok = cut(rest, 4); !ok {
				return 0
			}
			continue
		}
		if size > len(rest) {
			return 0
		}
		if kind == 'l' && string(name) == headerDeliveryCount {
			return binary.BigEndian.Uint64(rest)
		}
		fields = rest[size:]
	}
	return 0
}

// next looks at the head of a frame, and at the headers in a content header.
func (r *readable) next() error {
	head, err := r.in.Peek(frameHead)
	if err != nil {
		return err //nolint:wrapcheck // as above
	}
	size := frameSize(head)
	switch {
	case r.isUnread(head):
		return r.discard(head, size)
	case head[0] == contentBody && r.apart.isReading(head):
		r.replaced, err = r.apart.readFrame(r.in, head, size)
		return err
	case head[0] == contentHeader:
		return r.header(size)
	case head[0] == method:
		var front []byte
		if front, err = r.in.Peek(min(size, longestDeliver)); err == nil {
			r.door.Load().gone(int64(r.apart.announced(front)))
		}
	}
	r.pass = size
	return err //nolint:wrapcheck // as above
}

// header passes on a content header that the library can read: at once, or behind a body that is read here.
func (r *readable) header(size int) error {
	front, err := r.in.Peek(min(size, longestFront))
	if err != nil {
		return err //nolint:wrapcheck // as above
	}
	if r.bodiless.Load() && hasBody(front) {
		r.takeOff(front)
	}
	switch {
	case r.isTooLarge(front):
		return r.leaveOut(front, size, 1)
	case !r.waits(front):
		urgent := r.isUrgent(front, size)
		if front, err = r.in.Peek(len(front)); err != nil { // it may stand elsewhere now
			return err //nolint:wrapcheck // as above
		}
		if !urgent {
			return r.leaveOut(front, size, -1)
		}
	}
	if r.door.Load() == nil || !hasBody(front) || !r.apart.begins(front) {
		return r.properties(front, size)
	}
	channel := [2]byte(front[1:3])
	r.door.Load().apart(int64(sizeOfBody(front))) //nolint:gosec // it is not too large
	binary.BigEndian.PutUint64(front[frameHead+bodySize:], 0)
	if err := r.properties(front, size); err != nil {
		return err
	}
	kept := append(make([]byte, 0, len(r.replaced)+r.pass), r.replaced...)[:len(r.replaced)+r.pass]
	_, err = io.ReadFull(r.in, kept[len(r.replaced):])
	r.apart.keep(channel, kept)
	r.replaced, r.pass = nil, 0
	return err //nolint:wrapcheck // as above
}

// properties passes on a content header as it is, or with the mark in place of its headers.
func (r *readable) properties(front []byte, size int) (err error) {
	parts, ok := partsOf(front, size)
	switch limit := int(r.frameMax.Load()); {
	case !ok, parts.before+parts.after > limit-len(r.marks):
		r.pass = size // there are no headers, or the rest is no message's
	case size <= limit:
		err = r.check(size, parts)
	default:
		r.replaced, err = r.marked(r.in, parts)
	}
	return err
}

// isUnread is true of a frame of a body that is not passed on.
func (r *readable) isUnread(head []byte) bool {
	return head[0] == contentBody && r.unread[[2]byte(head[1:3])] > 0
}

// discard reads a frame of a body, and passes nothing on.
func (r *readable) discard(head []byte, size int) error {
	channel := [2]byte(head[1:3])
	if left := r.unread[channel]; left > uint64(size-frameHead-frameEnd) { //nolint:gosec // a frame has a head and an end
		r.unread[channel] = left - uint64(size-frameHead-frameEnd) //nolint:gosec // as above
	} else {
		delete(r.unread, channel)
	}
	_, err := io.CopyN(io.Discard, r.in, int64(size))
	return err //nolint:wrapcheck // as above
}

// isTooLarge is true of a content header whose body is not to be read.
func (r *readable) isTooLarge(front []byte) bool {
	limit := r.bodyMax.Load()
	return limit > 0 && hasBody(front) && sizeOfBody(front) > uint64(limit)
}

// hasBody is false of a content header that is none.
func hasBody(front []byte) bool { return len(front) >= frameHead+propertyFlags+2 }

// sizeOfBody is what a content header says of the body that follows.
func sizeOfBody(front []byte) uint64 { return binary.BigEndian.Uint64(front[frameHead+bodySize:]) }

// takeOff makes a content header one without a body, where it stands in the buffer, and notes that what follows is not passed on.
func (r *readable) takeOff(front []byte) {
	if size := sizeOfBody(front); size > 0 {
		r.unread[[2]byte(front[1:3])] = size
		binary.BigEndian.PutUint64(front[frameHead+bodySize:], 0)
	}
}

// noBody stands for the size of a body that is left out where there is none: its headers may be large.
const noBody = math.MinInt64

// leaveOut passes on a content header without properties but the mark, with the size of the body that is left out: a positive number
// where it is too large, and a negative one where there is no room for it now, noBody where it has none.
func (r *readable) leaveOut(front []byte, size, sign int) error {
	body := sizeOfBody(front)
	r.unread[[2]byte(front[1:3])] = body
	told := int64(body) * int64(sign) //nolint:gosec // no body is as large as that
	if body == 0 {
		told = noBody
	}
	entry := append([]byte{byte(len(r.mark))}, r.mark+"l"...)  //nolint:gosec // a short name
	entry = binary.BigEndian.AppendUint64(entry, uint64(told)) //nolint:gosec // two's complement is what is meant
	frame := append([]byte(nil), front[:frameHead+propertyFlags]...)
	clear(frame[frameHead+bodySize:])
	frame = binary.BigEndian.AppendUint16(frame, flagHeaders)
	frame = append(binary.BigEndian.AppendUint32(frame, uint32(len(entry))), entry...) //nolint:gosec // as above
	binary.BigEndian.PutUint32(frame[3:], uint32(len(frame)-frameHead))                //nolint:gosec // as above
	frame = append(frame, frameEndMark)
	r.replaced = frame
	_, err := io.CopyN(io.Discard, r.in, int64(size))
	return err //nolint:wrapcheck // as above
}

// frameEndMark is the last byte of each frame.
const frameEndMark = 0xCE

// check looks at a content header that is not too long, for what else the library cannot read.
func (r *readable) check(size int, p parts) error {
	if size > r.in.Size() {
		frame := make([]byte, size)
		_, err := io.ReadFull(r.in, frame)
		if r.replaced = frame; err == nil && !p.readable(frame) {
			r.replaced, err = r.marked(bytes.NewReader(frame), p)
		}
		return err
	}
	frame, err := r.in.Peek(size)
	switch {
	case err != nil:
	case p.readable(frame):
		r.pass = size
	default:
		r.replaced, err = r.marked(r.in, p)
	}
	return err
}

// frameSize is that of a whole frame.
func frameSize(head []byte) int {
	return frameHead + int(binary.BigEndian.Uint32(head[3:])) + frameEnd
}

// parts are the lengths of what a content header's frame consists of: what is before the headers, the headers with their own length
// in front, and what is after them.
type parts struct{ before, table, after int }

// partsOf are those of a frame of a certain size, of which the front is known. ok is false where there are no headers.
func partsOf(front []byte, size int) (p parts, ok bool) {
	if len(front) < frameHead+propertyFlags+2 {
		return parts{}, false
	}
	flags := binary.BigEndian.Uint16(front[frameHead+propertyFlags:])
	if flags&flagHeaders == 0 {
		return parts{}, false
	}
	rest := front[frameHead+propertyFlags+2:]
	for _, flag := range [...]uint16{flagContentType, flagEncoding} {
		if flags&flag != 0 {
			if _, rest, ok = cut(rest, 1); !ok {
				return parts{}, false
			}
		}
	}
	if len(rest) < tableSize {
		return parts{}, false
	}
	p.before = len(front) - len(rest)
	p.table = tableSize + int(binary.BigEndian.Uint32(rest))
	p.after = size - p.before - p.table
	return p, p.after >= frameEnd
}

// readable tells whether the library reads the headers of a frame that is not too long for it.
func (p parts) readable(frame []byte) bool {
	return readableFields(frame[p.before+tableSize:p.before+p.table], true, 0)
}

// marked takes a content header's frame from a source, and returns it with the mark in place of its headers.
func (r *readable) marked(from io.Reader, p parts) ([]byte, error) {
	frame := make([]byte, p.before+len(r.marks)+p.after)
	copy(frame[p.before:], r.marks)
	if _, err := io.ReadFull(from, frame[:p.before]); err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	if _, err := io.CopyN(io.Discard, from, int64(p.table)); err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	if _, err := io.ReadFull(from, frame[p.before+len(r.marks):]); err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	binary.BigEndian.PutUint32(frame[3:], uint32(len(frame)-frameHead-frameEnd)) //nolint:gosec // less than a frame
	return frame, nil
}

// readableFields tells whether the library reads the fields of a table, or of a list, whose fields have no names.
func readableFields(fields []byte, named bool, depth int) bool {
	ok := true
	for n := 0; ok && len(fields) > 0; n++ {
		if named {
			_, fields, ok = cut(fields, 1)
		}
		if !ok || len(fields) == 0 || n == maxElements {
			return false
		}
		kind := fields[0]
		fields = fields[1:]
		switch kind {
		case 'S', 'x':
			_, fields, ok = cut(fields, 4)
		case 'A', 'F':
			var inner []byte
			inner, fields, ok = cut(fields, 4)
			ok = ok && depth < maxDepth && readableFields(inner, kind == 'F', depth+1)
		default:
			size := fixedSize(kind)
			if size < 0 || size > len(fields) {
				return false
			}
			fields = fields[size:]
		}
	}
	return ok
}

// fixedSize is the length of a value of this type, -1 for a type that the library does not know.
func fixedSize(kind byte) int {
	switch kind {
	case 'V':
		return 0
	case 't', 'b', 'B':
		return 1
	case 's', 'u':
		return 2
	case 'I', 'i', 'f':
		return 4
	case 'D':
		return 5
	case 'l', 'd', 'T':
		return 8
	}
	return -1
}

// cut takes off what has its length, of prefix bytes, in front.
func cut(data []byte, prefix int) (content, rest []byte, ok bool) {
	if len(data) < prefix {
		return nil, nil, false
	}
	length := 0
	for _, b := range data[:prefix] {
		length = length<<8 | int(b)
	}
	if length > len(data)-prefix {
		return nil, nil, false
	}
	return data[prefix : prefix+length], data[prefix+length:], true
}
