package broker

import "context"

// Waiter is told what waits for somebody else, such as the other end of a connection, so that others may go on meanwhile.
type Waiter interface {
	// Wait calls wait, once.
	Wait(ctx context.Context, wait func())
}

type waiterKey struct{}

// WithWaiter has a waiter told of all that is waited for with the context.
func WithWaiter(ctx context.Context, waiter Waiter) context.Context {
	return context.WithValue(ctx, waiterKey{}, waiter)
}

// Await calls wait, by the waiter of the context where it has one.
func Await(ctx context.Context, wait func()) {
	if waiter, ok := ctx.Value(waiterKey{}).(Waiter); ok {
		waiter.Wait(ctx, wait)
		return
	}
	wait()
}
