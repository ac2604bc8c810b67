package handler

import (
	"bytes"

	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/message"
)

// messageOf copies a request whole. What a program does with its copy, now or in a call that has run away, must not alter the
// message that is published again.
func messageOf(r *Request) *public.Message {
	m := &public.Message{
		Body:            bytes.Clone(r.Body),
		ContentType:     r.ContentType,
		ContentEncoding: r.ContentEncoding,
		ID:              r.ID,
		IdempotencyKey:  r.IdempotencyKey,
		Attempt:         r.Attempt,
		Retries:         r.Retries,
		Queue:           r.Queue,
		Exchange:        r.Exchange,
		RoutingKey:      r.RoutingKey,
		Type:            r.Type,
		CorrelationID:   r.CorrelationID,
		ReplyTo:         r.ReplyTo,
		AppID:           r.AppID,
		UserID:          r.UserID,
		Priority:        r.Priority,
		Expiration:      r.Expiration,
		Timestamp:       r.Timestamp,
		FirstFailure:    r.FirstFailure,
		Carry:           r.Carry,
		Traceparent:     r.Traceparent,
		Tracestate:      r.Tracestate,
	}
	if len(r.Headers) > 0 {
		m.Headers = copyOf(r.Headers)
	}
	return m
}

// sizeOf is about what such a copy takes in memory, in bytes.
func sizeOf(r *Request) int64 {
	return message.MemorySize(&message.Message{Body: r.Body, Headers: r.Headers})
}

// FrameSize implements Framer: a call gets a copy of its message.
func (h *InProcess) FrameSize(m *message.Message) int { return int(message.MemorySize(m)) }

func copyOf(table map[string]any) map[string]any {
	made := make(map[string]any, len(table))
	for name, value := range table {
		made[name] = copyValue(value)
	}
	return made
}

// copyValue copies a header's value. Their depth is bounded where they are read from the wire.
func copyValue(value any) any {
	switch value := value.(type) {
	case map[string]any:
		return copyOf(value)
	case []any:
		made := make([]any, len(value))
		for i := range value {
			made[i] = copyValue(value[i])
		}
		return made
	case []byte:
		return bytes.Clone(value)
	default:
		return value
	}
}
