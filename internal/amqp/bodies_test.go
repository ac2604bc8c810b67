package amqp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/iotest"
)

// deliver is the frame that begins a delivery to a consumer.
func deliver(channel byte, consumer string, tag uint64) []byte {
	payload := append(binary.BigEndian.AppendUint32(nil, basicDeliver), byte(len(consumer)))
	payload = binary.BigEndian.AppendUint64(append(payload, consumer...), tag)
	return on(channel, frame(method, append(payload, "\x00\x00\x00"...)))
}

func sized(channel byte, size int, table []byte) []byte {
	c := contents{contentType: "a/b", table: table, after: []byte("the rest")}
	sent := on(channel, c.frame())
	binary.BigEndian.PutUint64(sent[frameHead+bodySize:], uint64(size))
	return sent
}

// The library puts a body together in ever larger copies: of one of 32 MB it took 160.
func TestBodies_HandsALargeBodyOutWithItsDelivery(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789"), 100_000)
	for name, table := range map[string][]byte{"without headers": nil, "with headers": long(100), "with large headers": long(frameMax / 2)} {
		for _, size := range []int{largeBody, largeBody + 1, len(content)} {
			var sent, want []byte
			for tag := range uint64(2) {
				sent, want = append(sent, deliver(1, "a", tag)...), append(want, deliver(1, "a", tag)...)
				sent = append(sent, sized(1, size, table)...)
				if size == largeBody {
					want = append(want, sized(1, size, table)...)
				}
				for left := content[:size]; len(left) > 0; left = left[min(len(left), 50_000):] {
					body := on(1, frame(contentBody, left[:min(len(left), 50_000)]))
					if sent = append(sent, body...); size == largeBody {
						want = append(want, body...)
					}
					small := append(append(deliver(2, "b", tag), sized(2, 4, nil)...), on(2, frame(contentBody, []byte("body")))...)
					sent, want = append(sent, small...), append(want, small...)
				}
				if size > largeBody {
					want = bytes.TrimSuffix(want, append(append(deliver(2, "b", tag), sized(2, 4, nil)...), on(2, frame(contentBody, []byte("body")))...))
					want = append(want, sized(1, 0, table)...) // behind the last of its frames
					want = append(append(append(want, deliver(2, "b", tag)...), sized(2, 4, nil)...), on(2, frame(contentBody, []byte("body")))...)
				}
			}
			for way, from := range map[string]io.Reader{"at once": bytes.NewReader(sent), "in pieces": iotest.HalfReader(bytes.NewReader(sent))} {
				t.Run(fmt.Sprint(name, size, way), func(t *testing.T) {
					room := NewRoom(10 << 20)
					r := newReadable(from)
					r.door.Store(room.door())
					if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
						t.Fatalf("%d bytes arrive, want %d: %v", len(got), len(want), err)
					}
					for tag := range uint64(2) {
						if body := r.apart.fetch("a", tag); (size > largeBody) != bytes.Equal(body, content[:size]) {
							t.Errorf("delivery %d has %d bytes of its own", tag, len(body))
						}
						if r.apart.fetch("a", tag) != nil {
							t.Error("it is handed out twice")
						}
					}
				})
			}
		}
	}
}

func TestBodies_DropsALargeBodyThatIsNotTaken(t *testing.T) {
	const size = 2 * largeBody
	body := on(1, frame(contentBody, make([]byte, largeBody)))
	whole := bytes.Join([][]byte{deliver(1, "redrive-1-1", 1), sized(1, size, nil), body, body}, nil)
	ended := bytes.Join([][]byte{deliver(1, "redrive-1-1", 2), sized(1, size, nil), body, on(1, frame(method, []byte("the channel ends")))}, nil)
	other := bytes.ReplaceAll(whole, []byte("redrive-1-1"), []byte("redrive-2-1"))

	room := NewRoom(10 * size)
	r := newReadable(bytes.NewReader(bytes.Join([][]byte{whole, ended, other}, nil)))
	r.door.Store(room.door())
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	if room.taken != 2*size {
		t.Errorf("%d bytes are taken, want %d: two bodies were read, and one not to its end", room.taken, 2*size)
	}
	if dropped := r.apart.drop("redrive-1-"); dropped != size || r.apart.fetch("redrive-2-1", 1) == nil {
		t.Errorf("%d bytes were dropped, want those of one channel, %d", dropped, size)
	}
}

func TestBodies_RefusesABodyLongerThanAnnounced(t *testing.T) {
	r := newReadable(bytes.NewReader(bytes.Join([][]byte{
		deliver(1, "a", 1), sized(1, largeBody+1, nil), on(1, frame(contentBody, make([]byte, largeBody+2))),
	}, nil)))
	r.door.Store(NewRoom(1 << 20).door())
	if _, err := io.Copy(io.Discard, r); !errors.Is(err, errTooMuch) {
		t.Errorf("%v, want %v", err, errTooMuch)
	}
}
