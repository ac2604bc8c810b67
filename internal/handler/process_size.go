package handler

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"

	"redrive.dev/redrive/internal/message"
)

// Framer is a Handler that writes each message anew for who handles it, into memory of its own.
type Framer interface {
	// FrameSize is how many bytes a message takes there: it is never below that, and above it by little more than Redrive's own headers.
	FrameSize(m *message.Message) int
}

// aroundSize is what the names of all fields of a frame take, with its numbers and times, the idempotency key and the traceparent of an
// attempt that is traced.
const aroundSize = 1 << 10

// longestValue is what a header takes at most that is neither a text nor holds others; the longest is a time.
const longestValue = len(`"2006-01-02T15:04:05.123456789Z"`)

// FrameSize implements Framer. Redrive's own headers count, for what they say stands elsewhere in the frame.
func (p *Process) FrameSize(m *message.Message) int {
	size := aroundSize + tableSize(m.Headers, 0)
	for _, property := range [...]string{
		m.MessageID, m.Exchange, m.RoutingKey, m.Type, m.CorrelationID, m.ReplyTo, m.AppID, m.UserID, m.Expiration, m.ContentType, m.ContentEncoding,
	} {
		size += stringSize(property)
	}
	for _, name := range [...]string{"type", "traceparent", "tracestate"} { // these stand in it a second time
		if value, there := m.Headers[name]; there {
			size += headerSize(value, 0)
		}
	}
	if !utf8.Valid(m.Body) {
		return size + base64.StdEncoding.EncodedLen(len(m.Body))
	}
	return size + textSize(m.Body)
}

// growFor makes the room for headers and what is around the body at once, where the headers are large.
func growFor(to []byte, headers map[string]any) []byte {
	if message.HeaderSize(headers) <= partSize {
		return to
	}
	return slices.Grow(to, tableSize(headers, 0)+aroundSize)
}

// tableSize is how many bytes appendTable appends, where it appends numbers and times as long as they can be.
func tableSize(table map[string]any, depth int) int {
	size := len(`{}`) + max(0, len(table)-1)
	for name, value := range table {
		size += len(`"":`) + stringSize(name) + headerSize(value, depth+1)
	}
	return size
}

// headerSize is how many bytes appendHeader appends, as tableSize.
func headerSize(value any, depth int) int {
	if depth > maxHeaderDepth {
		return len("null")
	}
	switch v := value.(type) {
	case nil, bool:
		return len("false")
	case string:
		return len(`""`) + stringSize(v)
	case []byte:
		return len(`""`) + stringSize(string(v))
	case map[string]any:
		return tableSize(v, depth)
	case []any:
		size := len(`[]`) + max(0, len(v)-1)
		for _, item := range v {
			size += headerSize(item, depth+1)
		}
		return size
	}
	return longestValue
}

// stringSize is how many bytes a text takes that need not be UTF-8.
func stringSize(text string) int {
	begin := plain(text, true)
	size, text := len(text), text[begin:]
	if text == "" {
		return size
	}
	var space [longestEscape]byte
	for i := range len(text) {
		if c := text[i]; c < utf8.RuneSelf && special[c] {
			size += len(appendEscape(space[:0], c)) - 1
		}
	}
	for _, separator := range separators {
		size += strings.Count(text, separator.text) * (len(separator.escaped) - len(separator.text))
	}
	for !utf8.ValidString(text) {
		size += len(string(utf8.RuneError)) - 1
		text = text[validSize(text)+1:]
	}
	return size
}

// usualSize is how many bytes most texts take, and quick to tell.
func usualSize(text []byte) int {
	return len(text) + bytes.Count(text, []byte{'"'}) + bytes.Count(text, []byte{'\\'}) + bytes.Count(text, []byte{'\n'})
}

// textSize is how many bytes a text takes.
func textSize(text []byte) int {
	size := usualSize(text)
	if n := controls(text) - bytes.Count(text, []byte{'\n'}); n > 0 {
		short := bytes.Count(text, []byte{'\r'}) + bytes.Count(text, []byte{'\t'})
		size += short + (n-short)*(longestEscape-1)
	}
	for _, separator := range separators {
		size += bytes.Count(text, []byte(separator.text)) * (len(separator.escaped) - len(separator.text))
	}
	return size
}

// controls counts the control characters of ASCII that JSON does not allow, eight bytes at a time.
func controls(body []byte) (n int) {
	for ; len(body) >= 8; body = body[8:] {
		word := binary.LittleEndian.Uint64(body)
		n += bits.OnesCount64(^(word | tops - ones*' ') & ^word & tops)
	}
	for _, c := range body {
		if c < ' ' {
			n++
		}
	}
	return n
}
