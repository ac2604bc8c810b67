package handler

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"
)

const (
	// maxCarriedValue and maxCarried bound what is carried over of a message's headers, one value and all together.
	maxCarriedValue = 8 << 10
	maxCarried      = 32 << 10
	// maxMeta bounds a value that describes the message; AMQP allows 255 bytes.
	maxMeta = 1 << 10
)

// idempotencyKey is the header of the IETF draft, deliberately not in its canonical spelling, which is the same to every
// server: net/http takes a POST with the canonical one for safe to send twice, and does so without a word when a
// connection breaks.
const idempotencyKey = "idempotency-key"

// requestHeader returns the headers of the request: the message's own ones that may be carried over, then ours, which
// always win.
func requestHeader(r Request, userAgent string) http.Header {
	header := make(http.Header, len(r.Headers)+16)
	carry(header, r.Headers)

	contentType := fieldValue(r.ContentType)
	if contentType == "" || len(contentType) > maxMeta {
		contentType = "application/octet-stream"
	}
	header["Content-Type"] = []string{contentType}
	if isContentCoding(r.ContentEncoding) {
		header["Content-Encoding"] = []string{fieldValue(r.ContentEncoding)}
	}
	header["User-Agent"] = []string{userAgent}
	if r.IdempotencyKey != "" {
		header[idempotencyKey] = []string{fieldValue(r.IdempotencyKey)}
	}
	describe(header, r)
	return header
}

// describe adds what is known about the message and the attempt. What is empty is left out.
func describe(header http.Header, r Request) {
	set := func(name, value string) {
		if value = fieldValue(value); value != "" && len(value) <= maxMeta {
			header[name] = []string{value}
		}
	}
	set("Redrive-Message-Id", r.ID)
	set("Redrive-Idempotency-Key", r.IdempotencyKey)
	set("Redrive-Attempt", strconv.FormatInt(r.Attempt, 10))
	set("Redrive-Retries", strconv.FormatInt(r.Retries, 10))
	set("Redrive-Queue", r.Queue)
	set("Redrive-Exchange", r.Exchange)
	set("Redrive-Routing-Key", r.RoutingKey)
	set("Redrive-Type", r.Type)
	set("Redrive-Correlation-Id", r.CorrelationID)
	if !r.Timestamp.IsZero() {
		set("Redrive-Timestamp", r.Timestamp.UTC().Format(time.RFC3339))
	}
	if !r.FirstFailure.IsZero() {
		set("Redrive-First-Failure", r.FirstFailure.UTC().Format(time.RFC3339Nano))
	}
}

// carry copies the message's headers that are valid and harmless over HTTP, in the order of their names so that the same
// ones are left out at every attempt. A value that is too long is left out whole: half a value misleads.
func carry(header http.Header, own map[string]any) {
	left := maxCarried
	for _, name := range slices.Sorted(maps.Keys(own)) {
		canonical := http.CanonicalHeaderKey(name)
		if _, there := header[canonical]; there || !mayCarry(name) {
			continue
		}
		text, ok := scalar(own[name])
		if !ok || len(text) > maxCarriedValue || len(canonical)+len(text) > left {
			continue
		}
		left -= len(canonical) + len(text)
		header[canonical] = []string{fieldValue(text)}
	}
}

// mayCarry reports whether a message may set an HTTP header. A message is data from a producer: it does not frame the
// request, does not log in, does not say where the request comes from, and does not speak for Redrive. Names are compared
// with '-' for '_', since CGI and its kin cannot tell them apart.
func mayCarry(name string) bool {
	if !httpguts.ValidHeaderFieldName(name) {
		return false
	}
	lower := strings.ReplaceAll(strings.ToLower(name), "_", "-")
	switch lower {
	case "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "te", "trailer",
		"transfer-encoding", "upgrade": // framing, and hop by hop
		return false
	case "content-type", "content-encoding", "user-agent", "accept-encoding", "idempotency-key", "x-idempotency-key": // ours
		return false
	case "authorization", "cookie", "cookie2", "proxy", "forwarded", "x-real-ip", "x-http-method", "x-http-method-override",
		"x-method-override": // who asks, from where, and for what
		return false
	}
	for _, prefix := range []string{"redrive-", "proxy-", "x-forwarded-"} {
		if strings.HasPrefix(lower, prefix) {
			return false
		}
	}
	return true
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
