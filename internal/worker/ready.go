package worker

import (
	"context"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/message"
)

const (
	troubleHandler = v1alpha1.ReasonHandlerNotReady
	// maxWhy bounds what a handler says of why it is not ready.
	maxWhy = 1000
	// startTime is how long a handler may take to start before the log warns of it.
	startTime = 10 * time.Second
	// unreadyTime is how long the first message of a strict queue waits in its place for a handler that is not ready. Another pod's may be.
	unreadyTime = 30 * time.Second
)

// readiness is what was last seen of the handler's.
type readiness struct {
	// why it is not ready; empty where it is.
	why string
	// since is when it was first seen not to be; zero where it is.
	since time.Time
	// warned is true where the log has a warning of it.
	warned bool
}

// noteHandler takes down whether the handler is ready. Only the flow control calls it.
func (w *Worker) noteHandler(why error) {
	w.options.Metrics.handlerReady.Set(truth(why == nil))
	if why == nil {
		w.wasReady.Store(true)
		if !w.handler.since.IsZero() {
			w.troubles.end(troubleHandler, "")
			w.options.Log.Info("the handler is ready")
			w.handler = readiness{}
		}
		return
	}
	now := w.options.Now()
	if text := message.Text(why.Error(), maxWhy); text != w.handler.why {
		w.handler.why = text
		w.troubles.explain(text)
		if w.handler.warned {
			w.problems.warn("handler", "the handler is still not ready, and says something else", "why", text)
		}
	}
	if w.handler.since.IsZero() {
		w.handler.since = now
		w.troubles.begin(troubleHandler, "", now)
	}
	// One that is just starting is none to warn of.
	if !w.handler.warned && (w.wasReady.Load() || now.Sub(w.handler.since) >= startTime) {
		w.handler.warned = true
		w.options.Log.Warn("the handler is not ready: nothing is consumed until it is", "why", w.handler.why)
	}
}

// handlerNotReady keeps a job from a handler that cannot take messages. Nothing is consumed then; this one was on its way already.
func handlerNotReady(w *Worker, ctx context.Context, j *job) (outcome, bool) {
	return w.withheld(ctx, j, min(unreadyTime, j.held()), func() bool {
		why, _ := j.program.handler.Ready()
		return why != nil
	})
}

// withheld gives a job back to its queue while something holds all messages back. But it waits until the worker has stopped to
// receive: before that, the message would come back at once. One that has to keep its place waits there for so long, since the broker counts
// each time that it is given back, and that are its attempts to the next worker.
func (w *Worker) withheld(ctx context.Context, j *job, inPlace time.Duration, still func() bool) (outcome, bool) {
	began := time.Now()
	for still() {
		waited := time.Since(began)
		back := waited >= longestQuiet || w.consumer.Quiet()
		if j.isStrict() {
			back = waited >= inPlace || w.program.Load() != j.program
		}
		if back {
			return outcome{kind: requeued}, true
		}
		if o, ended := w.await(ctx, j, nextLook, nil); ended {
			return o, true
		}
	}
	return outcome{}, false
}
