package process

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"redrive.dev/redrive/handler"
)

// frame is what the worker writes.
type frame struct {
	Type     string    `json:"type"`
	ID       string    `json:"id"`
	Deadline time.Time `json:"deadline"`
	Message  struct {
		ID              string         `json:"id"`
		IdempotencyKey  string         `json:"idempotencyKey"`
		Attempt         int64          `json:"attempt"`
		Retries         int64          `json:"retries"`
		Queue           string         `json:"queue"`
		Exchange        string         `json:"exchange"`
		RoutingKey      string         `json:"routingKey"`
		Type            string         `json:"type"`
		CorrelationID   string         `json:"correlationId"`
		ReplyTo         string         `json:"replyTo"`
		AppID           string         `json:"appId"`
		UserID          string         `json:"userId"`
		Priority        uint8          `json:"priority"`
		Expiration      string         `json:"expiration"`
		ContentType     string         `json:"contentType"`
		ContentEncoding string         `json:"contentEncoding"`
		Traceparent     string         `json:"traceparent"`
		Tracestate      string         `json:"tracestate"`
		Timestamp       time.Time      `json:"timestamp"`
		FirstFailure    time.Time      `json:"firstFailure"`
		Carry           string         `json:"carry"`
		Headers         map[string]any `json:"headers"`
	} `json:"message"`
	Body       string `json:"body"`
	BodyBase64 []byte `json:"bodyBase64"`
}

// result is what the program answers, where that is not just success.
type result struct {
	Type       string         `json:"type"`
	ID         string         `json:"id"`
	Outcome    string         `json:"outcome"`
	Class      string         `json:"class,omitempty"`
	Message    string         `json:"message,omitempty"`
	Status     int            `json:"status,omitempty"`
	RetryAfter *float64       `json:"retryAfter,omitempty"`
	Advice     handler.Advice `json:"advice,omitempty"`
	Carry      *string        `json:"carry,omitempty"`
}

// read reads a line.
func (f *frame) read(line []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber() // a float64 has not room for each 64-bit integer
	if err := decoder.Decode(f); err != nil {
		return fmt.Errorf("read a frame: %w", err)
	}
	if f.Type == "message" && f.ID == "" {
		return errors.New("read a frame: a message without an id")
	}
	return nil
}

func (f *frame) quotedID() []byte {
	quoted, _ := json.Marshal(f.ID) //nolint:errchkjson // a text
	return quoted
}

// message is the message of a frame, as handlers know it.
func (f *frame) message() *handler.Message {
	m := &f.Message
	body := f.BodyBase64
	if body == nil {
		body = []byte(f.Body)
	}
	for name, value := range m.Headers {
		m.Headers[name] = plain(value)
	}
	return &handler.Message{
		Body: body, ContentType: m.ContentType, ContentEncoding: m.ContentEncoding, Headers: m.Headers,
		ID: m.ID, IdempotencyKey: m.IdempotencyKey, Attempt: m.Attempt, Retries: m.Retries, Queue: m.Queue, Exchange: m.Exchange,
		RoutingKey: m.RoutingKey, Type: m.Type, CorrelationID: m.CorrelationID, ReplyTo: m.ReplyTo, AppID: m.AppID, UserID: m.UserID,
		Priority: m.Priority, Expiration: m.Expiration, Timestamp: m.Timestamp, FirstFailure: m.FirstFailure, Carry: m.Carry,
		Traceparent: m.Traceparent, Tracestate: m.Tracestate,
	}
}

// plain makes an int64 of each number that is one, and a float64 of the others.
func plain(value any) any {
	switch v := value.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		n, _ := v.Float64() // out of range it is an infinity
		return n
	case map[string]any:
		for name, inner := range v {
			v[name] = plain(inner)
		}
	case []any:
		for i, inner := range v {
			v[i] = plain(inner)
		}
	}
	return value
}
