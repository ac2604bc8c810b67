package process

import (
	"context"
	"errors"
	"sync"
	"time"
)

// attemptKey is the key of an attempt in its context.
type attemptKey struct{}

// attempt is the context of a message. It ends at the message's deadline, which moves with each progress as that of the worker does.
type attempt struct {
	context.Context //nolint:containedctx // it is one
	cancel          context.CancelCauseFunc
	timeout         time.Duration
	tell            func()

	mu    sync.Mutex
	end   time.Time
	timer *time.Timer
}

// newAttempt makes the context of a message. A worker that names no deadline gives it all the time there is.
func newAttempt(ctx context.Context, end time.Time, tell func()) *attempt {
	a := &attempt{timeout: time.Until(end), end: end, tell: tell}
	a.Context, a.cancel = context.WithCancelCause(ctx)
	if !end.IsZero() {
		a.timer = time.AfterFunc(a.timeout, func() { a.cancel(context.DeadlineExceeded) })
	}
	return a
}

// Deadline is the one that holds at the moment.
func (a *attempt) Deadline() (time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if all, ok := a.Context.Deadline(); ok && (a.end.IsZero() || all.Before(a.end)) {
		return all, true
	}
	return a.end, !a.end.IsZero()
}

// Err tells a deadline that has passed from another end.
func (a *attempt) Err() error {
	if errors.Is(context.Cause(a.Context), context.DeadlineExceeded) {
		return context.DeadlineExceeded
	}
	return a.Context.Err() //nolint:wrapcheck // it is compared
}

// Value finds the attempt itself.
func (a *attempt) Value(key any) any {
	if key == (attemptKey{}) {
		return a
	}
	return a.Context.Value(key)
}

func (a *attempt) stop() {
	if a.timer != nil {
		a.timer.Stop()
	}
	a.cancel(context.Canceled)
}

// Progress tells the worker that the message of ctx is being worked on: its attempt has its whole timeout anew, in all at most half of
// the broker's consumer timeout. ctx is the one that Serve gave to the handler, or one made of it; for any other nothing happens. It costs a
// line of output: once in a few seconds is often enough.
func Progress(ctx context.Context) {
	a, ok := ctx.Value(attemptKey{}).(*attempt)
	if !ok || a.Err() != nil {
		return
	}
	a.tell()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil && a.timer.Stop() {
		a.end = time.Now().Add(a.timeout)
		a.timer.Reset(a.timeout)
	}
}
