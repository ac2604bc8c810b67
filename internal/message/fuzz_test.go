package message

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"
	"time"

	"redrive.dev/redrive/internal/retry"
)

// scripted makes headers out of a fuzzer's bytes: of each entry the first byte is the name, the second the type, the third the
// length of the value.
func scripted(script []byte, text string) map[string]any {
	names := append(ownNames(), HeaderCrashes, HeaderPriority, HeaderCrashExit, HeaderWorker, HeaderQueue, HeaderFailedAt, HeaderExplanation)
	headers := map[string]any{}
	for len(script) >= 3 {
		name, kind, length := int(script[0]), script[1], min(int(script[2]), len(script)-3)
		value := script[3 : 3+length]
		script = script[3+length:]
		if name < len(names) {
			headers[names[name]] = typed(kind, value, text)
		} else {
			headers[text+string(value)] = typed(kind, value, text)
		}
	}
	return headers
}

// typed is a value of one of AMQP's types.
func typed(kind byte, value []byte, text string) any {
	var digits [8]byte
	copy(digits[8-min(len(value), 8):], value)
	number := binary.BigEndian.Uint64(digits[:])
	kinds := []any{
		int64(number), int32(number), int16(number), int8(number), uint8(number), uint16(number), uint32(number), int(number),
		string(value), value, text, math.Float64frombits(number), math.Float32frombits(uint32(number)), number&1 == 1, nil,
		time.UnixMilli(int64(number)),
		[]any{text, nil, int64(number)},
		map[string]any{text: value},
		struct{ Scale uint8 }{1},
		Decimal{Scale: uint8(number), Value: int32(number >> 8)},
	}
	return kinds[int(kind)%len(kinds)]
}

func FuzzHeaders(f *testing.F) {
	f.Add([]byte{1, 0, 1, 3, 2, 0, 1, 9}, "acme", "id", "1000", uint8(3))
	f.Add([]byte{12, 10, 0}, `[{"attempt":1,"at":1700000000000,"source":"Handler","status":502,"message":"x","delay":1000}]`, "", "", uint8(0))
	f.Add([]byte{12, 10, 0, 0, 10, 0, 3, 9, 2, 0xff, 0xfe}, "[{\"at\":9223372036854775807,\"delay\":-1}, null, {\"message\":\"\xff\"}]", "\xff", "-1", uint8(9))
	f.Add([]byte{5, 0, 8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 6, 0, 8, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, "", "i", "99999999999999999999", uint8(255))
	f.Add([]byte{16, 9, 4, 1, 2, 3, 4, 17, 16, 1, 7, 200, 17, 3, 'k', 'e', 'y'}, "x-death", "i", "", uint8(1))
	f.Add([]byte{7, 0, 1, 1}, "a delay only", "i", "", uint8(1))
	f.Fuzz(func(t *testing.T, script []byte, text, id, expiration string, priority uint8) {
		// What travels as a short string is no longer than one.
		exchange := text[:min(len(text), maxShort)]
		id = id[:min(len(id), maxShort)]
		expiration = expiration[:min(len(expiration), maxShort)]
		m := Message{
			MessageID: id, Headers: scripted(script, text), Expiration: expiration, Priority: priority, Exchange: exchange, RoutingKey: id, UserID: exchange,
		}
		s := Decode(m, exchange, noon)
		checkState(t, s)
		View(m, s, "work")
		s = Record(s, Attempt{Number: s.History.Attempts + 1, At: noon, Source: retry.SourceHandler, Message: text, Class: id, Delay: time.Second})
		s.History.Attempts = min(s.History.Attempts+1, MaxCount)
		s.NotBefore = noon.Add(time.Second)
		if s.History.FirstFailure.IsZero() {
			s.History.FirstFailure = noon // as the decision does
		}

		parked, err := Parked(m, s, "work", "1s", noon)
		checkPublishable(t, parked, err)
		if err == nil && parked.Headers[HeaderLane] != "1s" {
			t.Errorf("lane %v", parked.Headers[HeaderLane])
		}
		roundTrip(t, s, parked, err)
		returned, err := Returned(m, s, "work", noon)
		checkPublishable(t, returned, err)
		roundTrip(t, s, returned, err)
		failed, err := Failed(m, s, "work", Final{Reason: retry.ReasonMaxAge, Explanation: text, At: noon, Exit: text, Worker: id, Failure: retry.Failure{Source: retry.SourceHandler, Message: text, Class: id}})
		checkPublishable(t, failed, err)
		if err == nil && (failed.Priority != s.Priority || failed.Headers[HeaderReason] != string(retry.ReasonMaxAge)) {
			t.Errorf("priority %d of %d, reason %v", failed.Priority, s.Priority, failed.Headers[HeaderReason])
		}
	})
}

// checkState expects every value within its bounds.
func checkState(t *testing.T, s State) {
	t.Helper()
	h := s.History
	counts := []int64{h.Attempts, h.Retries, h.Streak, s.Crashes}
	for _, count := range counts {
		if count < 0 || count > MaxCount {
			t.Errorf("counts %v", counts)
		}
	}
	if h.Retries > h.Attempts || h.LastDelay < 0 || h.LastDelay > horizon || h.FirstFailure.After(noon.Add(retry.MaxAhead)) || h.Immediate != 0 {
		t.Errorf("history %+v", h)
	}
	if s.NotBefore.After(noon.Add(horizon)) || s.Deadline.After(noon.Add(horizon)) || len(s.Failures()) > keepFirst+keepLast {
		t.Errorf("state %+v", s)
	}
}

// checkPublishable expects what fits into AMQP's frame and carries nothing that does harm on the way.
func checkPublishable(t *testing.T, m Message, err error) {
	t.Helper()
	if err != nil {
		if !errors.Is(err, ErrHeadersTooLarge) {
			t.Errorf("error %v", err)
		}
		return
	}
	if size := HeaderSize(m.Headers); size > MaxHeaderSize {
		t.Errorf("headers of %d bytes", size)
	}
	for name := range m.Headers {
		if isStale(name) {
			t.Errorf("header %s is still there", name)
		}
	}
	if m.DeliveryMode != persistent || m.Expiration != "" || m.UserID != "" || m.RoutingKey != "work" {
		t.Errorf("published as %+v", m)
	}
}

// roundTrip expects the state to be read again as it was written.
func roundTrip(t *testing.T, want State, published Message, err error) {
	t.Helper()
	if err != nil {
		return
	}
	got := Decode(published, want.usual, noon)
	if len(got.Garbage) > 0 {
		t.Errorf("we wrote garbage: %v", got.Garbage)
	}
	h, w := got.History, want.History
	sameTimes := h.FirstFailure.UnixMilli() == w.FirstFailure.UnixMilli() && got.NotBefore.Equal(want.NotBefore)
	sameCounts := h.Attempts == w.Attempts && h.Retries == w.Retries && h.Streak == w.Streak && got.Crashes == want.Crashes && got.Priority == want.Priority
	if !sameTimes || !sameCounts || h.Strategy != w.Strategy || h.LastDelay != w.LastDelay.Truncate(time.Millisecond) {
		t.Errorf("got  %+v\nwant %+v", h, w)
	}
	if want.ID != "" && got.ID != want.ID || got.Exchange != want.Exchange || got.RoutingKey != want.RoutingKey {
		t.Errorf("got %q from %q, want %q from %q", got.ID, got.Exchange, want.ID, want.Exchange)
	}
}
