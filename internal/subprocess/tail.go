package subprocess

import (
	"bytes"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Tail keeps the last bytes that are written to it. It never fails, and may be used by many goroutines at a time.
type Tail struct {
	// Size is how many bytes are kept at most; to be set before the first Write.
	Size int

	mu   sync.Mutex
	kept []byte
	// cut says that there was more before what is kept.
	cut bool
}

// Write keeps the end of p.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	written := len(p)
	if len(p) >= t.Size {
		t.cut = t.cut || len(p) > t.Size || len(t.kept) > 0
		t.kept = append(t.kept[:0], p[len(p)-t.Size:]...)
		return written, nil
	}
	// Twice the size is kept, so that not each write moves all of it.
	if len(t.kept)+len(p) > 2*t.Size {
		keep := t.Size - len(p)
		t.cut = true
		t.kept = append(t.kept[:0], t.kept[len(t.kept)-keep:]...)
	}
	t.kept = append(t.kept, p...)
	return written, nil
}

// Reset forgets what was written.
func (t *Tail) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept, t.cut = t.kept[:0], false
}

// Bytes returns a copy of the last bytes, at most Size, and whether there were more before them.
func (t *Tail) Bytes() (last []byte, cut bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	from := max(0, len(t.kept)-t.Size)
	return bytes.Clone(t.kept[from:]), t.cut || from > 0
}

// String returns the last lines as Text does.
func (t *Tail) String() string {
	last, cut := t.Bytes()
	return Text(last, cut, t.Size)
}

// Text returns the end of an output as text of at most limit bytes: valid UTF-8 without control characters other than line
// breaks and tabs, without blank lines around it. It begins with a whole line where one fits; cut says that the first bytes are
// the end of a longer line.
func Text(output []byte, cut bool, limit int) string {
	text := strings.TrimSpace(strings.ToValidUTF8(string(output), string(utf8.RuneError)))
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\r' || unicode.IsControl(r):
			return -1
		}
		return r
	}, text)
	if len(text) > limit {
		cut = true
		text = text[len(text)-limit:]
		for len(text) > 0 && !utf8.RuneStart(text[0]) {
			text = text[1:]
		}
	}
	if _, rest, ok := strings.Cut(text, "\n"); cut && ok {
		text = rest
	}
	return strings.TrimSpace(text)
}
