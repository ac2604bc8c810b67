package handler

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/subprocess"
)

func TestLastLine_IsFoundHoweverItArrives(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		const size = 40
		l := lastLine{tail: subprocess.Tail{Size: size}}
		var all []byte
		parts := rapid.SliceOf(rapid.SampledFrom([]string{
			"\n", "\r\n", " ", "\t", "{", "}", `"outcome"`, `"out`, `come"`, "x", "yy", strings.Repeat("z", 15), strings.Repeat(" ", 50),
		}))
		for _, part := range rapid.SliceOf(parts).Draw(t, "writes") {
			text := []byte(strings.Join(part, ""))
			if n, err := l.Write(text); n != len(text) || err != nil {
				t.Fatalf("wrote %d, %v", n, err)
			}
			all = append(all, text...)
		}
		got, whole := l.last()

		text := bytes.TrimSpace(all)
		want := bytes.TrimSpace(text[bytes.LastIndexByte(text, '\n')+1:])
		isKept := len(all) <= size || bytes.ContainsRune(bytes.TrimSpace(all[len(all)-size:]), '\n')
		switch {
		case isKept && !bytes.Equal(got, want):
			t.Errorf("got %q, want %q, of %q", got, want, all)
		case isKept && !whole:
			t.Errorf("%q is not whole", all)
		case bytes.Equal(got, want) && whole: // it is kept also where only white space between lines exceeds the size
		case !isKept && got != nil:
			t.Errorf("got %q of a line that is not kept: %q", got, all)
		case !isKept && whole && isResult(want):
			t.Errorf("a result that is not kept passes for none: %q", all)
		case !isKept && !whole && want[0] != '{':
			t.Errorf("%q passes for a result", all)
		}
	})
}

func FuzzResults(f *testing.F) {
	f.Add([]byte(`{"outcome":"ack"}`))
	f.Add([]byte(`{"outcome":"failure","class":"c","message":"m\u0000","status":503,"retryAfter":1.5e9,"advice":"Retry"}`))
	f.Add([]byte(`{"outcome":"failure","retryAfter":-0.0,"status":-2147483648}`))
	f.Add([]byte(`{"outcome":{"outcome":1}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		failure := decodeResult(line)
		if failure == nil {
			if !isResult(bytes.TrimSpace(line)) && bytes.HasPrefix(bytes.TrimSpace(line), []byte("{")) && bytes.Contains(line, []byte(`"outcome"`)) {
				t.Errorf("%q is a success and no result", line)
			}
			return
		}
		if len(failure.Class) > message.MaxClass || len(failure.Message) > message.MaxText {
			t.Errorf("got %+v", failure)
		}
		if delay := failure.RetryAfter; delay != nil && (*delay < 0 || *delay > maxRetryAfter) {
			t.Errorf("got the delay %s", *delay)
		}
	})
}
