package httpserver

import (
	"bytes"
	"fmt"
	"io"
	"log" //nolint:depguard // net/http writes to it

	"golang.org/x/time/rate"
)

// standardBurst and standardPerSecond bound the lines of the log of the standard library. net/http writes one for each frame of HTTP/2 that it does not
// know, and a server may send a million in a second.
const (
	standardBurst     = 20
	standardPerSecond = 1
)

// unsolicited is how net/http begins a line, in the log of the standard library, about an answer that nobody asked for. The answer follows.
const unsolicited = "Unsolicited response received on idle HTTP channel"

// GuardStandardLog keeps answers of others out of the log of the standard library, to which net/http writes the beginning of one that nobody
// asked for: it may have parts of a message in it, or thousands of any bytes. It also keeps that log within bounds. Programs call it once, when
// they start.
func GuardStandardLog() { log.SetOutput(newWithoutAnswers(log.Writer())) }

// withoutAnswers passes lines on, without the answers in them, and not more than a few at a time. The log writes one after the other.
type withoutAnswers struct {
	to    io.Writer
	limit *rate.Limiter
	// dropped is how many were left out since the last one.
	dropped int
}

func newWithoutAnswers(to io.Writer) *withoutAnswers {
	return &withoutAnswers{to: to, limit: rate.NewLimiter(standardPerSecond, standardBurst)}
}

// Write implements io.Writer.
func (w *withoutAnswers) Write(line []byte) (int, error) {
	if !w.limit.Allow() {
		w.dropped++
		return len(line), nil
	}
	kept := line
	if at := bytes.Index(line, []byte(unsolicited)); at >= 0 {
		kept = append(bytes.Clone(line[:at+len(unsolicited)]), ": a server answered a request twice\n"...)
	}
	if w.dropped > 0 {
		kept = fmt.Appendf(nil, "%d lines before this one are left out\n%s", w.dropped, kept)
		w.dropped = 0
	}
	if _, err := w.to.Write(kept); err != nil {
		return 0, err //nolint:wrapcheck // the log's own
	}
	return len(line), nil
}
