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

func userHeaders(all map[string]any) map[string]any {
	headers := make(map[string]any, len(all))
	for name, value := range all {
		if !strings.HasPrefix(name, HeaderPrefix) {
			headers[name] = value
		}
	}
	return headers
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
