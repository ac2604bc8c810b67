package handler

import (
	"bytes"
	"io"
	"log" //nolint:depguard // net/http writes to it
)

// unsolicited is how net/http begins a line, in the log of the standard library, about an answer that nobody asked for. The answer follows.
const unsolicited = "Unsolicited response received on idle HTTP channel"

// GuardStandardLog keeps answers of handlers out of the log of the standard library, to which net/http writes the beginning of one that nobody
// asked for: it may have parts of a message in it. Programs call it once, when they start.
func GuardStandardLog() { log.SetOutput(&withoutAnswers{log.Writer()}) }

// withoutAnswers passes lines on, without the answers in them.
type withoutAnswers struct{ to io.Writer }

// Write implements io.Writer.
func (w *withoutAnswers) Write(line []byte) (int, error) {
	kept := line
	if at := bytes.Index(line, []byte(unsolicited)); at >= 0 {
		kept = append(bytes.Clone(line[:at+len(unsolicited)]), ": the handler answered a request twice\n"...)
	}
	if _, err := w.to.Write(kept); err != nil {
		return 0, err //nolint:wrapcheck // the log's own
	}
	return len(line), nil
}
