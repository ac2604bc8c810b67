// Package handler is what a team's Go program needs to handle messages: a Handler, and errors that say what is to become of a
// message. It imports the standard library only.
//
// Two packages make a program of a Handler: redrive.dev/redrive/handler/run makes it the worker itself, which calls the Handler in
// its own process (inProcess in a Transport), and redrive.dev/redrive/handler/process one that a worker starts and hands messages to
// over its standard input (process).
//
// An error is a failed attempt, and the retry policy decides what follows: a retry, after which delay, or the failure queue.
// Fail, RetryAfter, Release and Drop say it themselves. Expressions of a policy read the error's text as error.message, and its class and
// status as ClassError and StatusError tell them.
package handler

import (
	"context"
	"time"
)

// Message is one attempt at one message. It is the Handler's own: it may be kept, and altered, without an effect on the retries.
type Message struct {
	Body            []byte
	ContentType     string
	ContentEncoding string
	// Headers of the message as its producer set them, without Redrive's own; at every attempt the same. They hold strings, numbers of any width, bool,
	// []byte, time.Time, nil, and map[string]any and []any of these; nil where there are none.
	Headers map[string]any

	// ID of the message; the same for every attempt and every copy.
	ID string
	// IdempotencyKey is the same for every attempt at this message in this queue.
	IdempotencyKey string
	// Attempt is 1 for the first.
	Attempt int64
	// Retries that counted against the limit so far.
	Retries int64
	// Queue is the work queue.
	Queue string
	// Exchange and RoutingKey with which the message was first published.
	Exchange   string
	RoutingKey string
	// Type of the message: the AMQP property, or else the header "type"; may be empty.
	Type string
	// CorrelationID, ReplyTo, AppID and Timestamp are the properties; may be empty and zero.
	CorrelationID, ReplyTo, AppID string
	Timestamp                     time.Time
	// UserID is the login of the producer, where it set that property. The broker checks it for whoever publishes, but what a retry
	// carries of it is a header like others, so it authorizes nobody.
	UserID string
	// Priority that the producer gave the message; 0 where it gave none.
	Priority uint8
	// Expiration is the property as the producer set it, in milliseconds; empty where there was none.
	Expiration string
	// FirstFailure, or the first Release, if there was one; zero before.
	FirstFailure time.Time
	// Carry is what the last failed attempt asked to have back with Carry; empty where there is nothing. It is a hint, and no proof: it is
	// lost where the message leaves no room for it, and who may publish to the queue may make one up.
	Carry string
	// Traceparent and Tracestate are the W3C trace context of this attempt; empty where there is none.
	Traceparent, Tracestate string
}

// Handler does the work that a message asks for.
type Handler interface {
	// Handle makes one attempt. nil is success. Any other error is a failure, of which the retry policy decides what becomes,
	// unless Fail, RetryAfter, Release or Drop says it. It is called by as many goroutines at a time as the worker's concurrency says.
	//
	// ctx ends with the attempt's timeout, and Handle has to return then: what it does later is not seen, and the message may
	// be at another attempt already. A message may come more than once even after success; IdempotencyKey tells.
	Handle(ctx context.Context, m *Message) error
}

// Func is a function that is a Handler.
type Func func(ctx context.Context, m *Message) error

// Handle calls f.
func (f Func) Handle(ctx context.Context, m *Message) error { return f(ctx, m) }
