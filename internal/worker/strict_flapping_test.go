package worker_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"runtime/debug"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

// flapping is a handler that stops being ready as soon as the worker asks on behalf of a message whether it is, so many times. It then is for good.
type flapping struct {
	*program

	times int
}

//nolint:revive,staticcheck // the interface has them in this order
func (f *flapping) Ready() (why error, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// A worker that asks whether to receive is told the truth.
	if f.times == 0 || f.why != nil || !bytes.Contains(debug.Stack(), []byte("handlerNotReady")) {
		return f.why, f.changed
	}
	f.times--
	f.why = errors.New("its process has just ended")
	close(f.changed)
	f.changed = make(chan struct{})
	time.AfterFunc(200*time.Millisecond, func() { f.ready(nil) })
	return f.why, f.changed
}

// left is how many times more it stops being ready.
func (f *flapping) left() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.times
}

// Each time the message went back to its place, and the next worker took the broker's count of that for attempts: the message failed as poison,
// without ever having been begun.
func TestStrict_WaitForTheHandlerIsNotTakenForPoison(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*v1alpha1.Transport){
		"a strict queue": strict(v1alpha1.OnFailureContinue), "an ordinary one": nil,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), change)
			first := &flapping{program: newProgram(), times: math.MaxInt}
			r.stop()
			r.publish(letters("a")...)
			r.handlers = func(v1alpha1.Handler, int) (handler.Handler, error) { return first, nil }
			hold := make(chan struct{})
			first.handle = func(ctx context.Context, _ handler.Request) *retry.Failure {
				select {
				case <-hold:
				case <-ctx.Done():
				}
				return &retry.Failure{Source: retry.SourceConnection, Class: handler.ClassCanceled}
			}
			r.start(nil)
			testtransport.Eventually(t, "it was not ready often enough", func() bool { return first.left() <= math.MaxInt-20 })
			if calls := first.called(); len(calls) > 0 {
				t.Fatalf("calls %v, and the handler was never ready when a message came", calls)
			}
			second := newProgram()
			close(hold)
			second.started(r)
			testtransport.Eventually(t, "the message handled", func() bool { return outcomes(r, "succeeded") == 1 || r.Ready("async.failed") == 1 })
			// That the worker stopped while a strict message waited counts, as its page says.
			if got := second.called(); len(got) != 1 || got[0] != "a1" && got[0] != "a2" || r.Ready("async.failed") > 0 {
				t.Errorf("calls %v, want one for the first or the second attempt; failed: %v", got, r.TakeAll("async.failed"))
			}
		})
	}
}
