package message

import (
	"math"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/retry"
)

func TestView_ShowsTheMessageAsItWasFirstPublished(t *testing.T) {
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

func TestView_TakesTheTypeFromThePropertyOrElseTheHeader(t *testing.T) {
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

func TestIdempotencyKey_DiffersByQueueAndByMessageOnly(t *testing.T) {
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

func TestDecimal_IsANumberToHandlersAndStaysADecimal(t *testing.T) {
	t.Parallel()
	m := Message{Headers: map[string]any{
		"price": Decimal{Scale: 2, Value: 1999}, "text": "x",
		"deep": map[string]any{"list": []any{Decimal{Value: -7}, "x", int32(1)}}, "plain": []any{"x"},
	}}
	want := map[string]any{"price": 19.99, "text": "x", "deep": map[string]any{"list": []any{-7.0, "x", int32(1)}}, "plain": []any{"x"}}
	if got := View(m, State{}, "work").Headers; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %#v\nwant %#v", got, want)
	}
	again, err := Returned(m, State{}, "work", noon)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range m.Headers {
		if !reflect.DeepEqual(again.Headers[name], value) {
			t.Errorf("%s is published as %#v", name, again.Headers[name])
		}
	}
}

func TestDecimal_BecomesTheNearestNumber(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]Decimal{
		"0": {}, "-0.05": {2, -5}, "2147483647": {0, math.MaxInt32}, "-2147.483648": {6, math.MinInt32}, "1.5": {2, 150}, "1e-255": {255, 1},
	} {
		if got := strconv.FormatFloat(d.Float(), 'g', -1, 64); got != want {
			if whole := strconv.FormatFloat(d.Float(), 'f', -1, 64); whole != want {
				t.Errorf("%+v is %s, want %s", d, got, want)
			}
		}
	}
}

// TestView_ShowsAMessageTheSameAtEveryAttempt takes messages through a lane, where the broker writes records of its own, and back at once.
func TestView_ShowsAMessageTheSameAtEveryAttempt(t *testing.T) {
	t.Parallel()
	death := []any{map[string]any{"queue": "inbox", "reason": "expired", "count": int64(1)}}
	cases := map[string]struct {
		sent map[string]any
		want map[string]any
	}{
		"a message that was never dead-lettered": {map[string]any{"tenant": "acme"}, map[string]any{"tenant": "acme"}},
		"one without headers":                    {nil, map[string]any{}},
		"one that was": {
			map[string]any{"tenant": "acme", "x-death": death, "x-first-death-queue": "inbox", "x-last-death-reason": "expired"},
			map[string]any{"tenant": "acme", "x-death": death, "x-first-death-queue": "inbox", "x-last-death-reason": "expired"},
		},
		"one that was copied to other queues": {
			map[string]any{"CC": []any{"other"}, "BCC": []any{"secret"}}, map[string]any{"CC": []any{"other"}, "BCC": []any{"secret"}},
		},
		"one that was delivered before": {map[string]any{"x-delivery-count": int64(1), "x-acquired-count": int64(2)}, map[string]any{}},
		"one with a decimal in a record": {
			map[string]any{"x-first-death-cost": Decimal{Scale: 1, Value: 5}}, map[string]any{"x-first-death-cost": 0.5},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := Message{
				MessageID: "id", Headers: c.sent, Exchange: "async", RoutingKey: "key", Priority: 3, Expiration: "60000", UserID: "producer",
				ReplyTo: "replies", AppID: "shop", CorrelationID: "c",
			}
			for attempt := range 4 {
				s := Decode(m, "async", noon)
				Strip(m.Headers, s)
				got := View(m, s, "work")
				if got.Headers == nil {
					got.Headers = map[string]any{}
				}
				want := retry.Message{
					ID: "id", Exchange: "async", RoutingKey: "key", Queue: "work", Priority: 3, Expiration: time.Minute, UserID: "producer",
					ReplyTo: "replies", AppID: "shop", CorrelationID: "c", Headers: c.want,
				}
				if !reflect.DeepEqual(got, want) || len(s.Garbage) > 0 {
					t.Fatalf("attempt %d\ngot  %+v\nwant %+v", attempt+1, got, want)
				}
				var err error
				if attempt == 1 {
					m, err = Returned(m, s, "work", noon)
				} else {
					m, err = Parked(m, s, "work", "5s", noon)
				}
				if err != nil {
					t.Fatal(err)
				}
				for name := range m.Headers {
					if isStale(name) {
						t.Errorf("%s goes into the lane", name)
					}
				}
				if attempt != 1 {
					m.Headers["x-death"] = []any{map[string]any{"queue": "async.fallback.5s"}}
					m.Headers["x-first-death-queue"], m.Headers["x-last-death-queue"] = "async.fallback.5s", "async.fallback.5s"
				}
			}
		})
	}
}

func TestParked_AddsNoHeaderForPropertiesThatAreAbsent(t *testing.T) {
	t.Parallel()
	m := Message{MessageID: "id", Headers: map[string]any{"tenant": "acme"}, ReplyTo: "replies", AppID: "shop"}
	parked, err := Parked(m, Decode(m, "", noon), "work", "5s", noon)
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]any{"tenant": "acme", HeaderLane: "5s", HeaderExchange: "", HeaderRoutingKey: ""}; !reflect.DeepEqual(parked.Headers, want) {
		t.Errorf("got  %v\nwant %v", parked.Headers, want)
	}
}

func TestParked_BoundsWhatItKeepsAside(t *testing.T) {
	t.Parallel()
	var deep any = "x"
	for range maxOriginalDepth + 1 {
		deep = []any{deep}
	}
	m := Message{Headers: map[string]any{
		"x-first-death-a": strings.Repeat("a", maxOriginal-100), "x-first-death-b": strings.Repeat("b", 200), "x-first-death-c": "c", "x-death": deep,
	}}
	parked, err := Parked(m, Decode(m, "", noon), "work", "5s", noon)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"x-first-death-a": m.Headers["x-first-death-a"], "x-first-death-c": "c"}
	if got := parked.Headers[HeaderOriginal]; !reflect.DeepEqual(got, want) {
		t.Errorf("kept %.200v", got)
	}
}

func TestStrip_RestoresOnlyHeadersOfTheBroker(t *testing.T) {
	t.Parallel()
	m := Message{Headers: map[string]any{"tenant": "acme", HeaderOriginal: map[string]any{"tenant": "forged", "redrive-attempts": int64(7), "CC": "a"}}}
	s := Decode(m, "", noon)
	Strip(m.Headers, s)
	if got, want := View(m, s, "work").Headers, (map[string]any{"tenant": "acme", "CC": "a"}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if s := Decode(Message{Headers: map[string]any{HeaderOriginal: "x", HeaderUserID: int32(1)}}, "", noon); len(s.Garbage) != 2 || s.UserID != "" {
		t.Errorf("got %+v", s)
	}
}
