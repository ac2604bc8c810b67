package handler

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// maxHeaderDepth is how deep tables and arrays of a header may lie in each other; what lies deeper is null. The worker hands over
// no message that has more.
const maxHeaderDepth = 64

// appendMessage appends the frame of a message. It is written by hand, for it costs a good part of what the worker adds to the
// work of a fast handler; a fuzz test holds it against encoding/json.
func appendMessage(to []byte, id uint64, deadline time.Time, r *Request) []byte {
	to = append(to, `{"type":"message","id":"`...)
	to = strconv.AppendUint(to, id, 10)
	to = append(to, '"')
	if !deadline.IsZero() {
		// Rounded up: what the program does by itself at its deadline comes too late.
		to = appendMoment(append(to, `,"deadline":`...), deadline.Add(time.Millisecond-1).UTC())
	}
	to = append(to, `,"message":{"id":`...)
	to = appendText(to, r.ID)
	to = append(to, `,"idempotencyKey":`...)
	to = appendText(to, r.IdempotencyKey)
	to = append(to, `,"attempt":`...)
	to = strconv.AppendInt(to, r.Attempt, 10)
	to = append(to, `,"retries":`...)
	to = strconv.AppendInt(to, r.Retries, 10)
	to = append(to, `,"queue":`...)
	to = appendText(to, r.Queue)
	to = appendKnown(to, `,"exchange":`, r.Exchange)
	to = appendKnown(to, `,"routingKey":`, r.RoutingKey)
	to = appendKnown(to, `,"type":`, r.Type)
	to = appendKnown(to, `,"correlationId":`, r.CorrelationID)
	to = appendKnown(to, `,"replyTo":`, r.ReplyTo)
	to = appendKnown(to, `,"appId":`, r.AppID)
	to = appendKnown(to, `,"userId":`, r.UserID)
	to = appendKnown(to, `,"expiration":`, r.Expiration)
	if r.Priority > 0 {
		to = strconv.AppendUint(append(to, `,"priority":`...), uint64(r.Priority), 10)
	}
	to = appendKnown(to, `,"contentType":`, r.ContentType)
	to = appendKnown(to, `,"contentEncoding":`, r.ContentEncoding)
	to = appendKnown(to, `,"carry":`, r.Carry)
	to = appendKnown(to, `,"traceparent":`, r.Traceparent)
	to = appendKnown(to, `,"tracestate":`, r.Tracestate)
	if !r.Timestamp.IsZero() {
		to = appendTime(append(to, `,"timestamp":`...), r.Timestamp)
	}
	if !r.FirstFailure.IsZero() {
		to = appendTime(append(to, `,"firstFailure":`...), r.FirstFailure)
	}
	to = append(to, `,"headers":`...)
	to = appendTable(growFor(to, r.Headers), r.Headers, 0)
	to = appendBody(append(to, '}'), r.Body)
	return append(to, '}', '\n')
}

const (
	// longestEscape is how many bytes one of a body becomes at most.
	longestEscape = len(`\u0000`)
	// partSize is how many bytes of a body are written before it is looked whether there is room for more.
	partSize = 1 << 10
)

// appendBody appends a body as text, or in base64 where it is not UTF-8. It makes the room at once, so that a large body is not
// copied again while its frame grows.
func appendBody(to, body []byte) []byte {
	const around, end = len(`,"bodyBase64":""}` + "\n"), len(`"}` + "\n")
	if !utf8.Valid(body) {
		to = slices.Grow(to, around+base64.StdEncoding.EncodedLen(len(body)))
		to = append(to, `,"bodyBase64":"`...)
		return append(base64.StdEncoding.AppendEncode(to, body), '"')
	}
	room := longestEscape * min(len(body), partSize)
	if len(body) > partSize {
		room += usualSize(body)
	}
	to = append(slices.Grow(to, around+room), `,"body":"`...)
	separated := hasSeparators(body)
	for len(body) > 0 {
		n := len(body)
		if n > partSize {
			n = partSize
			for !utf8.RuneStart(body[n]) {
				n--
			}
		}
		if cap(to)-len(to) < longestEscape*n+end { // it has more to escape than is usual
			to = slices.Grow(to, textSize(body)+end)
		}
		to = appendEscaped(to, body[:n], separated)
		body = body[n:]
	}
	return append(to, '"')
}

