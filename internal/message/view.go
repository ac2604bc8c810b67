package message

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"redrive.dev/redrive/internal/retry"
)

// headerType is where producers without the AMQP property put a message's type, Symfony Messenger among them.
const headerType = "type"

// View returns what expressions and handlers see of a message in a queue, at every attempt the same: with its original exchange,
// routing key and properties, with the records of dead-lettering that it had when it first came to the queue, and without
// Redrive's headers and the broker's counts of deliveries. A decimal is a float64. Header values and the body are shared with m,
// and not to be altered.
func View(m Message, s State, queue string) retry.Message {
	kind := m.Type
	if kind == "" {
		kind, _ = textual(m.Headers[headerType])
	}
	expiration, _ := spanOf(s.Expiration)
	return retry.Message{
		ID:            s.ID,
		Type:          kind,
		Exchange:      s.Exchange,
		RoutingKey:    s.RoutingKey,
		Queue:         queue,
		ContentType:   m.ContentType,
		CorrelationID: m.CorrelationID,
		ReplyTo:       m.ReplyTo,
		AppID:         m.AppID,
		UserID:        s.UserID,
		Expiration:    expiration,
		Headers:       userHeaders(m.Headers, s),
		Priority:      int(s.Priority),
		Timestamp:     m.Timestamp,
		Body:          m.Body,
	}
}

// userHeaders are the producer's. Mostly these are all, and need no copy.
func userHeaders(all map[string]any, s State) map[string]any {
	recorded := s.parked || s.Original != nil // what all has of records is not what the message first came with
	whole := len(s.Original) == 0
	for name, value := range all {
		if !whole {
			break
		}
		whole = isUsers(name, recorded) && !hasDecimal(value)
	}
	if whole {
		return all
	}
	headers := make(map[string]any, len(all)+len(s.Original))
	for name, value := range all {
		if isUsers(name, recorded) {
			headers[name] = plain(value)
		}
	}
	for name, value := range s.Original {
		headers[name] = plain(value)
	}
	return headers
}

func isUsers(name string, recorded bool) bool {
	return !strings.HasPrefix(name, HeaderPrefix) && !isCount(name) && (!recorded || !isRecord(name))
}

// hasDecimal reports whether a header's value is a decimal, or holds one.
func hasDecimal(value any) bool {
	switch v := value.(type) {
	case Decimal:
		return true
	case map[string]any:
		for _, item := range v {
			if hasDecimal(item) {
				return true
			}
		}
	case []any:
		return slices.ContainsFunc(v, hasDecimal)
	}
	return false
}

// plain returns a header's value with its decimals as numbers: a copy where it holds any.
func plain(value any) any {
	if !hasDecimal(value) {
		return value
	}
	switch v := value.(type) {
	case Decimal:
		return v.Float()
	case map[string]any:
		copied := make(map[string]any, len(v))
		for name, item := range v {
			copied[name] = plain(item)
		}
		return copied
	case []any:
		copied := make([]any, len(v))
		for i, item := range v {
			copied[i] = plain(item)
		}
		return copied
	}
	return value
}

// Strip takes the headers out that Decode has read, and the records that a lane has written: nobody is to see these, and without them
// most messages need no copy for a view. Whatever publishes the message again writes its own anew.
func Strip(headers map[string]any, s State) {
	for name := range headers {
		if isOwn(name) || s.parked && isRecord(name) {
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
