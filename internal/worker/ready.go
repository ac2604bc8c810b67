package worker

import (
	"context"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/message"
)

const (
	troubleHandler = v1alpha1.ReasonHandlerNotReady
	// maxWhy bounds what a handler says of why it is not ready.
	maxWhy = 1000
)

// noteHandler takes down whether the handler is ready. Only gate calls it.
func (w *Worker) noteHandler(why error) {
	text := ""
	if why != nil {
		text = message.Text(why.Error(), maxWhy)
	}
	before := w.handlerTrouble
	if before != nil && *before == text {
		return
	}
	w.handlerTrouble = &text
	w.options.Metrics.handlerReady.Set(truth(why == nil))
	switch {
	case why == nil && before == nil:
	case why == nil:
		w.troubles.end(troubleHandler, "")
		w.options.Log.Info("the handler is ready")
	case before == nil || *before == "":
		w.troubles.explain(text)
		w.troubles.begin(troubleHandler, "", w.options.Now())
		w.options.Log.Warn("the handler is not ready: nothing is consumed until it is", "why", text)
	default:
		w.troubles.explain(text)
		w.problems.warn("handler", "the handler is still not ready, and says something else", "why", text)
	}
}

// unready keeps a job from a handler that cannot take messages. Nothing is consumed then; this one was on its way already.
func unready(w *Worker, ctx context.Context, j *job) (outcome, bool) {
	return w.withheld(ctx, j, func() bool {
		why, _ := j.program.handler.Ready()
		return why != nil
	})
}

// withheld gives a job back to its queue while something holds all messages back. But it waits until the worker has stopped to
// receive: before that, the message would come back at once.
func (w *Worker) withheld(ctx context.Context, j *job, still func() bool) (outcome, bool) {
	for waited := 0; still(); waited++ {
		if waited >= int(longestQuiet/nextLook) || w.consumer.Quiet() || j.isStrict() && !w.receiving.Load() {
			return outcome{kind: released}, true
		}
		if o, ended := w.await(ctx, j, nextLook, nil); ended {
			return o, true
		}
	}
	return outcome{}, false
}
