package amqp

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync"
)

// largeBody is the size from which on a body is read apart from the client library, in bytes: it takes more than one frame, and the
// library puts it together in ever larger copies.
const largeBody = frameMax

// longestDeliver is the most of a frame that begins a delivery which has to be seen: class, method, the consumer's tag and that of the
// delivery, and whether it came before.
const longestDeliver = frameHead + 2 + 2 + 1 + 255 + 8 + 1

var errTooMuch = errors.New("the broker sent more of a body than it had announced")

// basicDeliver is the class and the method of that frame.
const basicDeliver = 60<<16 | 60

// bodies are the large bodies of one connection. Each is read into memory of just its size, and handed out to whoever has the delivery,
// which the library gets without it.
type bodies struct {
	// coming are the deliveries that were announced last, by channels, and reading those whose bodies are being read. Both are used
	// by who reads the connection only.
	coming  map[[2]byte]announcement
	reading map[[2]byte]*apartBody

	mu sync.Mutex
	// read are those that nobody has fetched yet.
	read map[delivered][]byte
}

// delivered is a delivery on a connection. Consumers' tags are not used twice on it.
type delivered struct {
	consumer string
	tag      uint64
}

// announcement is a delivery that is about to come.
type announcement struct {
	of delivered
	// redelivered is true where it came before.
	redelivered bool
}

// apartBody is one that is being read.
type apartBody struct {
	of delivered
	// header is the frame of its properties, as the library is to get it when the body has been read.
	header []byte
	// body has been read up to n.
	body []byte
	n    int
}

func newBodies() *bodies {
	return &bodies{coming: map[[2]byte]announcement{}, reading: map[[2]byte]*apartBody{}, read: map[delivered][]byte{}}
}

// announced looks at the front of a method's frame. One on a channel whose body is not complete ends that body, and left is its size.
func (b *bodies) announced(front []byte) (left int) {
	channel := [2]byte(front[1:3])
	if its := b.reading[channel]; its != nil {
		left = len(its.body)
		delete(b.reading, channel)
	}
	payload := front[frameHead:]
	if len(payload) < 5 || binary.BigEndian.Uint32(payload) != basicDeliver {
		return left
	}
	consumer, rest, ok := cut(payload[4:], 1)
	if !ok || len(rest) < 8+1 {
		return left
	}
	its := b.coming[channel].of.consumer
	if its != string(consumer) { // else no text is made for each delivery
		its = string(consumer)
	}
	b.coming[channel] = announcement{delivered{its, binary.BigEndian.Uint64(rest)}, rest[8]&1 != 0}
	return left
}

// cameBack is true of the content header of a delivery that came before.
func (b *bodies) cameBack(front []byte) bool { return b.coming[[2]byte(front[1:3])].redelivered }

// begins is true of the content header of a large body, which is then read here.
func (b *bodies) begins(front []byte) bool {
	channel, size := [2]byte(front[1:3]), sizeOfBody(front)
	if size <= largeBody || b.coming[channel].of.consumer == "" {
		return false
	}
	b.reading[channel] = &apartBody{of: b.coming[channel].of, body: make([]byte, size)}
	return true
}

// keep takes the frame that is to follow the body of a channel.
func (b *bodies) keep(channel [2]byte, header []byte) { b.reading[channel].header = header }

// isReading is true of a frame of a body that is read here.
func (b *bodies) isReading(head []byte) bool { return b.reading[[2]byte(head[1:3])] != nil }

// readFrame reads one of a body. Behind the last one it returns the header that was kept.
func (b *bodies) readFrame(in *bufio.Reader, head []byte, size int) (header []byte, err error) {
	channel := [2]byte(head[1:3])
	its := b.reading[channel]
	payload := size - frameHead - frameEnd
	if payload > len(its.body)-its.n {
		return nil, errTooMuch
	}
	_, _ = in.Discard(frameHead) // it is there
	if _, err := io.ReadFull(in, its.body[its.n:its.n+payload]); err != nil {
		return nil, err //nolint:wrapcheck // an io.Reader gives the errors of its source
	}
	if _, err := in.Discard(frameEnd); err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	if its.n += payload; its.n < len(its.body) {
		return nil, nil
	}
	delete(b.reading, channel)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.read[its.of] = its.body
	return its.header, nil
}

// fetch hands out the body of a delivery, once; nil where it was not read here.
func (b *bodies) fetch(consumer string, tag uint64) []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	of := delivered{consumer, tag}
	body := b.read[of]
	delete(b.read, of)
	return body
}

// drop forgets what was read for the consumers whose tags begin so, and returns its size together.
func (b *bodies) drop(prefix string) (size int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for of, body := range b.read {
		if strings.HasPrefix(of.consumer, prefix) {
			size += len(body)
			delete(b.read, of)
		}
	}
	return size
}
