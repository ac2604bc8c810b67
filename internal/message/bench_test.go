package message

import (
	"maps"
	"testing"
	"time"

	"redrive.dev/redrive/internal/retry"
)

// retried is a typical message on its fourth attempt.
func retried(b *testing.B) (Message, State) {
	b.Helper()
	m := Message{MessageID: "0d3adb33f", Body: []byte(`{}`), Headers: map[string]any{"type": "order", "traceparent": "00-0-0-01", "tries": int32(1)}}
	s := Decode(m, "", noon)
	for i := range int64(3) {
		s = Record(s, Attempt{Number: i + 1, At: noon, Source: retry.SourceHandler, Status: 502, Message: "HTTP 502 Bad Gateway", Delay: time.Second})
	}
	s.History = retry.History{Attempts: 3, Retries: 3, FirstFailure: noon, LastDelay: time.Second}
	m, err := Parked(m, s, "work", "5s", noon)
	if err != nil {
		b.Fatal(err)
	}
	return m, s
}

func BenchmarkDecode(b *testing.B) {
	m, _ := retried(b)
	b.ReportAllocs()
	for b.Loop() {
		Decode(m, "", noon)
	}
}

func BenchmarkDecodeFirstAttempt(b *testing.B) {
	m := Message{MessageID: "0d3adb33f", Headers: map[string]any{"type": "order"}}
	b.ReportAllocs()
	for b.Loop() {
		Decode(m, "", noon)
	}
}

func BenchmarkParked(b *testing.B) {
	m, s := retried(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parked(m, s, "work", "5s", noon); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReceivedFromALane is what a worker does with a message that a lane has given back, before its attempt.
func BenchmarkReceivedFromALane(b *testing.B) {
	parked, _ := retried(b)
	b.ReportAllocs()
	for b.Loop() {
		m := parked
		m.Headers = make(map[string]any, len(parked.Headers)+4)
		maps.Copy(m.Headers, parked.Headers)
		m.Headers["x-death"], m.Headers["x-first-death-queue"], m.Headers["x-last-death-queue"] = nil, "async.fallback.5s", "async.fallback.5s"
		s := Decode(m, "", noon)
		Strip(m.Headers, s)
		View(m, s, "work")
	}
}
