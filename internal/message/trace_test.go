package message

import (
	"strings"
	"testing"
	"time"
)

const (
	producers = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	attempts  = "00-4bf92f3577b34da6a3ce929d0e0e4736-53995c3f42cd8ad8-01"
)

func TestTraceContext_TakesOnlyAValidOneOfTheProducer(t *testing.T) {
	t.Parallel()
	zero := strings.Repeat("0", 32)
	tests := []struct {
		name          string
		headers       map[string]any
		parent, state string
	}{
		{"no headers", nil, "", ""},
		{"text", map[string]any{"traceparent": producers, "tracestate": "a=1,b=2"}, producers, "a=1,b=2"},
		{"bytes", map[string]any{"traceparent": []byte(producers), "tracestate": []byte("a=1")}, producers, "a=1"},
		{"not sampled", map[string]any{"traceparent": producers[:53] + "00"}, producers[:53] + "00", ""},
		{"a later version with more at its end", map[string]any{"traceparent": "cc" + producers[2:] + "-what-comes"}, "cc" + producers[2:] + "-what-comes", ""},
		{"a later version with too much", map[string]any{"traceparent": "cc" + producers[2:] + "-" + strings.Repeat("x", 100)}, "", ""},
		{"this version with more", map[string]any{"traceparent": producers + "-x"}, "", ""},
		{"the version that is none", map[string]any{"traceparent": "ff" + producers[2:]}, "", ""},
		{"another type", map[string]any{"traceparent": int64(7), "tracestate": "a=1"}, "", ""},
		{"empty", map[string]any{"traceparent": ""}, "", ""},
		{"too short", map[string]any{"traceparent": producers[:54]}, "", ""},
		{"upper case", map[string]any{"traceparent": strings.ToUpper(producers)}, "", ""},
		{"no trace", map[string]any{"traceparent": "00-" + zero + producers[35:]}, "", ""},
		{"no span", map[string]any{"traceparent": producers[:36] + zero[:16] + "-01"}, "", ""},
		{"another line", map[string]any{"traceparent": "cc" + producers[2:] + "-\r\nx: y"}, "", ""},
		{"state without its parent", map[string]any{"tracestate": "a=1"}, "", ""},
		{"state with another line", map[string]any{"traceparent": producers, "tracestate": "a=1\nX: y"}, producers, ""},
		{"state beyond all measure", map[string]any{"traceparent": producers, "tracestate": strings.Repeat("a", 2049)}, producers, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if parent, state := TraceContext(tt.headers); parent != tt.parent || state != tt.state {
				t.Errorf("%q, %q; want %q, %q", parent, state, tt.parent, tt.state)
			}
		})
	}
}

func TestRepublished_KeepsTheAttemptsSpanBesideTheProducers(t *testing.T) {
	t.Parallel()
	m := Message{Headers: map[string]any{"traceparent": producers, HeaderTraceparent: producers}}
	s := Decode(m, "", noon)
	s.Traceparent = attempts
	for name, republish := range map[string]func() (Message, error){
		"parked":   func() (Message, error) { return Parked(m, s, "work", "1s", noon) },
		"returned": func() (Message, error) { return Returned(m, s, "work", noon) },
		"failed":   func() (Message, error) { return Failed(m, s, "work", Final{Reason: "MaxAge", At: noon}) },
	} {
		copied, err := republish()
		if err != nil {
			t.Fatal(err)
		}
		if copied.Headers["traceparent"] != producers || Decode(copied, "", noon).Traceparent != attempts {
			t.Errorf("%s: headers %v", name, copied.Headers)
		}
	}
	s.Traceparent = ""
	if copied, err := Returned(m, s, "work", noon); err != nil || copied.Headers[HeaderTraceparent] != nil {
		t.Errorf("an attempt that was not traced leaves %v, error %v", copied.Headers, err)
	}
}

func TestDecode_TakesASpanThatIsNoneForGarbage(t *testing.T) {
	t.Parallel()
	for _, value := range []any{"00-x", int64(1), producers + "-x", strings.ToUpper(producers), []any{producers}} {
		s := Decode(Message{Headers: map[string]any{HeaderTraceparent: value}}, "", noon)
		if s.Traceparent != "" || len(s.Garbage) != 1 || s.Garbage[0] != HeaderTraceparent {
			t.Errorf("%v: %q, garbage %v", value, s.Traceparent, s.Garbage)
		}
	}
}

func TestReturned_DropsTheSpanWhereItWouldNotFit(t *testing.T) {
	t.Parallel()
	m := Message{Headers: map[string]any{"x": strings.Repeat("x", MaxHeaderSize-60)}}
	copied, err := Returned(m, State{Traceparent: attempts}, "work", noon.Add(time.Second))
	if err != nil || copied.Headers[HeaderTraceparent] != nil {
		t.Errorf("headers of %d bytes, error %v", HeaderSize(copied.Headers), err)
	}
}
