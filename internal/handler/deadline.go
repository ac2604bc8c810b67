package handler

import (
	"context"
	"time"
)

// attemptKey is the key of an attempt in its context.
type attemptKey struct{}

// attempt is what a handler needs to give an attempt more time.
type attempt struct {
	// parent is the context without the attempt's own deadline.
	parent  context.Context //nolint:containedctx // it is kept for as long as the context that it is the parent of
	timeout time.Duration
	limit   time.Time
}

// WithTimeout returns the context of an attempt, which ends after timeout. A handler may give the attempt more time, but never so
// that it takes longer than limit altogether; a limit that is shorter than timeout allows for none.
func WithTimeout(ctx context.Context, timeout, limit time.Duration) (context.Context, context.CancelFunc) {
	a := &attempt{parent: ctx, timeout: timeout, limit: time.Now().Add(max(timeout, limit))}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return context.WithValue(ctx, attemptKey{}, a), cancel
}

// whole returns the context that the attempt of ctx is a part of, which has no end for the attempt's time. Where ctx was not made by
// WithTimeout it is returned as it is.
func whole(ctx context.Context) context.Context {
	if a, ok := ctx.Value(attemptKey{}).(*attempt); ok {
		return a.parent
	}
	return ctx
}

// Extended returns a context for the rest of the attempt that ctx belongs to, in place of ctx. It ends after remaining, or after
// the attempt's whole timeout where remaining is 0, but not after the attempt's limit; and it ends with what the attempt is a
// part of. Where ctx was not made by WithTimeout it is returned as it is.
func Extended(ctx context.Context, remaining time.Duration) (context.Context, context.CancelFunc) {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	if !ok {
		return ctx, func() {}
	}
	if remaining == 0 {
		remaining = a.timeout
	}
	deadline := time.Now().Add(remaining)
	if deadline.After(a.limit) {
		deadline = a.limit
	}
	ctx, cancel := context.WithDeadline(a.parent, deadline)
	return context.WithValue(ctx, attemptKey{}, a), cancel
}
