package run

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/worker"
)

// stuck is what tells that a handler is beyond help.
type stuck chan struct{}

func (s stuck) Stuck() <-chan struct{} { return s }

func TestWatch_EndsAWorkerWhoseHandlerIsStuck(t *testing.T) {
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

func TestJob_CountsAbandonedCallsForTheNextHandler(t *testing.T) {
	hold := make(chan struct{})
	defer close(hold)
	hang := public.Func(func(context.Context, *public.Message) error {
		<-hold
		return nil
	})
	j := &job{
		options: &Options{}, log: slog.New(slog.DiscardHandler), registry: prometheus.NewRegistry(), abandoned: handler.NewAbandoned(0),
		memory: worker.NewMemory(0),
	}
	spec := v1alpha1.Handler{InProcess: &v1alpha1.InProcessHandler{}}
	before, err := j.handler(t.Context(), hang, spec, 2)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	before.Handle(ctx, handler.Request{ID: "hangs"})
	after, err := j.handler(t.Context(), hang, spec, 1)
	if err != nil {
		t.Fatal(err)
	}
	if why, _ := after.Ready(); why == nil {
		t.Error("the handler that replaces another is ready, although a call of that one has the one slot there is")
	}
	for _, h := range []handler.Handler{before, after} {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	}
}
