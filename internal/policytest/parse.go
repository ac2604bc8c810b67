package policytest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/utils/ptr"
	kyaml "sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// maxCount bounds the counts of a case; it is that of the headers that they stand for.
const maxCount = message.MaxCount

// file is a file of cases.
type file struct {
	Cases []yaml.Node `yaml:"cases"`
}

// Parse reads a file of cases. The error lists everything that is wrong in it, with the line, and says what would be right.
func Parse(name string, data []byte) ([]Case, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	var f file
	switch err := decoder.Decode(&f); {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%s: it is empty; a file of cases begins with `cases:`", name)
	case err != nil:
		return nil, explain(name, err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: there is more than one document in it; all cases stand in one list", name)
	}
	if len(f.Cases) == 0 {
		return nil, fmt.Errorf("%s: there are no cases in it", name)
	}
	cases := make([]Case, len(f.Cases))
	var errs []error
	seen := map[string]int{}
	for i := range f.Cases {
		c := &cases[i]
		if err := decode(&f.Cases[i], c); err != nil {
			errs = append(errs, explain(name, err))
			continue
		}
		c.File, c.Line = name, f.Cases[i].Line
		if c.Name == "" {
			c.Name = fmt.Sprintf("case %d", i+1)
		}
		if first, there := seen[c.Name]; there {
			errs = append(errs, c.wrong(fmt.Errorf("there is a case of this name in line %d", first)))
		}
		seen[c.Name] = c.Line
		errs = append(errs, c.wrong(c.validate()...))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return cases, nil
}

// decode is strict, which the decoding of a node is not by itself.
func decode(node *yaml.Node, into *Case) error {
	if err := node.Decode(into); err != nil {
		return err //nolint:wrapcheck // explain puts it into words
	}
	if unknown := unknownFields(node, reflect.TypeFor[Case]()); len(unknown) > 0 {
		return &yaml.TypeError{Errors: unknown}
	}
	return nil
}

// unknownFields finds the keys that no field of a struct has.
func unknownFields(node *yaml.Node, t reflect.Type) []string {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if node.Kind != yaml.MappingNode || t.Kind() != reflect.Struct || reflect.PointerTo(t).Implements(reflect.TypeFor[yaml.Unmarshaler]()) {
		return nil
	}
	var unknown []string
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		field, found := fieldNamed(t, key.Value)
		if !found {
			unknown = append(unknown, fmt.Sprintf("line %d: unknown field %q: the fields here are %s", key.Line, key.Value, strings.Join(fieldNames(t), ", ")))
			continue
		}
		unknown = append(unknown, unknownFields(value, field.Type)...)
	}
	return unknown
}

func fieldNamed(t reflect.Type, name string) (reflect.StructField, bool) {
	for field := range fields(t) {
		if field.Tag.Get("yaml") == name {
			return field, true
		}
	}
	return reflect.StructField{}, false
}

func fieldNames(t reflect.Type) []string {
	var names []string
	for field := range fields(t) {
		names = append(names, field.Tag.Get("yaml"))
	}
	return names
}

// fields of a struct that stand in the file.
func fields(t reflect.Type) iter.Seq[reflect.StructField] {
	return func(yield func(reflect.StructField) bool) {
		for field := range t.Fields() {
			if field.Tag.Get("yaml") != "-" && !yield(field) {
				return
			}
		}
	}
}

var (
	inLine     = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)
	foreign    = regexp.MustCompile(`^field (\S+) not found in type policytest\.file$`)
	wrongValue = regexp.MustCompile("^cannot unmarshal !!(\\w+)(?: `(.*)`)? into (.+)$")
)

// explain puts the parser's words into ours, one line for each mistake.
func explain(name string, err error) error {
	texts := []string{err.Error()}
	if many, ok := errors.AsType[*yaml.TypeError](err); ok {
		texts = many.Errors
	}
	errs := make([]error, len(texts))
	for i, text := range texts {
		place, text := name, strings.TrimPrefix(text, "yaml: ")
		if found := inLine.FindStringSubmatch(text); found != nil {
			place, text = name+":"+found[1], found[2]
		}
		if found := foreign.FindStringSubmatch(text); found != nil {
			text = fmt.Sprintf("unknown field %q: a file of cases has `cases`, a list", found[1])
		}
		if found := wrongValue.FindStringSubmatch(text); found != nil {
			text = wrongType(found[1], found[2], found[3])
		}
		errs[i] = fmt.Errorf("%s: %s", place, text)
	}
	return errors.Join(errs...)
}

// wrongType says what should stand in place of a value.
func wrongType(tag, value, want string) string {
	words := map[string]string{
		"int": "a whole number", "int64": "a whole number", "uint8": "a whole number from 0 to 255", "string": "a text",
		"map[string]interface {}": "fields with values",
	}
	found := map[string]string{"map": "fields", "seq": "a list", "null": "nothing"}[tag]
	if found == "" {
		found = fmt.Sprintf("%q", value)
	}
	if word, known := words[want]; known {
		return fmt.Sprintf("%s stands where %s should", found, word)
	}
	return found + " stands where fields should, such as {status: 502}"
}

