package deadletter

import (
	"bytes"
	"encoding/json"
	"mime"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// mask stands for a value that is not shown. It is the same for all, so that it tells no length.
const mask = "********"

// secretName matches the names of headers that are always masked.
var secretName = sync.OnceValue(func() *regexp.Regexp { //nolint:gochecknoglobals // compiled once
	return regexp.MustCompile(`(?i)authorization|cookie|token|secret|passw|api[-_]?key`)
})

// Redactor masks what is not to be shown. The zero value masks headers that hold secrets by their names.
type Redactor struct{ body, headers [][]string }

// NewRedactor masks the fields at some paths as well: "body." or "headers." and names with dots between them, where * is any name, and
// any place of a list.
func NewRedactor(paths []string) Redactor {
	var r Redactor
	for _, path := range paths {
		if field, is := strings.CutPrefix(path, "body."); is {
			r.body = append(r.body, strings.Split(field, "."))
		}
		if field, is := strings.CutPrefix(path, "headers."); is {
			r.headers = append(r.headers, []string{field}) // names of headers have dots themselves
		}
	}
	return r
}

// Headers are those of a message, with masks. The map is a copy where there are any.
func (r Redactor) Headers(headers map[string]any) map[string]any {
	masked := make(map[string]any, len(headers))
	for name, value := range headers {
		if secretName().MatchString(name) || slices.ContainsFunc(r.headers, func(path []string) bool { return path[0] == "*" || strings.EqualFold(path[0], name) }) {
			value = mask
		}
		masked[name] = value
	}
	return masked
}

// Body is a body with masks. It is false for one that has no fields which could be masked: neither JSON nor a form.
func (r Redactor) Body(contentType string, body []byte) ([]byte, bool) {
	kind, _, _ := mime.ParseMediaType(contentType)
	if kind == "application/x-www-form-urlencoded" {
		return r.form(body)
	}
	if !json.Valid(body) {
		return nil, false
	}
	if len(r.body) == 0 {
		return body, true
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, false
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(masked(value, r.body)); err != nil {
		return nil, false
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), true
}

func (r Redactor) form(body []byte) ([]byte, bool) {
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, false
	}
	for name, all := range values {
		if slices.ContainsFunc(r.body, func(path []string) bool { return len(path) == 1 && (path[0] == "*" || path[0] == name) }) {
			for i := range all {
				all[i] = mask
			}
		}
	}
	return []byte(values.Encode()), true
}

// masked masks what some paths lead to, in place.
func masked(value any, paths [][]string) any {
	if slices.ContainsFunc(paths, func(path []string) bool { return len(path) == 0 }) {
		return mask
	}
	switch v := value.(type) {
	case map[string]any:
		for name, item := range v {
			v[name] = masked(item, below(paths, name))
		}
	case []any:
		for i, item := range v {
			v[i] = masked(item, below(paths, strconv.Itoa(i)))
		}
	}
	return value
}

// below are the paths that go on under a name.
func below(paths [][]string, name string) (rest [][]string) {
	for _, path := range paths {
		if path[0] == "*" || path[0] == name {
			rest = append(rest, path[1:])
		}
	}
	return rest
}
