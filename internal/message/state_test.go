package message

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/retry"
)

// noon is the present of all tests.
var noon = time.UnixMilli(1_790_000_000_000)

// table is a client's own table type.
type table map[string]any

// wholly is a state with its history read.
func wholly(s State) State {
	s.past, s.failures = "", s.Failures()
	return s
}

// waiting is the state of a message that failed once, by its history, and waits for 5 s from then on.
func waiting(told, failed time.Time) State {
	return State{
		History:   retry.History{Attempts: 1, Retries: 1, LastDelay: 5 * time.Second, FirstFailure: failed},
		NotBefore: failed.Add(5 * time.Second),
		failures:  []Attempt{{Number: 1, At: told, Source: retry.SourceHandler, Delay: 5 * time.Second}},
	}
}

func TestDecode_TakesWhatMakesSenseAndNamesTheRest(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		headers map[string]any
		want    State
	}{
		"a message without headers has no history": {nil, State{}},
		"all integer types of AMQP count": {
			map[string]any{HeaderAttempts: int32(3), HeaderRetries: int16(2), HeaderStreak: uint8(1)},
			State{History: retry.History{Attempts: 3, Retries: 2, Streak: 1}},
		},
		"byte arrays are texts": {
			map[string]any{HeaderID: []byte("a"), HeaderStrategy: []byte("throttled"), HeaderExchange: []byte("e"), HeaderRoutingKey: []byte("k")},
			State{ID: "a", History: retry.History{Strategy: "throttled"}, Exchange: "e", RoutingKey: "k"},
		},
		"a history of one failure tells of a message that waits": {
			map[string]any{HeaderHistory: `[{"attempt":1,"at":` + strconv.FormatInt(noon.UnixMilli(), 10) + `,"source":"Handler","delay":5000}]`},
			waiting(noon, noon),
		},
		"a failure ahead of a clock that is behind stands, and its retry is due by this clock": {
			map[string]any{HeaderHistory: `[{"attempt":1,"at":` + strconv.FormatInt(noon.Add(time.Hour).UnixMilli(), 10) + `,"source":"Handler","delay":5000}]`},
			func() State {
				s := waiting(noon.Add(time.Hour), noon)
				s.History.FirstFailure = noon.Add(time.Hour)
				s.Garbage = []string{HeaderHistory}
				return s
			}(),
		},
		"a failure by a clock that is far ahead was now": {
			map[string]any{HeaderHistory: `[{"attempt":1,"at":` + strconv.FormatInt(noon.Add(25*time.Hour).UnixMilli(), 10) + `,"source":"Handler","delay":5000}]`},
			func() State {
				s := waiting(noon.Add(25*time.Hour), noon)
				s.Garbage = []string{HeaderHistory}
				return s
			}(),
		},
		"where the attempts are counted, the history tells of nothing else": {
			map[string]any{HeaderAttempts: int64(1), HeaderHistory: `[{"attempt":1,"at":1795238320993,"delay":5000}]`},
			State{
				History:  retry.History{Attempts: 1},
				failures: []Attempt{{Number: 1, At: time.UnixMilli(1795238320993), Delay: 5 * time.Second}},
			},
		},
		"attempts of which no more is said were no retries": {
			map[string]any{HeaderAttempts: int64(3), HeaderNotBefore: noon.UnixMilli(), HeaderDelay: int64(5000)},
			State{History: retry.History{Attempts: 3, LastDelay: 5 * time.Second}, NotBefore: noon},
		},
		"a negative count is none": {
			map[string]any{HeaderAttempts: int64(-1), HeaderRetries: int64(math.MinInt64)},
			State{Garbage: []string{HeaderAttempts, HeaderRetries}},
		},
		"a huge count is clamped": {
			map[string]any{HeaderAttempts: int64(math.MaxInt64), HeaderRetries: int64(MaxCount + 1)},
			State{History: retry.History{Attempts: MaxCount, Retries: MaxCount}, Garbage: []string{HeaderAttempts, HeaderRetries}},
		},
		"counts of other types are none": {
			map[string]any{HeaderAttempts: "3", HeaderRetries: 3.0, HeaderStreak: true},
			State{Garbage: []string{HeaderAttempts, HeaderRetries, HeaderStreak}},
		},
		"nested tables and arrays are none": {
			map[string]any{HeaderAttempts: table{"a": int64(1)}, HeaderStrategy: []any{"a"}, HeaderFirstFailure: map[string]any{}, HeaderDelay: []byte("1")},
			State{Garbage: []string{HeaderAttempts, HeaderStrategy, HeaderFirstFailure, HeaderDelay}},
		},
		"a nil is as good as absent": {map[string]any{HeaderAttempts: nil, HeaderID: nil}, State{}},
		"retries without attempts mean that attempts got lost": {
			map[string]any{HeaderRetries: int64(4), HeaderAttempts: int64(2)},
			State{History: retry.History{Attempts: 4, Retries: 4}, Garbage: []string{HeaderAttempts}},
		},
		"a not-before in the year 9999 is none": {
			map[string]any{HeaderNotBefore: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()},
			State{Garbage: []string{HeaderNotBefore}},
		},
		"a time beyond what a time can hold is none": {
			map[string]any{HeaderNotBefore: int64(math.MaxInt64), HeaderDeadline: int64(math.MinInt64), HeaderFirstFailure: int64(0)},
			State{Garbage: []string{HeaderFirstFailure, HeaderNotBefore, HeaderDeadline}},
		},
		"a time as AMQP timestamp is none": {map[string]any{HeaderNotBefore: noon}, State{Garbage: []string{HeaderNotBefore}}},
		"a not-before and a deadline in the past stand": {
			map[string]any{HeaderNotBefore: noon.UnixMilli() - 1, HeaderDeadline: noon.UnixMilli() - 2},
			State{NotBefore: noon.Add(-time.Millisecond), Deadline: noon.Add(-2 * time.Millisecond)},
		},
		"a first failure in the far future is clamped to now": {
			map[string]any{HeaderFirstFailure: noon.Add(25 * time.Hour).UnixMilli()},
			State{History: retry.History{FirstFailure: noon}, Garbage: []string{HeaderFirstFailure}},
		},
		"a first failure ahead of a clock that is behind stands": {
			map[string]any{HeaderFirstFailure: noon.Add(time.Hour).UnixMilli()},
			State{History: retry.History{FirstFailure: noon.Add(time.Hour)}},
		},
		"a negative delay is none": {map[string]any{HeaderDelay: int64(-5)}, State{Garbage: []string{HeaderDelay}}},
		"an absurd delay is clamped": {
			map[string]any{HeaderDelay: int64(math.MaxInt64)},
			State{History: retry.History{LastDelay: horizon}, Garbage: []string{HeaderDelay}},
		},
		"an id that is too long is none": {
			map[string]any{HeaderID: strings.Repeat("a", 256)}, State{Garbage: []string{HeaderID}},
		},
		"a history that is not JSON is none":          {map[string]any{HeaderHistory: "[{"}, State{Garbage: []string{HeaderHistory}}},
		"a history of another shape is none":          {map[string]any{HeaderHistory: `{"attempt":1}`}, State{Garbage: []string{HeaderHistory}}},
		"a history beyond its bound is none":          {map[string]any{HeaderHistory: "[" + strings.Repeat(" ", maxHistorySize) + "]"}, State{Garbage: []string{HeaderHistory}}},
		"a history as a table is none":                {map[string]any{HeaderHistory: []any{table{"attempt": int64(1)}}}, State{Garbage: []string{HeaderHistory}}},
		"an empty history is none, and nothing worse": {map[string]any{HeaderHistory: "[]"}, State{}},
		"a list of something else is no history":      {map[string]any{HeaderHistory: `["once"]`}, State{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := wholly(Decode(Message{Headers: c.headers}, "", noon)); !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestDecode_TakesAnExpirationForADeadline(t *testing.T) {
	t.Parallel()
	after := func(span time.Duration) any { return noon.Add(span).UnixMilli() }
	cases := map[string]struct {
		m    Message
		want time.Time
	}{
		"it counts from when the message was received": {Message{Expiration: "5000"}, noon.Add(5 * time.Second)},
		"or from its timestamp": {
			Message{Expiration: "5000", Timestamp: noon.Add(-3 * time.Second)}, noon.Add(3 * time.Second),
		},
		"an earlier deadline holds":                       {Message{Expiration: "5000", Headers: map[string]any{HeaderDeadline: after(time.Second)}}, noon.Add(time.Second)},
		"a later deadline gives way":                      {Message{Expiration: "5000", Headers: map[string]any{HeaderDeadline: after(time.Hour)}}, noon.Add(5 * time.Second)},
		"one that was used up is none":                    {Message{Headers: map[string]any{HeaderExpiration: "5000", HeaderDeadline: after(-time.Second)}}, noon.Add(-time.Second)},
		"nor one of a copy that has no deadline any more": {Message{Headers: map[string]any{HeaderExpiration: "5000"}}, time.Time{}},
		"0 asks for a consumer that is free":              {Message{Expiration: "0"}, time.Time{}},
		"one that is no number is ignored":                {Message{Expiration: "5s"}, time.Time{}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := Decode(c.m, "", noon).Deadline; !got.Equal(c.want) {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestDecode_TakesTheIDFromThePropertyOrElseTheHeader(t *testing.T) {
	t.Parallel()
	headers := map[string]any{HeaderID: "header"}
	if got := Decode(Message{MessageID: "property", Headers: headers}, "", noon).ID; got != "property" {
		t.Errorf("with both: %q", got)
	}
	if got := Decode(Message{Headers: headers}, "", noon).ID; got != "header" {
		t.Errorf("with the header: %q", got)
	}
	if got := Decode(Message{}, "", noon).ID; got != "" {
		t.Errorf("with neither: %q", got)
	}
}

func TestDecode_TakesExchangeAndKeyOfAMessageWithoutHeaders(t *testing.T) {
	t.Parallel()
	m := Message{Exchange: "async", RoutingKey: "test"}
	if s := Decode(m, "", noon); s.Exchange != "async" || s.RoutingKey != "test" {
		t.Errorf("without headers: %q %q", s.Exchange, s.RoutingKey)
	}
	m.Headers = map[string]any{HeaderExchange: "", HeaderRoutingKey: "work"} // published by the default exchange
	if s := Decode(m, "", noon); s.Exchange != "" || s.RoutingKey != "work" {
		t.Errorf("with headers: %q %q", s.Exchange, s.RoutingKey)
	}
	m.Exchange, m.Headers = "async.return", map[string]any{HeaderLane: "5s"} // which has been in a lane
	for _, usual := range []string{"", "async"} {
		if s := Decode(m, usual, noon); s.Exchange != usual || s.RoutingKey != "test" {
			t.Errorf("from a lane, mostly published to %q: %q %q", usual, s.Exchange, s.RoutingKey)
		}
	}
}

func TestNewID_IsRandomAndHexadecimal(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	first, second := NewID(random), NewID(random)
	if first == second || len(first) != 32 || strings.Trim(first, "0123456789abcdef") != "" {
		t.Errorf("got %q and %q", first, second)
	}
}

// What a message waited for in between, such as a rate limit, was taken for its last delay.
func TestRecall_FindsTheLastDelayInTheLastFailure(t *testing.T) {
	now := time.UnixMilli(1_795_238_328_000)
	for name, tt := range map[string]struct {
		delays []time.Duration
		waited time.Duration
		want   time.Duration
	}{
		"it waited for its turn":   {[]time.Duration{time.Second, 200 * time.Second}, 2 * time.Second, 200 * time.Second},
		"it waited for its retry":  {[]time.Duration{time.Second, 200 * time.Second}, 200 * time.Second, 200 * time.Second},
		"it was tried at once":     {[]time.Duration{0}, 0, 0},
		"it has failed once":       {[]time.Duration{30 * time.Second}, time.Second, 30 * time.Second},
		"it has not failed so far": {nil, 0, 0},
	} {
		s := State{ID: "a", History: retry.History{Attempts: int64(len(tt.delays)), LastDelay: tt.waited, FirstFailure: now}}
		for i, delay := range tt.delays {
			s = Record(s, Attempt{Number: int64(i + 1), At: now, Source: retry.SourceHandler, Delay: delay})
		}
		parked, err := Parked(Message{MessageID: "a"}, s, "work", "1s", now)
		if err != nil {
			t.Fatal(err)
		}
		got := Recall(Decode(parked, "", now.Add(time.Hour)))
		if got.History.LastDelay != tt.want || len(got.Failures()) != len(tt.delays) {
			t.Errorf("%s: the last delay of %d failures is %s, want %s of %d", name, len(got.Failures()), got.History.LastDelay, tt.want, len(tt.delays))
		}
	}
}

// A name that came back as none began the streak of its strategy anew at each failure: a maxRetries of its own was never reached.
func TestDecode_KnowsTheLongestNameThatAStrategyMayHave(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("p", 253) + "/" + strings.Repeat("s", 63) // what the API allows for a policy's name and a strategy's
	for name, want := range map[string]string{longest: longest, longest + "s": ""} {
		state := Decode(Message{Headers: map[string]any{HeaderStrategy: name}}, "", noon)
		if state.History.Strategy != want || (len(state.Garbage) == 0) != (want != "") {
			t.Errorf("a name of %d bytes is read as one of %d, with %v as garbage", len(name), len(state.History.Strategy), state.Garbage)
		}
	}
}
