package message

import (
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"redrive.dev/redrive/internal/retry"
)

// ownNames are the headers that Decode reads, and neighbours.
func ownNames() []string {
	return []string{
		HeaderID, HeaderAttempts, HeaderRetries, HeaderStrategy, HeaderStreak, HeaderFirstFailure, HeaderNotBefore, HeaderDelay,
		HeaderLane, HeaderExchange, HeaderRoutingKey, HeaderDeadline, HeaderHistory, HeaderReason, HeaderErrorStatus,
		HeaderExpiration, HeaderUserID, HeaderOriginal, HeaderPublishID, HeaderCarry, HeaderTraceparent, traceparentHeader, tracestateHeader,
		HeaderReplay, HeaderReplaySeq, HeaderLives, HeaderOutcome, "x-death", "CC", "type", "x-first-death-queue",
	}
}

// anyValue draws a value of any type of AMQP.
func anyValue(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Int8().AsAny(), rapid.Uint8().AsAny(), rapid.Int16().AsAny(), rapid.Uint16().AsAny(),
		rapid.Int32().AsAny(), rapid.Uint32().AsAny(), rapid.Int64().AsAny(), rapid.Float32().AsAny(), rapid.Float64().AsAny(), rapid.String().AsAny(),
		rapid.SliceOf(rapid.Byte()).AsAny(), rapid.Just[any](noon), rapid.Just[any](struct{ Scale, Value int32 }{}),
		rapid.Just[any](Decimal{Scale: 2, Value: -150}),
		rapid.SampledFrom([]string{"[]", "{}", "null", `[null]`, `[{"at":9223372036854775807,"delay":-1}]`, `[{"attempt":-1,"status":1e9}]`}).AsAny(),
	}
	if depth > 0 {
		inner := anyValue(depth - 1)
		kinds = append(kinds, rapid.SliceOfN(inner, 0, 3).AsAny(), rapid.MapOfN(rapid.String(), inner, 0, 3).AsAny(),
			rapid.Map(rapid.MapOfN(rapid.String(), inner, 0, 3), func(m map[string]any) any { return table(m) }))
	}
	return rapid.OneOf(kinds...)
}

func anyHeaders() *rapid.Generator[map[string]any] {
	return rapid.MapOfN(rapid.OneOf(rapid.SampledFrom(ownNames()), rapid.String()), anyValue(2), 0, 12)
}

func TestDecode_GivesAUsableStateForAnyHeaders(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := Message{Headers: anyHeaders().Draw(t, "headers"), Expiration: rapid.StringMatching(`-?[0-9]{0,20}`).Draw(t, "expiration")}
		s := Decode(m, "", noon)
		h := s.History
		if h.Attempts < h.Retries || h.Retries < 0 || h.Streak < 0 || h.Attempts > MaxCount || h.LastDelay < 0 {
			t.Fatalf("counts: %+v", h)
		}
		if h.FirstFailure.After(noon.Add(retry.MaxAhead)) || s.NotBefore.After(noon.Add(horizon)) || s.Deadline.After(noon.Add(horizon)) {
			t.Fatalf("times: %+v", s)
		}
		if len(s.Failures()) > keepFirst+keepLast {
			t.Fatalf("history: %d", len(s.Failures()))
		}
		if s.Traceparent != "" && !isTraceparent(s.Traceparent) {
			t.Fatalf("traceparent %q", s.Traceparent)
		}
		if parent, state := TraceContext(m.Headers); !isPrintable(parent+state) || len(parent) > maxTraceparent || len(state) > maxTracestate {
			t.Fatalf("trace context %q, %q", parent, state)
		}
		View(m, s, "work")
	})
}

func TestReturned_ChangesNothingTheSecondTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := Message{Headers: anyHeaders().Draw(t, "headers"), Expiration: "1000", UserID: "guest"}
		before := maps.Clone(m.Headers)
		once, err := Returned(m, Decode(m, "", noon), "work", noon)
		if err != nil {
			t.Fatal(err)
		}
		for name := range once.Headers {
			if isStale(name) {
				t.Fatalf("%s is still there", name)
			}
		}
		s := Decode(once, "", noon)
		if len(s.Garbage) > 0 {
			t.Fatalf("we wrote garbage: %v of %v", s.Garbage, once.Headers)
		}
		twice, err := Returned(once, s, "work", noon)
		if err != nil {
			t.Fatal(err)
		}
		if !same(once, twice) {
			t.Fatalf("once  %+v\ntwice %+v", once, twice)
		}
		if !same(before, m.Headers) {
			t.Fatal("the input was altered")
		}
	})
}

// same is reflect.DeepEqual for values that may hold NaN: each value is the same or prints the same.
func same(a, b any) bool {
	return reflect.DeepEqual(a, b) || fmt.Sprint(a) == fmt.Sprint(b)
}

func anyAttempt() *rapid.Generator[Attempt] {
	return rapid.Custom(func(t *rapid.T) Attempt {
		return Attempt{
			Number:   rapid.Int64().Draw(t, "number"),
			At:       time.UnixMilli(rapid.Int64Range(1, 1<<50).Draw(t, "at")),
			Source:   retry.Source(rapid.String().Draw(t, "source")),
			Status:   rapid.Int().Draw(t, "status"),
			Class:    nasty().Draw(t, "class"),
			Message:  nasty().Draw(t, "message"),
			Strategy: nasty().Draw(t, "strategy"),
			Delay:    time.Duration(rapid.Int64().Draw(t, "delay")).Truncate(time.Millisecond),
		}
	})
}

// nasty draws texts that are long, that JSON escapes, and that are not UTF-8.
func nasty() *rapid.Generator[string] {
	return rapid.OneOf(
		rapid.String(),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) }),
		rapid.Map(rapid.SampledFrom([]string{"\"", "\\", "\x00", "\xff", "\u2028", "<", "é", "😀", "\n", "\ufffd", "x"}), func(s string) string {
			return strings.Repeat(s, 700)
		}),
	)
}

func TestRecord_BoundsTheHistory(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s State
		for i, a := range rapid.SliceOfN(anyAttempt(), 1, 20).Draw(t, "attempts") {
			before := s
			s = Record(s, a)
			if len(s.Failures()) > keepFirst+keepLast || len(s.Failures()) != min(i+1, keepFirst+keepLast) {
				t.Fatalf("%d entries after %d attempts", len(s.Failures()), i+1)
			}
			for j := range min(keepFirst, len(before.Failures())) {
				if s.Failures()[j] != before.Failures()[j] {
					t.Fatal("one of the first attempts changed")
				}
			}
		}
		text := encodeFailures(s.Failures())
		if len(text) > maxHistorySize {
			t.Fatalf("%d bytes", len(text))
		}
		again, err := decodeFailures(text)
		if err != nil || !reflect.DeepEqual(again, s.Failures()) {
			t.Fatalf("got  %+v\nwant %+v (%v)", again, s.Failures(), err)
		}
	})
}

