package message

import (
	"reflect"
	"testing"

	"redrive.dev/redrive/internal/retry"
)

func TestViewShowsTheMessageAsItWasFirstPublished(t *testing.T) {
	t.Parallel()
	m := Message{
		MessageID: "id", Type: "order", ContentType: "application/json", Priority: 3, Timestamp: noon, Body: []byte("{}"),
		Exchange: "async.return", RoutingKey: "work",
		Headers: map[string]any{"partner": "acme", HeaderExchange: "async", HeaderRoutingKey: "test", HeaderRetries: int64(1)},
	}
	want := retry.Message{
		ID: "id", Type: "order", Exchange: "async", RoutingKey: "test", Queue: "work", ContentType: "application/json",
		Headers: map[string]any{"partner": "acme"}, Priority: 3, Timestamp: noon, Body: []byte("{}"),
	}
	if got := View(m, Decode(m, "", noon), "work"); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestTheTypeIsThePropertyOrElseTheHeader(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		property string
		header   any
		want     string
	}{
		"the property wins":        {"property", "header", "property"},
		"Symfony's header is next": {"", `App\Message\Bar`, `App\Message\Bar`},
		"also as bytes":            {"", []byte("bar"), "bar"},
		"a number is no type":      {"", int32(1), ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := Message{Type: c.property, Headers: map[string]any{"type": c.header}}
			if got := View(m, State{}, "work").Type; got != c.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestIdempotencyKeysDifferByQueueAndByMessageOnly(t *testing.T) {
	t.Parallel()
	key := IdempotencyKey("work", "id")
	if key != "e9deb0aa56f3b7054c2be998503eb928" { // releases may not change it: it outlives them in inboxes
		t.Errorf("got %q", key)
	}
	if key == IdempotencyKey("other", "id") || key == IdempotencyKey("work", "other") || IdempotencyKey("a", "bc") == IdempotencyKey("ab", "c") {
		t.Error("two keys are the same")
	}
	if IdempotencyKey("work", "") != "" {
		t.Error("messages without an id share a key")
	}
}
