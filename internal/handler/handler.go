// Package handler calls the team's own code with a message and makes a failure out of whatever is not success. There is
// one contract, Handler, and one conformance suite for it in the package handlertest.
package handler

import (
	"context"
	"time"

	"redrive.dev/redrive/internal/retry"
)

// Request is one attempt at one message.
type Request struct {
	Body            []byte
	ContentType     string
	ContentEncoding string
	// Headers of the message as its producer set them, without Redrive's own; at every attempt the same.
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
	// Type of the message, as expressions see it; may be empty.
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
	// Deadline of the message, after which it is handed to nobody; zero where there is none. An attempt that has begun may go on after it.
	Deadline time.Time
	// FirstFailure is zero on the first attempt.
	FirstFailure time.Time
	// Carry is what the last failed attempt asked to have back; empty where there is nothing.
	Carry string
	// Traceparent and Tracestate are the W3C trace context of this attempt; empty where there is none.
	Traceparent, Tracestate string
	// Begin is called by a Drainer right before an attempt begins, for what let the message go may not hold any more after a wait. It may
	// wait itself, until ctx ends; that is none of the attempt's time. Where it is false the attempt does not begin: a failure of the class
	// ClassNotBegun. nil lets all begin.
	Begin func(ctx context.Context) bool
}

// Handler hands messages to the code that does the work. Handle is called by many goroutines at a time.
type Handler interface {
	// Handle makes one attempt and returns nil on success, or else the failure. It returns soon after ctx ends. When
	// its deadline has passed, that is a failure of the source Timeout, or Connection where nobody can have seen the message. When
	// ctx was cancelled, the failure has the class Canceled and says nothing about the message: the work may or may not have been
	// done. A failure of the class ClassNotBegun is no attempt. Handle neither keeps nor alters what is in the request.
	Handle(ctx context.Context, request Request) *retry.Failure
	// Ready is nil while messages may be handed over, and else says why not; that text is for people and holds no secret.
	// changed is closed when the answer may have become another one. A handler that is not ready costs no message an attempt:
	// nothing is handed to it. One that stops being ready while it has messages ends their attempts as usual.
	Ready() (why error, changed <-chan struct{})
	// Close frees what the handler holds. No Handle may run or be called from then on; Close itself may be called again.
	Close() error
}

// Limited is a Handler that begins so many calls at a time, at least 1: of more, it has some wait in the order in which they came. It may change when Ready
// does.
type Limited interface {
	Handler

	Capacity() int
}
