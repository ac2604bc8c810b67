package message

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	"redrive.dev/redrive/internal/retry"
)

// headerType is where producers without the AMQP property put a message's type, Symfony Messenger among them.
const headerType = "type"

// View returns what expressions and handlers see of a message in a queue: with its original exchange and routing key, and
// without Redrive's headers. Header values and the body are shared with m, and not to be altered.
func View(m Message, s State, queue string) retry.Message {
	kind := m.Type
	if kind == "" {
		kind, _ = textual(m.Headers[headerType])
	}
	return retry.Message{
		ID:          s.ID,
		Type:        kind,
		Exchange:    s.Exchange,
		RoutingKey:  s.RoutingKey,
		Queue:       queue,
		ContentType: m.ContentType,
		Headers:     userHeaders(m.Headers),
		Priority:    int(s.Priority),
		Timestamp:   m.Timestamp,
		Body:        m.Body,
	}
}

// userHeaders are those without our prefix. Mostly these are all, and need no copy.
func userHeaders(all map[string]any) map[string]any {
	ours := 0
	for name := range all {
		if strings.HasPrefix(name, HeaderPrefix) {
			ours++
		}
	}
	if ours == 0 {
		return all
	}
	headers := make(map[string]any, len(all)-ours)
	for name, value := range all {
		if !strings.HasPrefix(name, HeaderPrefix) {
			headers[name] = value
		}
	}
	return headers
}

// Strip takes the headers out that Decode has read. Whatever publishes the message again writes them anew.
func Strip(headers map[string]any) {
	for name := range headers {
		if isOwn(name) {
			delete(headers, name)
		}
	}
}

// IdempotencyKey identifies the work that a message is in one work queue: it is the same for every attempt and differs
// between queues. It is 32 hexadecimal digits; empty where the id is.
func IdempotencyKey(queue, id string) string {
	if id == "" {
		return ""
	}
	var space [256]byte // most need no more
	text := strconv.AppendInt(space[:0], int64(len(queue)), 10)
	text = append(append(append(text, ':'), queue...), id...)
	sum := sha256.Sum256(text)
	var digits [32]byte
	hex.Encode(digits[:], sum[:16])
	return string(digits[:])
}