// appendKnown appends a field that has a value.
func appendKnown(to []byte, name, value string) []byte {
	if value == "" {
		return to
	}
	return appendText(append(to, name...), value)
}

// appendText appends a text as JSON. Each byte that is not UTF-8 becomes U+FFFD.
func appendText(to []byte, text string) []byte {
	to = append(to, '"')
	for !utf8.ValidString(text) {
		n := validSize(text)
		to = append(appendEscaped(to, text[:n], true), string(utf8.RuneError)...)
		text = text[n+1:]
	}
	return append(appendEscaped(to, text, true), '"')
}

// validSize is how many bytes at the beginning of a text are UTF-8.
func validSize(text string) int {
	for i, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)) {
			return i
		}
	}
	return len(text)
}

// appendEscaped appends a text that is UTF-8. Where characters were special others will be soon, so it goes on byte by byte for a while.
// separated is false for a text that is known to have no separators.
func appendEscaped[T string | []byte](to []byte, text T, separated bool) []byte {
	const while = 8
	for len(text) > 0 {
		n := plain(text, separated)
		to = append(to, text[:n]...)
		i := n
		for last := i; i < len(text) && i-last < while; i++ {
			c := text[i]
			if !special[c] {
				to = append(to, c)
				continue
			}
			if c < utf8.RuneSelf {
				to = appendEscape(to, c)
			} else {
				var n int
				to, n = appendSeparator(to, text[i:])
				i += n - 1
			}
			last = i
		}
		text = text[i:]
	}
	return to
}

// separators are what JSON allows in a text, but many a library takes for the end of a line.
//
//nolint:gochecknoglobals // a table
var separators = []struct{ text, escaped string }{{"\u0085", `\u0085`}, {"\u2028", `\u2028`}, {"\u2029", `\u2029`}}

func hasSeparators(text []byte) bool {
	for _, separator := range separators {
		if bytes.Contains(text, []byte(separator.text)) {
			return true
		}
	}
	return false
}

// special are the bytes that do not stand in JSON as they are, and those that separators begin with.
//
//nolint:gochecknoglobals // a table
var special = func() (table [1 << 8]bool) {
	for c := range ' ' {
		table[c] = true
	}
	table['"'], table['\\'] = true, true
	for _, separator := range separators {
		table[separator.text[0]] = true
	}
	return table
}()

// appendSeparator appends the separator that a text begins with, or else the first byte of the text. n is how many bytes of the text
// that is.
func appendSeparator[T string | []byte](to []byte, text T) (_ []byte, n int) {
	for _, separator := range separators {
		if n := len(separator.text); len(text) >= n && string(text[:n]) == separator.text {
			return append(to, separator.escaped...), n
		}
	}
	return append(to, text[0]), 1
}

// appendEscape appends a character that JSON does not allow to stand as it is.
func appendEscape(to []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(to, '\\', c)
	case '\n':
		return append(to, '\\', 'n')
	case '\r':
		return append(to, '\\', 'r')
	case '\t':
		return append(to, '\\', 't')
	}
	const digits = "0123456789abcdef"
	return append(to, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xf])
}

// A word with the lowest and one with the top bit of each byte.
const ones, tops = 0x0101010101010101, 0x8080808080808080

