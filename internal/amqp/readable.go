package amqp

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"slices"

	"redrive.dev/redrive/internal/message"
)

// headerUnreadable marks a delivery whose headers were withheld from the client library.
const headerUnreadable = message.HeaderPrefix + "unreadable"

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

// readable is a connection of which the client library can read every frame. The broker takes messages whose headers
// nest deeper, or have more entries, than the library reads, and makes headers longer than a frame when it dead-letters.
// The library ends the connection over such a message, and again over its redelivery: it would stop every queue. Here its
// headers are replaced by a mark, by which the worker knows to leave the message, whole, to the broker.
type readable struct {
	net.Conn

	in *bufio.Reader
	// ready is read first, then pass bytes of in as they are.
	ready []byte
	pass  int
}

func newReadable(conn net.Conn) *readable {
	return &readable{Conn: conn, in: bufio.NewReader(conn)}
}

// Read implements net.Conn.
func (r *readable) Read(p []byte) (int, error) {
	if len(r.ready) == 0 && r.pass == 0 {
		if err := r.next(); err != nil {
			return 0, err
		}
	}
	if len(r.ready) > 0 {
		n := copy(p, r.ready)
		r.ready = r.ready[n:]
		return n, nil
	}
	n, err := r.in.Read(p[:min(len(p), r.pass)])
	r.pass -= n
	return n, err //nolint:wrapcheck // a net.Conn gives the errors of its socket
}

// next reads the head of a frame, and of a content header all of it.
func (r *readable) next() error {
	head := make([]byte, frameHead)
	if _, err := io.ReadFull(r.in, head); err != nil {
		return err //nolint:wrapcheck // as above
	}
	r.ready, r.pass = head, int(binary.BigEndian.Uint32(head[3:]))+frameEnd
	if head[0] != contentHeader || r.pass > 2*frameMax {
		return nil
	}
	payload := make([]byte, r.pass)
	if _, err := io.ReadFull(r.in, payload); err != nil {
		return err //nolint:wrapcheck // as above
	}
	payload = withReadableHeaders(payload)
	binary.BigEndian.PutUint32(head[3:], uint32(len(payload)-frameEnd)) //nolint:gosec // at most what it was
	r.ready, r.pass = slices.Concat(head, payload), 0
	return nil
}

// withReadableHeaders returns the payload of a content header, with its headers replaced if the library could not read it.
func withReadableHeaders(payload []byte) []byte {
	if len(payload) < propertyFlags+2 {
		return payload
	}
	flags := binary.BigEndian.Uint16(payload[propertyFlags:])
	if flags&flagHeaders == 0 {
		return payload
	}
	rest := payload[propertyFlags+2:]
	for _, flag := range []uint16{flagContentType, flagEncoding} {
		if flags&flag != 0 {
			_, rest, _ = cut(rest, 1)
		}
	}
	before := payload[:len(payload)-len(rest)]
	table, after, ok := cut(rest, 4)
	if !ok || len(payload)-frameEnd <= frameMax-frameHead-frameEnd && readableFields(table, true, 0) {
		return payload
	}
	mark := append([]byte{byte(len(headerUnreadable))}, headerUnreadable+"t\x01"...)
	replaced := append([]byte(nil), before...)
	replaced = binary.BigEndian.AppendUint32(replaced, uint32(len(mark))) //nolint:gosec // a few bytes
	return append(append(replaced, mark...), after...)
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
