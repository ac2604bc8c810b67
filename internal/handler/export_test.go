package handler

import (
	"context"
	"net"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

// NewBriskHTTP is NewHTTP, for tests that cannot wait as long as a worker: it asks and looks more often.
func NewBriskHTTP(spec v1alpha1.HTTPHandler, options Options) (*HTTP, error) {
	return newHTTP(spec, options, pace{
		ready: 20 * time.Millisecond, notReady: 10 * time.Millisecond, doubted: time.Millisecond, answer: 2 * time.Second, files: 10 * time.Millisecond,
		silence: 20 * time.Millisecond, pong: 20 * time.Millisecond, idle: 20 * time.Millisecond,
	})
}

// NewIdleHTTP is NewHTTP, for tests of what is done at once: it asks and looks on its own only once in an hour.
func NewIdleHTTP(spec v1alpha1.HTTPHandler, options Options) (*HTTP, error) {
	return newHTTP(spec, options, pace{
		ready: time.Hour, notReady: 10 * time.Millisecond, doubted: time.Millisecond, answer: 2 * time.Second, files: time.Hour, idle: time.Hour,
	})
}

// AfterDial calls a function between the making of a connection and its first use.
func (h *HTTP) AfterDial(call func()) {
	dial := h.wire.dial
	h.wire.dial = func(ctx context.Context) (net.Conn, error) {
		c, err := dial(ctx)
		call()
		return c, err
	}
}

// HoldDials has no connection come about, as where an address swallows what is sent to it.
func (h *HTTP) HoldDials() {
	h.wire.dial = func(ctx context.Context) (net.Conn, error) {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: ctx.Err()}
	}
}
