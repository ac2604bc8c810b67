package deadletter

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// causeVersion begins what a cause is made of: causes of another version are others.
const causeVersion = "v1"

// maxTemplate is how much of an error's message counts, in bytes.
const maxTemplate = 200

// causeOf is the fingerprint of a failure: 8 hexadecimal digits, the same for messages that failed alike. The queue is not in it: when a
// partner is down, that is one cause in all queues. role is that of the queue for what the broker gave up.
func causeOf(given retry.Given, last retry.Failure, role string) string {
	parts := []string{
		causeVersion, given.Reason, given.Strategy, string(last.Source), strconv.Itoa(last.Status), last.Class, Template(last.Message),
	}
	if given.Source == SourceBroker {
		parts = []string{causeVersion, SourceBroker, given.Reason, role}
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, " | ")))
	return hex.EncodeToString(sum[:])[:8]
}

// CauseOf is the cause of a message as a worker publishes it to the failure queue; empty for what no worker gave up.
func CauseOf(m message.Message, now time.Time) string {
	_, final, byWorker := message.DecodeFailed(m, now)
	if !byWorker {
		return ""
	}
	return causeOf(retry.Given{Reason: string(final.Reason), Strategy: final.Strategy, Source: SourceWorker}, final.Failure, "")
}

// variable finds what differs between two messages of one error, the longest forms first.
var variable = sync.OnceValue(func() *regexp.Regexp { //nolint:gochecknoglobals // compiled once
	return regexp.MustCompile(strings.Join([]string{
		`(?P<uuid>\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b)`,
		`(?P<email>[\w.+-]+@[\w-]+(?:\.[\w-]+)+)`,
		`(?P<url>\b[a-z][a-z0-9+.-]*://[^\s"'<>]*[^\s"'<>:.,;)])`,
		`(?P<date>\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?)`,
		`(?P<ip>\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\[[0-9a-fA-F:]+\](?::\d+)?)`,
		`(?P<path>(?:/[\w.%~:@-]*[\w%~@-]){2,}/?)`,
		`(?P<s>"[^"]*"|'[^']*'|` + "`[^`]*`" + `|“[^”]*”)`,
		`(?P<hex>\b0x[0-9a-fA-F]+\b|\b(?:[0-9]+[a-fA-F]|[a-fA-F]+[0-9])[0-9a-fA-F]{4,}\b)`,
		`(?P<n>\d+(?:[.,]\d+)*)`,
	}, "|"))
})

// Template is an error's message with what differs from one message to the next replaced: "order 1187 not found" is "order <n> not found".
func Template(text string) string {
	text = strings.Join(strings.Fields(message.Text(text, message.MaxText)), " ")
	find := variable()
	var out strings.Builder
	at := 0
	for _, found := range find.FindAllStringSubmatchIndex(text, -1) {
		out.WriteString(text[at:found[0]])
		for i, name := range find.SubexpNames() {
			if i > 0 && found[2*i] >= 0 {
				out.WriteString("<" + name + ">")
			}
		}
		at = found[1]
	}
	out.WriteString(text[at:])
	return message.Text(out.String(), maxTemplate)
}

// Headline says in a line how a message failed, without what differs between two of one cause.
func (e *Entry) Headline() string { return e.line(Template) }

// ErrorText says in a line how a message failed.
func (e *Entry) ErrorText() string {
	return e.line(func(text string) string { return strings.Join(strings.Fields(text), " ") })
}

func (e *Entry) line(told func(string) string) string {
	if e.Source == SourceBroker || e.Error == nil {
		return e.Explanation
	}
	first := e.Error.Source
	if e.Error.Status != 0 {
		first = strconv.Itoa(e.Error.Status)
	}
	if e.Error.Class != "" {
		first += " " + e.Error.Class
	}
	if text := told(e.Error.Message); text != "" {
		return first + ": " + text
	}
	return first
}
