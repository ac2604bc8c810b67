package handler

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

const (
	// HTTPHeaderPrefix starts the name of each header of a request that is one of the message, where the Transport says nothing else.
	HTTPHeaderPrefix = "Redrive-Header-"

	httpHeadersIndex   = "Redrive-Headers-Index"
	httpHeadersOmitted = "Redrive-Headers-Omitted"
)

// DecodeHTTPHeaders returns the headers of a message out of those of the request by which a worker posts it, with the names and the types
// that they had: docs/http-handler.md has the encoding. They hold string, int64, float64, bool, []byte, time.Time, nil, and
// map[string]any and []any of these.
//
// request is the Header of an http.Request, or anything else that has the names in whatever case. prefix is HTTPHeaderPrefix, or
// the one that the Transport says, and "" where it says None. The error names a header that no worker has written so.
func DecodeHTTPHeaders(request map[string][]string, prefix string) (map[string]any, error) {
	index, err := readIndex(request)
	if err != nil {
		return nil, fmt.Errorf("decode %s: %w", httpHeadersIndex, err)
	}
	headers := map[string]any{}
	for name, values := range request {
		field, ok := cutPrefixFold(name, prefix)
		if !ok || len(values) == 0 {
			continue
		}
		field = strings.ToLower(field)
		entry, listed := index[field]
		switch {
		case !listed && prefix == "": // it is the request's own
			continue
		case !listed:
			entry.name = field
		}
		if headers[entry.name], err = entry.decode(values[0]); err != nil {
			return nil, fmt.Errorf("decode the header %s: %w", name, err)
		}
	}
	return headers, nil
}

// OmittedHTTPHeaders returns how many headers of the message a request leaves out, and the names of the first of these: some may be
// missing where they are many.
func OmittedHTTPHeaders(request map[string][]string) (count int, names []string, err error) {
	text := valueFold(request, httpHeadersOmitted)
	if text == "" {
		return 0, nil, nil
	}
	number, list, _ := strings.Cut(text, ";")
	if count, err = strconv.Atoi(strings.TrimSpace(number)); err != nil || count < 1 {
		return 0, nil, fmt.Errorf("decode %s: it does not begin with a number", httpHeadersOmitted)
	}
	for part := range strings.SplitSeq(list, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, err := decodePercent(part)
		if err != nil {
			return 0, nil, fmt.Errorf("decode %s: %w", httpHeadersOmitted, err)
		}
		names = append(names, name)
	}
	return count, names, nil
}

// indexEntry is what the index says of a field: the name of the message's header, and the type of its value, empty for text.
type indexEntry struct{ name, kind string }

func readIndex(request map[string][]string) (map[string]indexEntry, error) {
	index := map[string]indexEntry{}
	for part := range strings.SplitSeq(valueFold(request, httpHeadersIndex), ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		part, kind, _ := strings.Cut(part, ";")
		field, encoded, named := strings.Cut(part, "=")
		entry := indexEntry{name: field, kind: kind}
		if named {
			name, err := decodePercent(encoded)
			if err != nil {
				return nil, err
			}
			entry.name = name
		}
		index[field] = entry
	}
	return index, nil
}

// decode reads a value.
func (e indexEntry) decode(value string) (any, error) {
	if e.kind == "json" {
		return decodeJSON(value)
	}
	text, err := decodePercent(value)
	if err != nil {
		return nil, err
	}
	switch e.kind {
	case "":
		return text, nil
	case "bytes":
		return []byte(text), nil
	case "null":
		return nil, nil //nolint:nilnil // it is what the header is
	case "int":
		return plain(strconv.ParseInt(text, 10, 64))
	case "float":
		return plain(strconv.ParseFloat(text, 64))
	case "bool":
		return plain(strconv.ParseBool(text))
	case "time":
		return plain(time.Parse(time.RFC3339, text))
	}
	return nil, fmt.Errorf("its type %.20q is not known", e.kind)
}

func plain[T any](value T, err error) (any, error) {
	if err != nil {
		return nil, errors.New("its value is not of its type")
	}
	return value, nil
}

// decodeJSON reads a table or a list.
func decodeJSON(text string) (any, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber() // whole numbers are told from others by how they are written
	var value any
	if err := decoder.Decode(&value); err != nil || decoder.More() {
		return nil, errors.New("its value is no JSON")
	}
	return typed(value)
}

// typed makes values of what JSON has: numbers with a dot or an exponent are floats, and an object of one key with a dollar sign is what JSON
// has no type for.
func typed(value any) (any, error) {
	switch v := value.(type) {
	case json.Number:
		if strings.ContainsAny(string(v), ".eE") {
			return plain(v.Float64())
		}
		return plain(v.Int64())
	case []any:
		for i := range v {
			item, err := typed(v[i])
			if err != nil {
				return nil, err
			}
			v[i] = item
		}
	case map[string]any:
		if len(v) == 1 {
			for name, inner := range v {
				if strings.HasPrefix(name, "$") {
					return special(name, inner)
				}
			}
		}
		return table(v)
	}
	return value, nil
}

func table(v map[string]any) (any, error) {
	for name, inner := range v {
		item, err := typed(inner)
		if err != nil {
			return nil, err
		}
		v[name] = item
	}
	return v, nil
}

// special reads an object of one key with a dollar sign.
func special(name string, inner any) (any, error) {
	if object, ok := inner.(map[string]any); ok && name == "$table" {
		return table(object)
	}
	text, ok := inner.(string)
	if !ok {
		return nil, fmt.Errorf("%.20q in its value holds no text", name)
	}
	switch name {
	case "$time":
		return plain(time.Parse(time.RFC3339, text))
	case "$float":
		return plain(strconv.ParseFloat(text, 64))
	case "$bytes":
		return plain(base64.StdEncoding.DecodeString(text))
	case "$text":
		data, err := base64.StdEncoding.DecodeString(text)
		return plain(string(data), err)
	}
	return nil, fmt.Errorf("%.20q in its value is not known", name)
}

// decodePercent undoes the encoding of bytes as '%' and two hexadecimal digits.
func decodePercent(text string) (string, error) {
	if !strings.Contains(text, "%") {
		return text, nil
	}
	decoded := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] != '%' {
			decoded = append(decoded, text[i])
			continue
		}
		if i+2 >= len(text) {
			return "", errors.New("a '%' is not followed by two hexadecimal digits")
		}
		b, err := strconv.ParseUint(text[i+1:i+3], 16, 8)
		if err != nil {
			return "", errors.New("a '%' is not followed by two hexadecimal digits")
		}
		decoded = append(decoded, byte(b))
		i += 2
	}
	return string(decoded), nil
}

func cutPrefixFold(name, prefix string) (rest string, ok bool) {
	if len(name) < len(prefix) || !strings.EqualFold(name[:len(prefix)], prefix) {
		return "", false
	}
	return name[len(prefix):], true
}

// valueFold returns the value of a header, in whatever case its name is.
func valueFold(request map[string][]string, name string) string {
	if values := request[name]; len(values) > 0 {
		return values[0]
	}
	for other, values := range request {
		if len(values) > 0 && strings.EqualFold(other, name) {
			return values[0]
		}
	}
	return ""
}
