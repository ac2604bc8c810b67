package handler

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
)

// eventVersion is the version of CloudEvents that the attributes are of, where the message brings none.
const eventVersion = "1.0"

// attributeOf returns the HTTP header for a header of an AMQP message that is an attribute of a CloudEvent, by the AMQP
// binding: cloudEvents:type, or cloudEvents_type.
func attributeOf(name string) (header string, ok bool) {
	attribute, ok := strings.CutPrefix(name, "cloudEvents:")
	if !ok {
		attribute, ok = strings.CutPrefix(name, "cloudEvents_")
	}
	// The type of the data is told by Content-Type, and the data is the body.
	if !ok || attribute == "" || attribute == "datacontenttype" || attribute == "data" {
		return "", false
	}
	for _, c := range []byte(attribute) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return "", false
		}
	}
	return http.CanonicalHeaderKey("ce-" + attribute), true
}

// attributeValue returns the value of an attribute as a header; "" if it has none that an event could have.
func attributeValue(value any) string {
	if data, ok := value.([]byte); ok {
		return base64.StdEncoding.EncodeToString(data)
	}
	text, _ := scalar(value)
	return eventText(text)
}

// completeEvent adds the attributes that the message does not bring itself, and returns the type of the data.
func (f *fields) completeEvent(r Request, contentType string) string {
	f.attribute("Ce-Specversion", eventVersion)
	f.attribute("Ce-Id", r.ID)
	f.attribute("Ce-Source", eventSource(r))
	f.attribute("Ce-Type", r.Type, r.RoutingKey, r.Queue)
	f.attribute("Ce-Subject", r.RoutingKey)
	f.attribute("Ce-Time", knownMoment(r.Timestamp))
	if contentType != "" {
		return contentType
	}
	for _, name := range []string{"cloudEvents:datacontenttype", "cloudEvents_datacontenttype"} {
		if text, _ := r.Headers[name].(string); text != "" {
			return fieldValue(text)
		}
	}
	return ""
}

// attribute sets one to the first text that is not empty, unless it is there.
func (f *fields) attribute(header string, texts ...string) {
	if f.has(header) {
		return
	}
	for _, text := range texts {
		if value := eventText(text); value != "" && len(value) <= 3*maxMeta {
			f.add(header, value)
			return
		}
	}
}

// eventSource names where the message was published to, as RabbitMQ's AMQP 1.0 addresses do: the exchange, or else, since
// the default exchange has no name, the queue.
func eventSource(r Request) string {
	if r.Exchange == "" {
		return "/queues/" + url.PathEscape(r.Queue)
	}
	return "/exchanges/" + url.PathEscape(r.Exchange)
}

// isStructured reports whether the body is itself an event, in structured or batched mode. It needs no attributes beside it.
func isStructured(contentType string) bool {
	const prefix = "application/cloudevents"
	return len(contentType) >= len(prefix) && strings.EqualFold(contentType[:len(prefix)], prefix)
}

// eventText encodes a value as the HTTP binding of CloudEvents wants it: space, double quote, percent and all that is not
// printable ASCII, byte by byte.
func eventText(text string) string {
	const digits = "0123456789ABCDEF"
	text = strings.ToValidUTF8(text, "\uFFFD")
	plain := func(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' }
	escaped := 0
	for i := range len(text) {
		if !plain(text[i]) {
			escaped++
		}
	}
	if escaped == 0 {
		return text
	}
	var b strings.Builder
	b.Grow(len(text) + 2*escaped)
	for i := range len(text) {
		if c := text[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}
