package broker

import "context"

// Waiter is told what waits for somebody else, such as the other end of a connection, so that others may go on meanwhile.
type Waiter interface {
	// Wait calls wait, once, and may take until the context is over to go on.
	Wait(ctx context.Context, wait func())
	// Another waits for its turn to compute while this one waits, in another goroutine. It is to be released.
	Another(ctx context.Context) (another Waiter, release func(), err error)
}

type waiterKey struct{}

// waiting is a waiter and the time that it has: that of one request may be over when the waiter is to go on.
type waiting struct {
	Waiter

	ctx context.Context //nolint:containedctx // It is a part of others.
}

// WithWaiter has a waiter told of all that is waited for with the context. The waiter has the time of this context, whatever a part of it has.
func WithWaiter(ctx context.Context, waiter Waiter) context.Context {
	return context.WithValue(ctx, waiterKey{}, waiting{waiter, ctx})
}

// Await calls wait, by the waiter of the context where it has one.
func Await(ctx context.Context, wait func()) {
	if waiter, ok := ctx.Value(waiterKey{}).(waiting); ok {
		waiter.Wait(waiter.ctx, wait) //nolint:contextcheck // What was waited for may have had less time than the waiter.
		return
	}
	wait()
}

// compute calls what computes beside the goroutine that waits for it, when another waiter has its turn, which is in its context then.
func compute(ctx context.Context, computation func(ctx context.Context) error) error {
	waiter, ok := ctx.Value(waiterKey{}).(waiting)
	if !ok {
		return computation(ctx)
	}
	another, release, err := waiter.Another(ctx)
	if err != nil {
		return err
	}
	defer release()
	return computation(WithWaiter(ctx, another))
}
