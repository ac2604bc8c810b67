package docs_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

func TestDocs_HoldOnlyValidJSON(t *testing.T) {
	found := 0
	for name, page := range pages(t) {
		for _, block := range blocks(page, "json") {
			if found++; !json.Valid([]byte(block)) {
				t.Errorf("%s: this is not JSON:\n%s", name, block)
			}
		}
	}
	if found == 0 {
		t.Fatal("no page has JSON")
	}
}

// The example is the result of a program: its names are those that the worker reads.
func TestDocs_ShowAResultOfAProgramByItsNames(t *testing.T) {
	known := in(t, "internal/handler/result.go", "`json:\"(\\w+)\"`")
	examples := blocks(read(t, "docs/exec-handler.md"), "json")
	if len(examples) == 0 {
		t.Fatal("docs/exec-handler.md has no JSON")
	}
	for _, block := range examples {
		var fields map[string]any
		if err := json.Unmarshal([]byte(block), &fields); err != nil {
			t.Fatal(err)
		}
		for name := range fields {
			if !slices.Contains(known, name) {
				t.Errorf("docs/exec-handler.md: the worker does not know the field %q", name)
			}
		}
	}
}

// The headers of the example are what a worker reads and writes, all of them and no others, and so is the example of a history.
func TestDocs_ShowAMessageInTheFailureQueueAsItIs(t *testing.T) {
	examples := blocks(read(t, "docs/messages.md"), "json")
	if len(examples) != 2 {
		t.Fatalf("docs/messages.md has %d examples in JSON, want headers and a history", len(examples))
	}
	headers := map[string]any{}
	decoder := json.NewDecoder(strings.NewReader(examples[0]))
	decoder.UseNumber()
	if err := decoder.Decode(&headers); err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		if number, is := value.(json.Number); is {
			whole, err := number.Int64()
			if err != nil {
				t.Fatal(err)
			}
			headers[name] = whole
		}
	}
	headers[message.HeaderHistory] = examples[1] // which is shortened in the other one
	text := func(name string) string {
		value, _ := headers[name].(string)
		return value
	}
	number := func(name string) int64 {
		value, _ := headers[name].(int64)
		return value
	}
	failedAt := time.UnixMilli(number(message.HeaderFailedAt))
	state := message.Decode(message.Message{Headers: headers}, "async", failedAt)
	if len(state.Garbage) > 0 {
		t.Errorf("a worker cannot use %v", state.Garbage)
	}
	written, err := message.Failed(message.Message{}, state, text(message.HeaderQueue), message.Final{
		Reason: retry.Reason(text(message.HeaderReason)), Explanation: text(message.HeaderExplanation), At: failedAt, ID: text(message.HeaderFailureID),
		Failure: retry.Failure{
			Source: retry.Source(text(message.HeaderErrorSource)), Status: int(number(message.HeaderErrorStatus)),
			Class: text(message.HeaderErrorClass), Message: text(message.HeaderErrorMessage),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range written.Headers {
		if name != message.HeaderHistory && !reflect.DeepEqual(headers[name], value) {
			t.Errorf("%s: a worker writes %#v, and docs/messages.md has %#v", name, value, headers[name])
		}
	}
	for name := range headers {
		if _, is := written.Headers[name]; !is {
			t.Errorf("%s: docs/messages.md has it, and a worker does not write it", name)
		}
	}
	var shown, history any
	if err := json.Unmarshal([]byte(examples[1]), &shown); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(written.Headers[message.HeaderHistory].(string)), &history); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(shown, history) {
		t.Errorf("a worker writes the history\n%v\nand docs/messages.md has\n%v", history, shown)
	}
}
