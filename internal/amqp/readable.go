package amqp

import (
	"bufio"
	"crypto/rand"
	"encoding/binary"
	"io"
	"slices"

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
	contentHeader   = 2  // the type of the frame that holds a message's properties
	propertyFlags   = 12 // where in it the flags are, and after them the properties
	flagContentType = 1 << 15
	flagEncoding    = 1 << 14
	flagHeaders     = 1 << 13
)

// readBuffer is as large as nearly all frames are.
const readBuffer = 32 << 10

// readable is what the broker sends, of which the client library can read every frame. The broker takes messages whose headers
// nest deeper, or have more entries, than the library reads, and makes headers longer than a frame when it dead-letters.
// The library ends the connection over such a message, and again over its redelivery: it would stop every queue. Here its
// headers are replaced by a mark, by which the worker knows to leave the message, whole, to the broker.
type readable struct {
	in *bufio.Reader
	// mark is the name of the header. No producer can know it, for it is drawn for each connection.
	mark string
	// replaced is read first, then pass bytes of in as they are.
	replaced []byte
	pass     int
}

func newReadable(conn io.Reader) *readable {
	return &readable{in: bufio.NewReaderSize(conn, readBuffer), mark: headerUnreadable + rand.Text()}
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
	return head[0] != contentHeader || r.in.Buffered() >= frameSize(head)
}

// next looks at the head of a frame, and at all of a content header.
func (r *readable) next() error {
	head, err := r.in.Peek(frameHead)
	if err != nil {
		return err //nolint:wrapcheck // as above
	}
	size := frameSize(head)
	if head[0] != contentHeader || size > 2*frameMax {
		r.pass = size
		return nil
	}
	if size <= r.in.Size() {
		frame, err := r.in.Peek(size)
		if err != nil {
			return err //nolint:wrapcheck // as above
		}
		if _, _, ok := withoutHeaders(frame[frameHead:]); ok {
			r.pass = size
			return nil
		}
	}
	frame := make([]byte, size)
	if _, err := io.ReadFull(r.in, frame); err != nil {
		return err //nolint:wrapcheck // as above
	}
	r.replaced = r.withReadableHeaders(frame)
	return nil
}

// frameSize is that of a whole frame.
func frameSize(head []byte) int {
	return frameHead + int(binary.BigEndian.Uint32(head[3:])) + frameEnd
}

// withReadableHeaders returns a content header's frame with its headers replaced by the mark, if the library could not read
// them.
func (r *readable) withReadableHeaders(frame []byte) []byte {
	before, after, ok := withoutHeaders(frame[frameHead:])
	if ok {
		return frame
	}
	mark := append([]byte{byte(len(r.mark))}, r.mark+"t\x01"...) //nolint:gosec // a short name
	replaced := append(slices.Clone(frame[:frameHead]), before...)
	replaced = binary.BigEndian.AppendUint32(replaced, uint32(len(mark))) //nolint:gosec // a few bytes
	replaced = append(append(replaced, mark...), after...)
	binary.BigEndian.PutUint32(replaced[3:], uint32(len(replaced)-frameHead-frameEnd)) //nolint:gosec // at most what it was
	return replaced
}

// withoutHeaders returns what is before and after the headers of a content header's payload. ok is true where the library
// can read them, or there are none.
func withoutHeaders(payload []byte) (before, after []byte, ok bool) {
	if len(payload) < propertyFlags+2 {
		return payload, nil, true
	}
	flags := binary.BigEndian.Uint16(payload[propertyFlags:])
	if flags&flagHeaders == 0 {
		return payload, nil, true
	}
	rest := payload[propertyFlags+2:]
	for _, flag := range [...]uint16{flagContentType, flagEncoding} {
		if flags&flag != 0 {
			_, rest, _ = cut(rest, 1)
		}
	}
	before = payload[:len(payload)-len(rest)]
	table, after, whole := cut(rest, 4)
	if !whole {
		return payload, nil, true
	}
	return before, after, len(payload)-frameEnd <= frameMax-frameHead-frameEnd && readableFields(table, true, 0)
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
