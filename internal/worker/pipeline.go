package worker

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// Reasons of messages that fail without a verdict of their policy.
const (
	reasonExpired  retry.Reason = "Expired"
	reasonInternal retry.Reason = "Internal"
)

// kind is what becomes of a delivery.
type kind string

const (
	// succeeded: the handler is done with it.
	succeeded kind = "succeeded"
	// retried: it waits in a lane for its next attempt.
	retried kind = "retried"
	// parked: it came back too early and waits on; nothing is counted.
	parked kind = "parked"
	// failed: it goes to the failure queue with the reason on it.
	failed kind = "failed"
	// dropped: its policy says to forget it.
	dropped kind = "dropped"
	// released: it goes back to its queue; nothing is counted.
	released kind = "released"
	// refused: it cannot be published again, and is left to the queue's dead-letter exchange.
	refused kind = "refused"
	// abandoned: it is not ours any more, or there is no time left; the broker delivers it again.
	abandoned kind = "abandoned"
)

// outcome is the end of the pipeline.
type outcome struct {
	kind kind
	// strategy that decided, where one did.
	strategy string
	// final is set when kind is failed.
	final message.Final
}

// job is one delivery on its way through the pipeline.
type job struct {
	delivery *amqp.Delivery
	program  *program
	state    message.State
	view     retry.Message
	// hasSlot is true while the job counts against the concurrency.
	hasSlot bool
}

// stage looks at a job and either decides what becomes of it or passes it on.
type stage func(w *Worker, ctx context.Context, j *job) (o outcome, decided bool)

// pipeline is the way of a delivery to its outcome, and the one place where the order is decided. Whatever sends a message
// away without an attempt stands before attempt, so that it costs none: first what the session and the message itself say,
// then what protects the handler.
var pipeline = []stage{unreadable, waitForSlot, stale, expired, early, attempt} //nolint:gochecknoglobals // a constant, if Go had lists of those

// process takes one delivery to its settlement.
func (w *Worker) process(ctx context.Context, d *amqp.Delivery) {
	j := &job{delivery: d, program: w.program.Load()}
	o := w.decide(ctx, j)
	w.settle(ctx, j, o)
	w.options.Metrics.handled.WithLabelValues(d.Queue, string(o.kind), o.strategy).Inc()
}

// decide runs the pipeline. A defect of ours must cost neither the process nor the message: it fails, with the reason on it.
func (w *Worker) decide(ctx context.Context, j *job) (o outcome) {
	defer func() {
		if j.hasSlot {
			<-j.program.slots
		}
	}()
	defer func() {
		if defect := recover(); defect != nil {
			w.options.Log.Error("defect while handling a message; please report it", "defect", defect, "stack", string(debug.Stack()))
			o = outcome{kind: failed, final: message.Final{
				Reason: reasonInternal, Explanation: fmt.Sprintf("defect in the worker: %v", defect), At: w.options.Now(),
			}}
		}
	}()
	w.open(j)
	for _, step := range pipeline {
		if o, decided := step(w, ctx, j); decided {
			return o
		}
	}
	panic("the pipeline decided nothing")
}

// open reads what the message says of itself.
func (w *Worker) open(j *job) {
	d := j.delivery
	j.state = message.Decode(d.Message, w.options.Now())
	if j.state.ID == "" {
		j.state.ID = message.NewID(w.options.Rand)
	}
	j.view = message.View(d.Message, j.state, d.Queue)
	if len(j.state.Garbage) > 0 {
		w.options.Metrics.garbageHeaders.WithLabelValues(d.Queue).Inc()
		w.problems.warn("garbage/"+d.Queue, "headers of a message cannot be used and are ignored",
			"queue", d.Queue, "headers", j.state.Garbage, "message", j.state.ID)
	}
}

// unreadable refuses a message of which the headers are not known: neither the handler nor a copy would have them.
func unreadable(_ *Worker, _ context.Context, j *job) (outcome, bool) {
	return outcome{kind: refused}, j.delivery.Unreadable
}

// waitForSlot waits until the concurrency allows for the job, or releases it when the worker stops meanwhile.
func waitForSlot(w *Worker, ctx context.Context, j *job) (outcome, bool) {
	select {
	case <-w.draining:
		return outcome{kind: released}, true
	default:
	}
	select {
	case j.program.slots <- struct{}{}:
		j.hasSlot = true
		return outcome{}, false
	case <-w.draining:
		return outcome{kind: released}, true
	case <-ctx.Done():
		return outcome{kind: abandoned}, true
	}
}

// stale leaves alone a delivery whose session has ended: the broker has it again.
func stale(_ *Worker, _ context.Context, j *job) (outcome, bool) {
	return outcome{kind: abandoned}, !j.delivery.Live()
}

