package run

import (
	"context"
	"errors"
	"testing"
)

// stuck is what tells that a handler is beyond help.
type stuck chan struct{}

func (s stuck) Stuck() <-chan struct{} { return s }

func TestAWorkerEndsWhenItsHandlerIsBeyondHelp(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	j := &job{failed: make(chan error, 1), stop: stop}
	calls := make(stuck)
	j.watch(ctx, calls)
	close(calls)
	<-ctx.Done()
	if err := <-j.failed; !errors.Is(err, errStuck) {
		t.Errorf("got %v", err)
	}
}
