package worker

import (
	"context"
	"fmt"

	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// awaitConfiguration makes the handler of a worker that began with a configuration for another pod. It takes no message until the
// configuration for its own pod is there, or the pod is replaced.
func (w *Worker) awaitConfiguration(next string) handler.Handler {
	return foreign{why: fmt.Errorf("this pod was made for the handler %q, and the configuration is for pods with %q: "+
		"the worker waits for the one or the other; if the rollout of the Deployment does not go on, see why its new pods do not start",
		w.options.MadeFor, next)}
}

// foreign is a handler that is another pod's: it is never ready.
type foreign struct{ why error }

// Handle begins nothing.
func (f foreign) Handle(context.Context, handler.Request) *retry.Failure {
	return handler.NotBegun(f.why.Error())
}

// Ready is why it is not.
func (f foreign) Ready() (why error, changed <-chan struct{}) { return f.why, nil } //nolint:revive,staticcheck // the order is Handler's

// Close has nothing to do.
func (foreign) Close() error { return nil }
