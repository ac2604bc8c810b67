package subprocess_test

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"redrive.dev/redrive/internal/subprocess"
)

func TestTail_IsTheEndOfWhatWasWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		tail := subprocess.Tail{Size: rapid.IntRange(1, 20).Draw(t, "size")}
		var all []byte
		for _, part := range rapid.SliceOf(rapid.SliceOfN(rapid.Byte(), 0, 50)).Draw(t, "parts") {
			if n, err := tail.Write(part); n != len(part) || err != nil {
				t.Fatalf("wrote %d, %v", n, err)
			}
			all = append(all, part...)
			last, cut := tail.Bytes()
			if want := all[max(0, len(all)-tail.Size):]; !bytes.Equal(last, want) || cut != (len(all) > tail.Size) {
				t.Fatalf("got %q, %t of %q", last, cut, all)
			}
		}
		tail.Reset()
		if last, cut := tail.Bytes(); len(last) > 0 || cut {
			t.Fatalf("after a reset: %q, %t", last, cut)
		}
	})
}

func TestText_IsTheReadableEndOfAnOutput(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		output string
		cut    bool
		limit  int
		want   string
	}{
		"lines":                      {"\n one\ntwo\n\n", false, 100, "one\ntwo"},
		"a line that was cut":        {"ne\ntwo", true, 100, "two"},
		"nothing but a part":         {"ne", true, 100, "ne"},
		"more than is wanted":        {"one\ntwo\nthree", false, 8, "three"},
		"one line of too much":       {"0123456789", false, 4, "6789"},
		"half a character":           {"aé", false, 1, ""},
		"bytes that are not text":    {"a\xff\xfeb\x00c\x1b[31md\x7f", false, 100, "a\ufffdbc[31md"},
		"progress of a terminal":     {"10%\r20%\r\ndone\r\n", false, 100, "10%20%\ndone"},
		"nothing":                    {"", false, 100, ""},
		"nothing but what is no end": {"\n\n", true, 100, ""},
	}
	for name, c := range cases {
		if got := subprocess.Text([]byte(c.output), c.cut, c.limit); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("one\ntwo\xff"), true, 5)
	f.Fuzz(func(t *testing.T, output []byte, cut bool, limit int) {
		limit = max(0, limit%1000)
		text := subprocess.Text(output, cut, limit)
		if !utf8.ValidString(text) || len(text) > limit || strings.TrimSpace(text) != text {
			t.Errorf("got %q", text)
		}
	})
}