// expired fails a message that is past its deadline. The broker's own expiry does not see it in lanes.
func expired(w *Worker, _ context.Context, j *job) (outcome, bool) {
	now := w.options.Now()
	if j.state.Deadline.IsZero() || now.Before(j.state.Deadline) {
		return outcome{}, false
	}
	return outcome{kind: failed, final: message.Final{
		Reason:      reasonExpired,
		Explanation: fmt.Sprintf("not handled before its deadline %s", j.state.Deadline.UTC().Format(time.RFC3339)),
		At:          now,
	}}, true
}

// early parks a message that is not due yet: no lane had its delay, or someone moved it. A time that lies beyond maxAge is
// nobody's decision and is clamped to it.
func early(w *Worker, _ context.Context, j *job) (outcome, bool) {
	now := w.options.Now()
	if j.state.NotBefore.IsZero() {
		return outcome{}, false
	}
	policy, _ := j.program.policyFor(j.view)
	first := j.state.History.FirstFailure
	if first.IsZero() {
		first = now
	}
	if latest := first.Add(policy.MaxAge()); j.state.NotBefore.After(latest) {
		j.state.NotBefore = latest
	}
	// Without lanes there is nowhere to wait: no policy asks for a delay any more.
	if retry.Due(j.state.NotBefore, now, j.state.History.LastDelay) || len(j.program.config.Lanes) == 0 {
		return outcome{}, false
	}
	return outcome{kind: parked}, true
}

// attempt calls the handler and asks the policy about a failure.
func attempt(w *Worker, ctx context.Context, j *job) (outcome, bool) {
	failure := w.call(ctx, j)
	if failure == nil {
		return outcome{kind: succeeded}, true
	}
	if ctx.Err() != nil {
		return outcome{kind: abandoned}, true
	}
	return w.judge(j, *failure), true
}

func (w *Worker) call(ctx context.Context, j *job) *retry.Failure {
	d, queue := j.delivery, j.delivery.Queue
	inFlight := w.options.Metrics.inFlight.WithLabelValues(queue)
	inFlight.Inc()
	defer inFlight.Dec()
	ctx, cancel := context.WithTimeout(ctx, j.program.config.Timeout.Duration.Duration)
	defer cancel()
	began := time.Now()
	failure := j.program.handler.Handle(ctx, handler.Request{
		Body:            d.Body,
		ContentType:     d.ContentType,
		ContentEncoding: d.ContentEncoding,
		Headers:         j.view.Headers,
		ID:              j.state.ID,
		IdempotencyKey:  message.IdempotencyKey(queue, j.state.ID),
		Attempt:         j.state.History.Attempts + 1,
		Retries:         j.state.History.Retries,
		Queue:           queue,
		Exchange:        j.state.Exchange,
		RoutingKey:      j.state.RoutingKey,
		Type:            j.view.Type,
		CorrelationID:   d.CorrelationID,
		Timestamp:       d.Timestamp,
		FirstFailure:    j.state.History.FirstFailure,
	})
	w.options.Metrics.handlerSeconds.WithLabelValues(queue).Observe(time.Since(began).Seconds())
	return failure
}

// judge asks the policy about a failure and writes the answer into the job's state.
func (w *Worker) judge(j *job, failure retry.Failure) outcome {
	now := w.options.Now()
	policy, problems := j.program.policyFor(j.view)
	verdict := policy.Decide(failure, j.view, j.state.History, now, w.options.Rand)
	w.reportExpressions(policy.Name(), append(problems, verdict.Problems...))
	j.state.History = verdict.History
	j.state.NotBefore = now.Add(verdict.Delay)
	j.state = message.Record(j.state, message.Attempt{
		Number: verdict.History.Attempts, At: now, Source: failure.Source, Status: failure.Status, Class: failure.Class,
		Message: failure.Message, Strategy: verdict.Strategy, Delay: verdict.Delay,
	})
	w.options.Log.Info("attempt failed", "queue", j.delivery.Queue, "message", j.state.ID, "attempt", verdict.History.Attempts,
		"source", failure.Source, "status", failure.Status, "class", failure.Class, "action", verdict.Action,
		"delay", verdict.Delay, "strategy", verdict.Strategy, "reason", verdict.Reason)
	switch verdict.Action {
	case v1alpha1.ActionRetry:
		w.options.Metrics.retryDelay.WithLabelValues(j.delivery.Queue).Observe(verdict.Delay.Seconds())
		return outcome{kind: retried, strategy: verdict.Strategy}
	case v1alpha1.ActionDrop:
		return outcome{kind: dropped, strategy: verdict.Strategy}
	default:
		return outcome{kind: failed, strategy: verdict.Strategy, final: message.Final{
			Reason: verdict.Reason, Explanation: verdict.Explanation, Strategy: verdict.Strategy, Failure: failure, At: now,
		}}
	}
}

func (w *Worker) reportExpressions(policy string, problems []error) {
	for _, problem := range problems {
		w.options.Metrics.expressionErrors.WithLabelValues(policy).Inc()
		w.problems.warn("expression/"+policy, "an expression failed on a message and does not match", "policy", policy, "error", problem)
	}
}