// validate refuses what no worker would come upon.
func (c *Case) validate() []error {
	errs := c.validateCounts()
	check := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	sources := []retry.Source{retry.SourceHandler, retry.SourceTimeout, retry.SourceCrash, retry.SourceConnection}
	check(c.Error.Source != "" && !slices.Contains(sources, retry.Source(c.Error.Source)), "error.source is %q: it is one of %s", c.Error.Source, list(sources))
	_, known := c.Error.advice()
	check(!known, "error.advice is %q: it is one of %s", c.Error.Advice, list(advices()))
	check(c.Error.Status < 0 || c.Error.Status > 599, "error.status is %d: it is from 0 (none) to 599", c.Error.Status)
	check(c.Message.Body != nil && c.Message.RawBody != nil, "message has body, which is written as JSON, or rawBody, which is used unchanged, not both")
	for name := range c.Message.Headers {
		check(strings.HasPrefix(name, message.HeaderPrefix), "message.headers has %q: expressions do not see headers of Redrive; use retries, age, streak", name)
	}
	return append(errs, c.Expect.validate()...)
}

// validateCounts refuses counts that are none, and only then those that contradict each other.
func (c *Case) validateCounts() []error {
	var errs []error
	check := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	counts := []struct {
		field string
		value int64
	}{{"retries", c.Retries}, {"immediate", c.Immediate}, {"attempts", ptr.Deref(c.Attempts, 0)}, {"streak.count", c.Streak.Count}}
	for _, count := range counts {
		check(count.value < 0 || count.value > maxCount, "%s is %d: it is from 0 to %d", count.field, count.value, maxCount)
	}
	if len(errs) > 0 {
		return errs
	}
	check(c.attempts() > maxCount, "retries and immediate are %d together: they are %d at most", c.attempts(), maxCount)
	check(c.attempts() < c.Retries+c.Immediate, "attempts is %d: every retry and every try at once was an attempt, so it is %d at least",
		c.attempts(), c.Retries+c.Immediate)
	check((c.Streak.Strategy == "") != (c.Streak.Count == 0), "streak has a strategy and a count from 1 up, or is left out")
	check(c.Streak.Count > c.attempts(), "streak.count is %d: every decision was an attempt, so set attempts to that at least", c.Streak.Count)
	return errs
}

func (e *Expect) validate() []error {
	var errs []error
	actions := []v1alpha1.Action{v1alpha1.ActionRetry, v1alpha1.ActionFail, v1alpha1.ActionDrop}
	switch {
	case !slices.Contains(actions, e.Action):
		errs = append(errs, fmt.Errorf("expect.action is %q: it is one of %s", e.Action, list(actions)))
	case e.Delay != nil && e.Action != v1alpha1.ActionRetry:
		errs = append(errs, fmt.Errorf("expect.delay belongs to action Retry, not to %s", e.Action))
	}
	reasons := []retry.Reason{
		retry.ReasonRetry, retry.ReasonImmediate, retry.ReasonMaxRetries, retry.ReasonMaxAge, retry.ReasonStrategy, retry.ReasonUndecodable,
		retry.ReasonUnrecoverable, retry.ReasonAdvice,
	}
	if e.Reason != nil && !slices.Contains(reasons, *e.Reason) {
		errs = append(errs, fmt.Errorf("expect.reason is %q: it is one of %s", *e.Reason, list(reasons)))
	}
	return errs
}

func list[T ~string](words []T) string {
	texts := make([]string, len(words))
	for i, word := range words {
		texts[i] = string(word)
	}
	return strings.Join(texts, ", ")
}

// duration is a span of time as manifests have it.
type duration struct{ time.Duration }

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *duration) UnmarshalYAML(node *yaml.Node) error {
	parsed, err := time.ParseDuration(node.Value)
	if node.Kind != yaml.ScalarNode || err != nil || parsed < 0 {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %q is no duration: write 500ms, 5s, 1h30m", node.Line, node.Value)}}
	}
	d.Duration = parsed
	return nil
}

// moment is a time.
type moment struct{ time.Time }

// UnmarshalYAML implements yaml.Unmarshaler.
func (m *moment) UnmarshalYAML(node *yaml.Node) error {
	var err error
	if m.Time, err = time.Parse(time.RFC3339, node.Value); err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %q is no time: write 2026-01-05T02:00:00Z", node.Line, node.Value)}}
	}
	return nil
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *Delay) UnmarshalYAML(node *yaml.Node) error {
	var exact duration
	if node.Kind != yaml.MappingNode {
		if err := exact.UnmarshalYAML(node); err != nil {
			return err
		}
		d.Exact = &exact.Duration
		return nil
	}
	bounds := struct {
		Min duration `yaml:"min"`
		Max duration `yaml:"max"`
	}{Max: duration{math.MaxInt64}}
	if unknown := unknownFields(node, reflect.TypeOf(bounds)); len(unknown) > 0 {
		return &yaml.TypeError{Errors: unknown}
	}
	if err := node.Decode(&bounds); err != nil {
		return err //nolint:wrapcheck // explain puts it into words
	}
	if bounds.Min.Duration > bounds.Max.Duration {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: min %s is longer than max %s", node.Line, bounds.Min, bounds.Max)}}
	}
	d.Min, d.Max = bounds.Min.Duration, bounds.Max.Duration
	return nil
}

// document is a value of YAML as JSON.
type document []byte

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *document) UnmarshalYAML(node *yaml.Node) error {
	text, err := yaml.Marshal(node)
	if err != nil {
		return fmt.Errorf("line %d: %w", node.Line, err)
	}
	data, err := kyaml.YAMLToJSON(text)
	if err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: the body cannot be written as JSON: %v", node.Line, err)}}
	}
	*d = data
	return nil
}

var _ json.Marshaler = (*Delay)(nil)

// MarshalJSON implements json.Marshaler.
func (d *Delay) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) } //nolint:wrapcheck // a text does not fail
