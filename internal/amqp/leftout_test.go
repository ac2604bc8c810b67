package amqp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// A message that came back was read whole, beside all that is on loan, though only its properties are looked at.
func TestReadable_TakesOffABodyThatIsNotNeeded(t *testing.T) {
	header := func(channel byte, size int, table []byte) []byte {
		c := contents{contentType: "a/b", table: table, after: []byte("the rest")}
		sent := on(channel, c.frame())
		binary.BigEndian.PutUint64(sent[frameHead+bodySize:], uint64(size))
		return sent
	}
	body := func(channel byte, size int) []byte {
		return on(channel, frame(contentBody, []byte(strings.Repeat("x", size))))
	}
	method := on(1, frame(1, []byte("a method")))
	for name, table := range map[string][]byte{"with headers": long(100), "without headers": nil, "with large headers": long(frameMax / 2)} {
		for _, size := range []int{0, 1, 700, 70_000, 1 << 20} {
			var sent, want []byte
			for range 2 { // a message after the other, between the frames of another channel
				sent, want = append(sent, method...), append(want, method...)
				sent, want = append(sent, header(1, size, table)...), append(want, header(1, 0, table)...)
				sent, want = append(sent, header(2, 10, nil)...), append(want, header(2, 0, nil)...)
				for left := size; left > 0; left -= min(left, 50_000) {
					sent = append(sent, body(1, min(left, 50_000))...)
				}
				sent = append(sent, body(2, 10)...)
			}
			for _, slow := range []bool{false, true} {
				from := iotest.DataErrReader(bytes.NewReader(sent))
				if slow {
					from = iotest.HalfReader(bytes.NewReader(sent))
				}
				r := newReadable(from)
				r.bodiless.Store(true)
				if got, err := io.ReadAll(r); err != nil && !errors.Is(err, io.EOF) || !bytes.Equal(got, want) {
					t.Errorf("%s, a body of %d bytes: %d bytes arrive, want %d, %v", name, size, len(got), len(want), err)
				}
			}
		}
	}
}

// on is a frame of another channel.
func on(channel byte, sent []byte) []byte {
	sent = bytes.Clone(sent)
	sent[2] = channel
	return sent
}

// A message of 128 MiB ended a worker of 256 MiB while it was received, 21 times.
func TestReadable_PassesOnNoBodyThatIsTooLarge(t *testing.T) {
	const limit = 1000
	header := func(size int, table []byte) []byte {
		c := contents{contentType: "a/b", table: table, after: []byte("the rest")}
		sent := c.frame()
		binary.BigEndian.PutUint64(sent[frameHead+bodySize:], uint64(size))
		return sent
	}
	body := func(size int) []byte { return frame(contentBody, []byte(strings.Repeat("x", size))) }
	for name, table := range map[string][]byte{"with headers": long(100), "without headers": nil, "with endless headers": long(2 * frameMax)} {
		for _, size := range []int{0, 1, limit, limit + 1, 100 * limit} {
			var sent, other []byte
			sent = append(sent, on(1, header(size, table))...)
			for left := size; left > 0; left -= min(left, 700) {
				sent = append(sent, on(1, body(min(left, 700)))...)
				other = append(other, on(2, body(10))...) // other channels are in between
				sent = append(sent, on(2, body(10))...)
			}
			next := append(on(1, frame(1, []byte("a method"))), append(on(1, header(3, nil)), on(1, body(3))...)...)
			sent = append(sent, next...)
			for _, slow := range []bool{false, true} {
				from := iotest.DataErrReader(bytes.NewReader(sent))
				if slow {
					from = iotest.HalfReader(bytes.NewReader(sent))
				}
				r := newReadable(from)
				r.bodyMax.Store(limit)
				got := make([]byte, 0, len(sent))
				buffer := make([]byte, 512)
				for {
					n, err := r.Read(buffer)
					got = append(got, buffer[:n]...)
					if err != nil {
						break
					}
				}
				switch {
				case !bytes.HasSuffix(got, next):
					t.Errorf("%s, a body of %d bytes: what follows is not passed on", name, size)
				case size <= limit && len(table) < frameMax && !bytes.Equal(got, sent):
					t.Errorf("%s, a body of %d bytes is not passed on as it is", name, size)
				case size > limit && (!bytes.HasSuffix(got, append(bytes.Clone(other), next...)) || len(got) > len(other)+len(next)+200):
					t.Errorf("%s, a body of %d bytes: %d bytes arrive", name, size, len(got))
				case size > limit && !bytes.Contains(got, binary.BigEndian.AppendUint64([]byte(r.mark+"l"), uint64(size))):
					t.Errorf("%s, a body of %d bytes: its size is not told", name, size)
				}
			}
		}
	}
}
