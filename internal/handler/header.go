package handler

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

const (
	// maxMeta bounds a value that describes the message; AMQP allows 255 bytes.
	maxMeta = 1 << 10
)

// idempotencyKey is the header of the IETF draft, deliberately not in its canonical spelling, which is the same to every
// server: net/http takes a POST with the canonical one for safe to send twice, and does so without a word when a
// connection breaks.
const idempotencyKey = "idempotency-key"

// fields are the headers of a request, each name once.
type fields struct{ list []field }

type field struct{ name, value string }

// add adds a valid value under a name in its canonical spelling.
func (f *fields) add(name, value string) {
	f.list = append(f.list, field{name, value})
}

func (f *fields) has(name string) bool {
	for i := range f.list {
		if f.list[i].name == name {
			return true
		}
	}
	return false
}

// header returns them as http.Transport wants them.
func (f *fields) header() http.Header {
	header, values := make(http.Header, len(f.list)), make([]string, len(f.list))
	for i, field := range f.list {
		values[i] = field.value
		header[field.name] = values[i : i+1 : i+1]
	}
	return header
}

// describe fills in the headers of the request: the message's own ones that may be carried over, those of the team's Secret,
// and ours.
func (h *HTTP) describe(f *fields, r Request, secret secretHeaders) {
	contentType := fieldValue(r.ContentType)
	carry := carrier{
		fields: f, headerRules: h.headers, own: r.Headers, secret: secret.names, traced: r.Traceparent != "",
		event: h.cloudEvents, structured: isStructured(contentType),
	}
	carry.carryAll()
	if carry.event && !carry.structured {
		contentType = f.completeEvent(r, contentType)
	}
	if contentType == "" || len(contentType) > maxMeta {
		contentType = "application/octet-stream"
	}
	f.list = append(f.list, secret.list...)
	if !secret.names["user-agent"] {
		f.add("User-Agent", h.userAgent)
	}
	f.add("Content-Type", contentType)
	if isContentCoding(r.ContentEncoding) {
		f.add("Content-Encoding", fieldValue(r.ContentEncoding))
	}
	f.addMeta(idempotencyKey, r.IdempotencyKey)
	f.addMeta("Traceparent", r.Traceparent)
	if r.Traceparent != "" {
		f.addMeta("Tracestate", r.Tracestate)
	}
	f.tell(r)
	f.addCarry(r.Carry)
}

// addMeta adds what is known about the message, unless it is empty.
func (f *fields) addMeta(name, value string) {
	if value = fieldValue(value); value != "" && len(value) <= maxMeta {
		f.add(name, value)
	}
}

// tell adds what Redrive knows about the message and the attempt.
func (f *fields) tell(r Request) {
	set := f.addMeta
	set("Redrive-Message-Id", r.ID)
	set("Redrive-Idempotency-Key", r.IdempotencyKey)
	set("Redrive-Attempt", strconv.FormatInt(r.Attempt, 10))
	set("Redrive-Retries", strconv.FormatInt(r.Retries, 10))
	set("Redrive-Queue", r.Queue)
	set("Redrive-Exchange", r.Exchange)
	set("Redrive-Routing-Key", r.RoutingKey)
	set("Redrive-Type", r.Type)
	set("Redrive-Correlation-Id", r.CorrelationID)
	set("Redrive-Reply-To", r.ReplyTo)
	set("Redrive-App-Id", r.AppID)
	set("Redrive-User-Id", r.UserID)
	set("Redrive-Expiration", r.Expiration)
	if r.Priority > 0 {
		set("Redrive-Priority", strconv.Itoa(int(r.Priority)))
	}
	set("Redrive-Timestamp", knownMoment(r.Timestamp))
	set("Redrive-First-Failure", knownMoment(r.FirstFailure))
}

// plainName is a header's name in small letters, with '-' for '_', since CGI and its kin cannot tell these apart.
func plainName(name string) string {
	return strings.ReplaceAll(strings.ToLower(name), "_", "-")
}

// isReserved reports whether only Redrive, or the HTTP client, sets the header with a plain name.
func isReserved(plain string) bool {
	switch plain {
	case "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "te", "trailer",
		"transfer-encoding", "upgrade": // framing, and hop by hop
		return true
	case "content-type", "content-encoding", "accept-encoding", "idempotency-key", "x-idempotency-key": // ours
		return true
	}
	return strings.HasPrefix(plain, "redrive-") || strings.HasPrefix(plain, "proxy-")
}

// scalar returns the text of a header value that is neither a table nor an array.
func scalar(value any) (string, bool) {
	switch v := value.(type) {
	case string:
		return v, true
	case []byte:
		return string(v), true
	case bool:
		return strconv.FormatBool(v), true
	case int:
		return strconv.Itoa(v), true
	case int8:
		return strconv.FormatInt(int64(v), 10), true
	case int16:
		return strconv.FormatInt(int64(v), 10), true
	case int32:
		return strconv.FormatInt(int64(v), 10), true
	case int64:
		return strconv.FormatInt(v, 10), true
	case uint8:
		return strconv.FormatUint(uint64(v), 10), true
	case uint16:
		return strconv.FormatUint(uint64(v), 10), true
	case uint32:
		return strconv.FormatUint(uint64(v), 10), true
	case float32:
		return strconv.FormatFloat(float64(v), 'g', -1, 32), true
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), true
	case time.Time:
		return v.UTC().Format(time.RFC3339), true
	}
	return "", false
}

// fieldValue makes a text a valid field value: line breaks and other control characters become spaces.
func fieldValue(text string) string {
	if !httpguts.ValidHeaderFieldValue(text) {
		text = strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f {
				return ' '
			}
			return r
		}, text)
	}
	return strings.TrimSpace(text)
}

// isContentCoding reports whether an AMQP content-encoding is one of HTTP's as well. Celery and others put a character
// set there, which an HTTP server would have to refuse.
func isContentCoding(encoding string) bool {
	switch strings.ToLower(encoding) {
	case "", "utf-8", "utf8", "utf-16", "us-ascii", "ascii", "iso-8859-1", "latin1", "binary", "base64", "7bit", "8bit",
		"quoted-printable", "identity":
		return false
	}
	return len(encoding) <= maxMeta
}
