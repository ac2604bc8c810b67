package handler

import (
	"encoding/base64"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"redrive.dev/redrive/internal/message"
)

const hexDigits = "0123456789ABCDEF"

// encodeValue returns the value of a message's header as a request carries it, and its type for the index, empty for text. ok is false
// for what no value says: a time that no calendar has, and tables that nest too deep or have names that are no UTF-8.
func encodeValue(value any) (text, kind string, ok bool) {
	switch v := value.(type) {
	case string:
		return percentEncoded(v), "", true
	case []byte:
		return percentEncoded(string(v)), "bytes", true
	case nil:
		return "", "null", true
	case bool:
		return strconv.FormatBool(v), "bool", true
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32), "float", true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), "float", true
	case time.Time:
		text, ok = momentText(v)
		return text, "time", ok
	case map[string]any, []any:
		data, ok := appendTyped(nil, v, 0)
		return string(data), "json", ok
	}
	if n, whole := message.Integer(value); whole {
		return strconv.FormatInt(n, 10), "int", true
	}
	return "", "", false
}

// momentText is RFC 3339, for the years that it has.
func momentText(t time.Time) (string, bool) {
	if t = t.UTC(); !hasDate(t) {
		return "", false
	}
	return t.Format(time.RFC3339Nano), true
}

// knownMoment is momentText of a property of the message; empty where there is none, or one of no calendar: many producers give milliseconds where
// AMQP has seconds.
func knownMoment(t time.Time) string {
	text, ok := momentText(t)
	if !ok || t.IsZero() {
		return ""
	}
	return text
}

// hasDate is true of a time in UTC that RFC 3339 has.
func hasDate(t time.Time) bool { return t.Year() >= 0 && t.Year() <= 9999 }

// percentEncoded encodes what no header's value may have, or no server hands on as it is: control characters, bytes beyond ASCII, spaces
// at the ends, and the percent sign.
func percentEncoded(text string) string {
	last := len(text) - 1
	plain := func(i int) bool {
		b := text[i]
		return b > ' ' && b < 0x7f && b != '%' || b == ' ' && i > 0 && i < last
	}
	odd := 0
	for i := range len(text) {
		if !plain(i) {
			odd++
		}
	}
	if odd == 0 {
		return text
	}
	var encoded strings.Builder
	encoded.Grow(len(text) + 2*odd)
	for i := range len(text) {
		if plain(i) {
			encoded.WriteByte(text[i])
		} else {
			encoded.Write([]byte{'%', hexDigits[text[i]>>4], hexDigits[text[i]&15]})
		}
	}
	return encoded.String()
}

// appendName appends the name of a message's header so that it can stand in a list.
func appendName(to []byte, name string) []byte {
	for i := range len(name) {
		if b := name[i]; b > ' ' && b < 0x7f && !strings.ContainsRune(`%,;="`, rune(b)) {
			to = append(to, b)
		} else {
			to = append(to, '%', hexDigits[b>>4], hexDigits[b&15])
		}
	}
	return to
}

// appendTyped appends a value in JSON of printable ASCII without a percent sign. What JSON has no type for is an object of one key with a dollar
// sign: a time, bytes, a number that is none, text that is no UTF-8, and a table that looks like one of these.
func appendTyped(to []byte, value any, depth int) (_ []byte, ok bool) {
	if depth > maxHeaderDepth {
		return to, false
	}
	switch v := value.(type) {
	case nil:
		return append(to, "null"...), true
	case string:
		if !utf8.ValidString(v) {
			return appendSpecial(to, "$text", base64.StdEncoding.EncodeToString([]byte(v))), true
		}
		return appendASCII(to, v), true
	case []byte:
		return appendSpecial(to, "$bytes", base64.StdEncoding.EncodeToString(v)), true
	case bool:
		return strconv.AppendBool(to, v), true
	case float32:
		return appendTypedFloat(to, float64(v), 32), true
	case float64:
		return appendTypedFloat(to, v, 64), true
	case time.Time:
		text, ok := momentText(v)
		return appendSpecial(to, "$time", text), ok
	case []any:
		return appendTypedList(to, v, depth)
	case map[string]any:
		return appendTypedTable(to, v, depth)
	}
	n, ok := message.Integer(value)
	return strconv.AppendInt(to, n, 10), ok
}

func appendTypedList(to []byte, list []any, depth int) (_ []byte, ok bool) {
	to = append(to, '[')
	for i, item := range list {
		if i > 0 {
			to = append(to, ',')
		}
		if to, ok = appendTyped(to, item, depth+1); !ok {
			return to, false
		}
	}
	return append(to, ']'), true
}

func appendTypedTable(to []byte, table map[string]any, depth int) (_ []byte, ok bool) {
	names := slices.Sorted(maps.Keys(table))
	special := len(names) == 1 && strings.HasPrefix(names[0], "$")
	if special {
		to = append(to, `{"$table":`...)
	}
	to = append(to, '{')
	for i, name := range names {
		if !utf8.ValidString(name) {
			return to, false
		}
		if i > 0 {
			to = append(to, ',')
		}
		to = append(appendASCII(to, name), ':')
		if to, ok = appendTyped(to, table[name], depth+1); !ok {
			return to, false
		}
	}
	to = append(to, '}')
	if special {
		to = append(to, '}')
	}
	return to, true
}

func appendSpecial(to []byte, key, text string) []byte {
	to = append(append(append(to, `{"`...), key...), `":"`...)
	return append(append(to, text...), `"}`...)
}

// appendTypedFloat appends a number with a dot or an exponent, by which it is told from a whole one.
func appendTypedFloat(to []byte, f float64, size int) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return appendSpecial(to, "$float", strconv.FormatFloat(f, 'g', -1, 64))
	}
	before := len(to)
	to = strconv.AppendFloat(to, f, 'g', -1, size)
	if !slices.ContainsFunc(to[before:], func(b byte) bool { return b == '.' || b == 'e' }) {
		to = append(to, ".0"...)
	}
	return to
}

// appendASCII appends a text that is UTF-8.
func appendASCII(to []byte, text string) []byte {
	to = append(to, '"')
	for _, r := range text {
		switch {
		case r == '"' || r == '\\':
			to = append(to, '\\', byte(r))
		case r >= ' ' && r < 0x7f && r != '%':
			to = append(to, byte(r))
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			to = appendUnicode(appendUnicode(to, high), low)
		default:
			to = appendUnicode(to, r)
		}
	}
	return append(to, '"')
}

func appendUnicode(to []byte, r rune) []byte {
	return append(to, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}
