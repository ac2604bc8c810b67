package handler

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	kjson "sigs.k8s.io/json"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// maxRetryAfter bounds the delay that an answer may ask for.
const maxRetryAfter = 720 * time.Hour

// problemType is the type of a problem of RFC 9457.
const problemType = "application/problem+json"

// excerpt is how much of an answer's text is looked at for a failure's message.
const excerpt = 2 << 10

// told is what the headers of an answer that is no success say.
type told struct {
	contentType, contentEncoding, retryAfter, date, advice string
	// carry as it stands there; nil where there is none.
	carry *string
}

// takeHeaders takes out of an answer what its headers say, and lets go of them: thousands of short ones take much more memory than room on
// the wire, for as long as a server holds back the body.
func takeHeaders(response *http.Response) (t told) {
	header := response.Header
	response.Header = nil
	t.contentType, t.contentEncoding = header.Get("Content-Type"), header.Get("Content-Encoding")
	t.retryAfter, t.date, t.advice = header.Get("Retry-After"), header.Get("Date"), header.Get("Redrive-Advice")
	if values := header.Values(headerCarry); len(values) > 0 {
		t.carry = new(values[0])
	}
	return t
}

func (t *told) mediaType() string {
	mediaType, _, _ := mime.ParseMediaType(t.contentType)
	return mediaType
}

// at is when the answer was made, by the clock of who made it: a date in it is of that clock. It is now where the answer does not tell.
func (t *told) at(now time.Time) time.Time {
	date, err := http.ParseTime(strings.TrimSpace(t.date))
	if err != nil {
		return now
	}
	return date
}

// isProblem is true of a problem as in RFC 9457.
func (t *told) isProblem() bool { return t.mediaType() == problemType }

// refusal makes a failure out of an answer that is not success. An RFC 9457 problem names its class and message;
// otherwise the message is the status and the beginning of the body, if that is text.
func (h *HTTP) refusal(status int, said told, body []byte) *retry.Failure {
	carry, err := carryOf(said.carry)
	if err != nil {
		return malformedResult(err)
	}
	advice, _ := readAdvice(strings.TrimSpace(said.advice)) // none where the header makes no sense
	failure := &retry.Failure{
		Carry:      carry,
		Source:     retry.SourceHandler,
		Status:     status,
		RetryAfter: retryAfter(said.retryAfter, said.at(h.clock())),
		Advice:     stopped(advice, isNegative(said.retryAfter)),
	}
	mediaType := said.mediaType()
	if mediaType == problemType {
		failure.Class, failure.Message = problem(body)
	}
	logged := failure.Message
	if logged == "" {
		logged = statusLine(status)
		failure.Message = logged
		if text := plainText(said.contentEncoding, mediaType, body); failure.Class == "" && text != "" {
			failure.Message += ": " + text
		}
	}
	failure.Class = message.Text(failure.Class, message.MaxClass)
	failure.Message = message.Text(failure.Message, message.MaxText)
	failure.Logged = message.Text(logged, message.MaxText)
	return failure
}

// isNegative reports whether a Retry-After header is a number of seconds below 0.
func isNegative(value string) bool {
	digits, negative := strings.CutPrefix(strings.TrimSpace(value), "-")
	return negative && strings.Trim(digits, "0123456789") == "" && strings.Trim(digits, "0") != ""
}

// stopped is the advice of a handler whose delay is negative: no more retries, where it does not ask for the message to be failed or
// dropped anyway.
func stopped(advice retry.Advice, negative bool) retry.Advice {
	if !negative || advice == retry.AdviseFail || advice == retry.AdviseDrop {
		return advice
	}
	return retry.AdviseStop
}

// retryAfter returns the delay that a Retry-After header asks for, at most maxRetryAfter; nil where it asks for none or
// makes no sense. A date counts from that of the answer, and one before it asks for no wait.
func retryAfter(value string, answered time.Time) *time.Duration {
	value = strings.TrimSpace(value)
	if value == "" {
		return nil
	}
	var delay time.Duration
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil { // more digits than fit
			seconds = int64(maxRetryAfter / time.Second)
		}
		delay = time.Duration(min(seconds, int64(maxRetryAfter/time.Second))) * time.Second
	} else {
		date, err := http.ParseTime(value)
		if err != nil {
			return nil
		}
		delay = min(max(date.Sub(answered), 0), maxRetryAfter)
	}
	return &delay
}

// problem returns the type and the title and detail of an RFC 9457 problem; what is not text in it is passed over.
func problem(body []byte) (class, text string) {
	var fields struct {
		Type   json.RawMessage `json:"type"`
		Title  json.RawMessage `json:"title"`
		Detail json.RawMessage `json:"detail"`
	}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(trimLine(body), &fields); err != nil {
		return "", ""
	}
	class = textOf(fields.Type)
	if class == "about:blank" {
		class = ""
	}
	title, detail := textOf(fields.Title), textOf(fields.Detail)
	switch {
	case title == "":
		return class, detail
	case detail == "":
		return class, title
	}
	return class, title + ": " + detail
}

// textOf returns a value of JSON that is a text; "" for any other. Of those nothing is made, for a list of empty tables takes fifty times
// the memory that it takes as JSON.
func textOf(value json.RawMessage) (text string) {
	if len(value) == 0 || value[0] != '"' || kjson.UnmarshalCaseSensitivePreserveInts(value, &text) != nil {
		return ""
	}
	return text
}

// plainText returns the beginning of a body, in one line; empty if it is not text.
func plainText(encoding, mediaType string, body []byte) string {
	if encoding != "" {
		return ""
	}
	if mediaType == "" {
		mediaType, _, _ = mime.ParseMediaType(http.DetectContentType(body))
	}
	textual := strings.HasPrefix(mediaType, "text/") ||
		strings.HasSuffix(mediaType, "json") || strings.HasSuffix(mediaType, "xml")
	if !textual {
		return ""
	}
	return strings.Join(strings.Fields(message.Text(string(body), excerpt)), " ")
}

func statusLine(code int) string {
	return strings.TrimSpace(fmt.Sprintf("HTTP %d %s", code, http.StatusText(code)))
}
