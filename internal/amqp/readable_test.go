package amqp

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// contents are the parts of a content header that matter here.
type contents struct {
	contentType, encoding string
	// table are the headers without their length; nil for none.
	table []byte
	after []byte
}

func (c *contents) frame() []byte {
	payload := append([]byte(nil), strings.Repeat("\x00", propertyFlags)...)
	flags := uint16(flagContentType | flagEncoding)
	if c.table != nil {
		flags |= flagHeaders
	}
	payload = binary.BigEndian.AppendUint16(payload, flags)
	for _, text := range []string{c.contentType, c.encoding} {
		payload = append(append(payload, byte(len(text))), text...)
	}
	if c.table != nil {
		payload = append(binary.BigEndian.AppendUint32(payload, uint32(len(c.table))), c.table...)
	}
	return frame(contentHeader, append(payload, c.after...))
}

// long is a table of one entry that takes so many bytes.
func long(size int) []byte {
	entry := binary.BigEndian.AppendUint32([]byte{1, 'h', 'S'}, uint32(size-7))
	return append(entry, strings.Repeat("x", size-7)...)
}

// readAll reads what a broker sends through a new readable, with a limit of its own.
func readAll(t *testing.T, from io.Reader, limit int) (*readable, []byte) {
	t.Helper()
	r := newReadable(from)
	r.agreed(limit)
	got, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return r, got
}

func TestReadable_ReplacesHeadersLongerThanAFrame(t *testing.T) {
	for _, size := range []int{frameMax, 2*frameMax + 1, 3 * frameMax, 16 << 20} {
		c := contents{contentType: "a/b", encoding: strings.Repeat("e", 255), table: long(size), after: []byte("the rest")}
		next := frame(3, []byte("body"))
		r, got := readAll(t, iotest.HalfReader(bytes.NewReader(append(c.frame(), next...))), frameMax)
		c.table = r.marks[tableSize:]
		if !bytes.Equal(got, append(c.frame(), next...)) {
			t.Errorf("headers of %d bytes: %d bytes arrived, want the mark instead of them", size, len(got))
		}
	}
}

func TestReadable_MeasuresHeadersByTheAgreedFrameSize(t *testing.T) {
	const agreed = 64 << 10
	c := contents{contentType: "a/b", table: long(agreed / 2)}
	spare := agreed - len(c.frame())
	for _, over := range []int{0, 1, agreed} {
		c.table = long(agreed/2 + spare + over)
		sent := c.frame()
		r, got := readAll(t, bytes.NewReader(sent), agreed)
		if over == 0 {
			if !bytes.Equal(got, sent) {
				t.Error("a frame of just the size that was agreed on is changed")
			}
			continue
		}
		want := contents{contentType: "a/b", table: r.marks[tableSize:]}
		if !bytes.Equal(got, want.frame()) {
			t.Errorf("a frame that is %d bytes too long arrived with %d bytes", over, len(got))
		}
	}
}

func TestReadable_BoundsMemoryForHeaders(t *testing.T) {
	c := contents{table: long(64 << 20)}
	sent := c.frame()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err := io.Copy(io.Discard, newReadable(bytes.NewReader(sent))); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	allocated := after.TotalAlloc - before.TotalAlloc
	if allocated > 4*frameMax {
		t.Errorf("%d bytes were allocated for headers of %d", allocated, len(c.table))
	}
}

// FuzzContentHeaders expects every frame as it was sent, or else, of a content header, all but its headers, and never a frame
// that is larger than what was agreed on.
func FuzzContentHeaders(f *testing.F) {
	f.Add("a/b", "gzip", []byte{1, 'h', 'V'}, []byte{2}, uint32(0), uint16(4096), true)
	f.Add("", "", []byte{1, 'h', 'F', 0, 0, 0, 3, 1, 'i', 'V'}, []byte("after"), uint32(70_000), uint16(8192), true)
	f.Add(strings.Repeat("t", 255), strings.Repeat("e", 255), []byte{1, 'h', '?'}, bytes.Repeat([]byte{9}, 2058), uint32(90_000), uint16(65_535), false)
	f.Add("", "", []byte{255, 'h', 'S', 255, 255, 255, 255}, []byte{}, uint32(1), uint16(4096), true)
	f.Fuzz(func(t *testing.T, contentType, encoding string, table, after []byte, padding uint32, limit uint16, headers bool) {
		if len(contentType) > 255 || len(encoding) > 255 || len(after) > 2058 || limit < 4096 {
			return // no message
		}
		c := contents{contentType: contentType, encoding: encoding, after: after}
		if headers {
			c.table = table
			if padding %= 100_000; padding > 7 {
				c.table = append(append([]byte(nil), table...), long(int(padding))...)
			}
			if c.table == nil {
				c.table = []byte{}
			}
		}
		next := frame(1, []byte("a method"))
		sent := append(c.frame(), next...)
		r, got := readAll(t, bytes.NewReader(sent), int(limit))
		if _, slow := readAll(t, iotest.HalfReader(bytes.NewReader(sent)), int(limit)); len(slow) != len(got) {
			t.Errorf("%d bytes arrived where it came in pieces, and %d where not", len(slow), len(got))
		}
		if bytes.Equal(got, sent) {
			if headers && (len(c.frame()) > int(limit) || !readableFields(c.table, true, 0)) {
				t.Error("headers that the library cannot read arrived")
			}
			return
		}
		if !headers || len(c.frame()) <= int(limit) && readableFields(c.table, true, 0) {
			t.Error("headers that the library can read were replaced")
		}
		c.table = r.marks[tableSize:]
		if want := append(c.frame(), next...); !bytes.Equal(got, want) || len(c.frame()) > int(limit) {
			t.Errorf("got %q, want %q, of at most %d bytes", got, want, limit)
		}
	})
}