func TestDecode_ReadsBackWhatParkedWrote(t *testing.T) {
	t.Parallel()
	moment := rapid.Map(rapid.Int64Range(0, noon.UnixMilli()), func(ms int64) time.Time {
		if ms == 0 {
			return time.Time{}
		}
		return time.UnixMilli(ms)
	})
	rapid.Check(t, func(t *rapid.T) {
		once := rapid.Bool().Draw(t, "failed once")
		retries := rapid.Int64Range(0, 1000).Draw(t, "retries")
		s := State{
			ID: rapid.StringN(1, 20, 255).Draw(t, "id"),
			History: retry.History{
				Retries: retries, Attempts: rapid.Int64Range(retries, MaxCount).Draw(t, "attempts"),
				Strategy: rapid.StringN(0, 20, 255).Draw(t, "strategy"), Streak: rapid.Int64Range(0, MaxCount).Draw(t, "streak"),
				FirstFailure: moment.Draw(t, "first"),
				LastDelay:    time.Duration(rapid.Int64Range(0, 1<<30).Draw(t, "delay")) * time.Millisecond,
			},
			NotBefore:  moment.Draw(t, "not before"),
			Deadline:   moment.Draw(t, "deadline"),
			Exchange:   rapid.StringN(0, 20, 255).Draw(t, "exchange"),
			RoutingKey: rapid.StringN(0, 20, 255).Draw(t, "routing key"),
			Expiration: rapid.SampledFrom([]string{"", "1000"}).Draw(t, "expiration"),
			UserID:     rapid.StringN(0, 20, 255).Draw(t, "user"),
			parked:     true,
			lane:       5 * time.Second,
		}
		if rapid.Bool().Draw(t, "dead-lettered before") {
			s.Original = map[string]any{"x-death": []any{map[string]any{"queue": "inbox"}}, "CC": []any{"a"}}
		}
		past := rapid.SliceOfN(anyAttempt(), 0, 10).Draw(t, "attempts")
		s.History.Attempts = max(s.History.Attempts, int64(len(past)))
		if once { // then all that Decode derives may be left out
			past = []Attempt{anyAttempt().Draw(t, "only")}
			s.History.Attempts, s.History.Retries = 1, min(retries, 1)
			s.History.FirstFailure = time.UnixMilli(noon.UnixMilli() - rapid.Int64Range(0, 1<<30).Draw(t, "age"))
			s.NotBefore = s.History.FirstFailure.Add(s.History.LastDelay + time.Duration(rapid.Int64Range(0, 1).Draw(t, "off"))*time.Millisecond)
			s.RoutingKey = rapid.SampledFrom([]string{"work", "key"}).Draw(t, "key")
			s.Exchange = rapid.SampledFrom([]string{"", "async"}).Draw(t, "where")
			s.usual = rapid.SampledFrom([]string{"", "async"}).Draw(t, "usual")
			past[0].Number, past[0].At, past[0].Delay = 1, s.History.FirstFailure, s.History.LastDelay
		}
		for _, a := range past {
			s = Record(s, a)
		}
		published, err := Parked(Message{}, s, "work", "5s", noon)
		if err != nil {
			t.Fatal(err)
		}
		if got := wholly(Decode(published, s.usual, noon)); !reflect.DeepEqual(got, s) {
			t.Fatalf("got  %+v\nwant %+v", got, s)
		}
	})
}

func TestText_IsValidAndShortAndKeepsWhatItCan(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text, limit := nasty().Draw(t, "text"), rapid.IntRange(0, 600).Draw(t, "limit")
		got := Text(text, limit)
		if !utf8.ValidString(got) || len(got) > limit || Text(got, limit) != got {
			t.Fatalf("got %q", got)
		}
		if utf8.ValidString(text) && len(text) > limit && !strings.ContainsAny(text, "\u2028\u2029\ufffd") && len(got) <= limit-utf8.UTFMax {
			t.Fatalf("cut to %d of %d", len(got), limit)
		}
	})
}

// The failures of messages that were held kept 1 MiB alive for each, and ended the worker.
func TestText_KeepsNothingAliveButItself(t *testing.T) {
	const texts, size = 64, 1 << 20
	for name, text := range map[string]string{"plain": "x", "with characters that are replaced": "\x00"} {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		var kept [texts]string
		for i := range kept {
			kept[i] = Text(strings.Repeat(text, size), MaxText)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if more := int64(after.HeapAlloc) - int64(before.HeapAlloc); more > texts*size/8 {
			t.Errorf("%s: %d texts of %d bytes keep %d KiB alive", name, texts, len(kept[0]), more>>10)
		}
		runtime.KeepAlive(&kept)
	}
}