// plain returns how many bytes at the beginning of a text stand in JSON as they are; where it may be separated, those that are no ASCII
// have to be looked at. It looks at eight at a time: the top bit of a byte is set where it was ASCII, and below a space, a quote or a backslash.
func plain[T string | []byte](text T, separated bool) int {
	watched := uint64(0)
	if separated {
		watched = tops
	}
	n := 0
	for ; len(text)-n >= 8; n += 8 {
		word := uint64(text[n]) | uint64(text[n+1])<<8 | uint64(text[n+2])<<16 | uint64(text[n+3])<<24 |
			uint64(text[n+4])<<32 | uint64(text[n+5])<<40 | uint64(text[n+6])<<48 | uint64(text[n+7])<<56
		quote, slash := word^ones*'"', word^ones*'\\'
		found := ((word-ones*' ')|(quote-ones)|(slash-ones))&^word&tops | word&watched
		if found != 0 {
			return n + bits.TrailingZeros64(found)/8 // the lowest one that is set is right
		}
	}
	for ; n < len(text); n++ {
		if c := text[n]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf && separated {
			break
		}
	}
	return n
}

// appendTime appends a moment as RFC 3339, and null where no calendar has it.
func appendTime(to []byte, t time.Time) []byte {
	t = t.UTC()
	if year := t.Year(); year < 0 || year > 9999 {
		return append(to, "null"...)
	}
	to = t.AppendFormat(append(to, '"'), time.RFC3339Nano)
	return append(to, '"')
}

// appendMoment is appendTime of a moment in UTC with milliseconds, always.
func appendMoment(to []byte, t time.Time) []byte {
	if year := t.Year(); year < 0 || year > 9999 {
		return append(to, "null"...)
	}
	to = t.AppendFormat(append(to, '"'), time.RFC3339) // for which there is a fast way, as there is not for one with milliseconds
	to = to[:len(to)-len("Z")]
	const digits = "0123456789"
	ms := t.Nanosecond() / int(time.Millisecond)
	return append(to, '.', digits[ms/100%10], digits[ms/10%10], digits[ms%10], 'Z', '"')
}

// appendTable appends a table of headers, in any order.
func appendTable(to []byte, table map[string]any, depth int) []byte {
	to = append(to, '{')
	first := true
	for name, value := range table {
		if !first {
			to = append(to, ',')
		}
		first = false
		to = append(appendText(to, name), ':')
		to = appendHeader(to, value, depth+1)
	}
	return append(to, '}')
}

// appendHeader appends the value of a header.
func appendHeader(to []byte, value any, depth int) []byte {
	if depth > maxHeaderDepth {
		return append(to, "null"...)
	}
	switch v := value.(type) {
	case nil:
		return append(to, "null"...)
	case string:
		return appendText(to, v)
	case []byte:
		return appendText(to, string(v))
	case bool:
		return strconv.AppendBool(to, v)
	case int:
		return strconv.AppendInt(to, int64(v), 10)
	case int32:
		return strconv.AppendInt(to, int64(v), 10)
	case int64:
		return strconv.AppendInt(to, v, 10)
	case float32:
		return appendFloat(to, float64(v), 32)
	case float64:
		return appendFloat(to, v, 64)
	case time.Time:
		return appendTime(to, v)
	case map[string]any:
		return appendTable(to, v, depth)
	case []any:
		return appendList(to, v, depth)
	}
	return appendOther(to, value)
}

func appendList(to []byte, list []any, depth int) []byte {
	to = append(to, '[')
	for i, value := range list {
		if i > 0 {
			to = append(to, ',')
		}
		to = appendHeader(to, value, depth+1)
	}
	return append(to, ']')
}

// appendOther appends what headers seldom hold; null where JSON has nothing for it.
func appendOther(to []byte, value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		return append(to, "null"...)
	}
	return append(to, data...)
}

// appendFloat appends a number; JSON has no infinity, and nothing that is not a number.
func appendFloat(to []byte, f float64, size int) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(to, "null"...)
	}
	return strconv.AppendFloat(to, f, 'g', -1, size)
}
