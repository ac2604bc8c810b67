package worker

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/resilience"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/scheduler"
)

// mostHops is through how many lanes a message goes at most, one after the other, for a time that no policy has given it.
const mostHops = 100

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
	// redelayed: it came back too early and waits on; nothing is counted.
	redelayed kind = "redelayed"
	// deferred: it waits in a lane for its turn at the handler; nothing is counted.
	deferred kind = "deferred"
	// quarantined: it may have brought down its worker, and goes to the quarantine queue; no attempt is counted.
	quarantined kind = "quarantined"
	// failed: it goes to the failure queue with the reason on it.
	failed kind = "failed"
	// dropped: its policy says to forget it.
	dropped kind = "dropped"
	// requeued: it goes back to its queue; nothing is counted.
	requeued kind = "requeued"
	// rejected: it cannot be published again, and is left to the queue's dead-letter exchange.
	rejected kind = "rejected"
	// returned: it goes back to its place at the head of a strictly ordered queue, after a failed attempt and its delay.
	returned kind = "returned"
	// stale: it is not ours any more, or there is no time left; the broker delivers it again.
	stale kind = "stale"
)

// publishes is true where settling takes a confirm of the broker.
func (k kind) publishes() bool {
	switch k {
	case succeeded, dropped, rejected, returned, stale:
		return false
	default:
		return true
	}
}

// publishes is true where settling waits for the broker: a replay is told of more than is published otherwise.
func (j *job) publishes(o outcome) bool { return o.kind.publishes() || j.isReplayed() }

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
	// using is the program's handler, which stays open meanwhile.
	using *shared
	// queue is the work queue that the message belongs to, also where it came from its quarantine queue.
	queue *compile.Queue
	// moved is true where the program has no such queue any more.
	moved    bool
	received time.Time
	// size is about what the message takes in memory, in bytes, with what the handler writes it into: the one of counted.
	size    int64
	counted *shared
	state   message.State
	view    retry.Message
	// budget is what expressions may still cost until the next verdict, and keys are the texts that those for keys gave.
	budget retry.Budget
	keys   map[*retry.Key]string
	// decoded is the body as expressions read it: once before the handler has the message, and once for the verdict. It is let go of
	// before anything is waited for, so that nobody waits for its room meanwhile.
	decoded retry.Decoded
	// nameless is true where the message came without an id, and the one of the state was drawn for this delivery.
	nameless bool
	// priority with which it is published again, and whether it takes a lane of ordinary priority all the same.
	priority uint8
	ordinary bool
	// turn is its claim on a place at the handler. woken is closed when it has one; nil where nobody waits for that.
	turn  scheduler.Turn[*job]
	woken chan struct{}
	// back is true of a job that is given back before it has begun.
	back    bool
	permits permits
	// inflight is that of its queue, and took how long the last attempt was: from when it began, for a message may wait at the handler before.
	inflight *queueInflight
	took     time.Duration
	// attempted is true once the handler was called; tried is how often it was before, by this process, where the queue is strictly ordered.
	attempted bool
	tried     int64
	// failedFirst is true once the first attempt of all has failed that the message had since it was published or replayed.
	failedFirst bool
	// granted is true of a strictly ordered message that has another attempt, whatever its deliveries account for.
	granted bool
	// traced is what is known of its trace.
	traced traceState
	// isSuspect is true where its headers say that it has to be quarantined, though the broker has not delivered it before; see quarantine.
	isSuspect bool
	// charged is true where the journal knows of crashes that the state has taken over.
	charged bool
	// noted is true while the journal says that it is in work.
	noted bool
}

// isStrict is true for a message that must keep its place in its queue.
func (j *job) isStrict() bool { return j.delivery.Strict() }

// processDelivery takes one delivery to its settlement.
func (w *Worker) processDelivery(ctx context.Context, j *job) {
	if !w.open(j) {
		_ = j.delivery.DeadLetter()
		return
	}
	if j.isStrict() {
		w.processOrdered(ctx, j)
		return
	}
	o := w.decide(ctx, j, j.stages(j.program.stages.usual))
	w.finish(ctx, j, o)
}

// finish settles a job and counts what became of it. Others need not wait at the handler for the broker to take it. It is false where
// the broker has the message again.
func (w *Worker) finish(ctx context.Context, j *job, o outcome) (settled bool) {
	if j.publishes(o) {
		w.yieldSlot(ctx, j)
	}
	o = j.ended(o, nil)
	settled = w.traceSettling(ctx, j, &o)
	if !settled {
		w.options.Metrics.lateAcks.Inc()
		o = outcome{kind: stale}
	}
	w.count(j, o)
	return settled
}

func (w *Worker) count(j *job, o outcome) {
	if o.kind == succeeded {
		w.options.Metrics.of(j.queue.Name).succeeded.Inc()
		return
	}
	w.options.Metrics.handled.WithLabelValues(j.queue.Name, string(o.kind), o.strategy).Inc()
}

// decide runs a pipeline. A defect of ours must cost neither the process nor the message: it fails, with the reason on it.
func (w *Worker) decide(ctx context.Context, j *job, stages []stage) (o outcome) {
	defer func() {
		j.decoded.LetGo()
		w.unnote(j) // before it leaves its place to another one
		if !j.permits.isEmpty() {
			j.permits.giveBack(w.options.Now())
		}
	}()
	defer func() {
		if defect := recover(); defect != nil {
			w.options.Log.Error("panic while handling a message; please report it", "defect", defect, "stack", string(debug.Stack()))
			o = outcome{kind: failed, final: message.Final{
				Reason: reasonInternal, Explanation: fmt.Sprintf("defect in the worker: %v", defect), At: w.options.Now(),
			}}
		}
	}()
	for _, decides := range stages {
		if o, decided := decides(w, ctx, j); decided {
			return o
		}
	}
	panic("the pipeline decided nothing")
}

// open reads what the message says of itself. It is false where a defect of ours keeps it from that: the queue's dead-letter
// exchange then has the message, and the process lives.
func (w *Worker) open(j *job) (opened bool) {
	defer func() {
		if defect := recover(); defect != nil {
			w.options.Log.Error("panic while reading a message; please report it", "defect", defect, "stack", string(debug.Stack()))
			opened = false
		}
	}()
	d := j.delivery
	w.use(j)
	w.recount(j)
	var ours bool
	j.queue, ours = j.program.queueOf(d.Queue)
	j.moved, j.priority = !ours, d.Priority
	j.readState(w.options.Now().Add(-time.Since(j.received)))
	if j.state.ID == "" {
		j.nameless, j.state.ID = true, message.NewID(w.options.Rand)
	}
	j.view = message.View(d.Message, j.state, j.queue.Name)
	j.view.Bodies, j.view.Decoded, j.view.Turns, j.view.Budget = w.bodies, &j.decoded, w.turns, &j.budget
	if len(j.state.Garbage) > 0 {
		w.options.Metrics.garbageHeaders.WithLabelValues(d.Queue).Inc()
		w.problems.warn("garbage/"+d.Queue, "headers of a message cannot be used and are ignored",
			"queue", d.Queue, "headers", j.state.Garbage, "message", j.state.ID)
	}
	return true
}

// readState takes what the headers say of the message's past, as far as a worker can have written it. What an exchange of the producers
// has routed has no past. And a message with a crash is in quarantine, until it is given up: elsewhere the header would make the
// quarantine worker run what has brought down nobody.
func (j *job) readState(received time.Time) {
	d, exchanges := j.delivery, &j.program.config.Exchanges
	var forged []string
	if !exchanges.BringBack(d.Exchange) {
		forged = message.Disown(d.Headers)
	}
	j.state = message.Decode(d.Message, exchanges.Work, received)
	if d.Exchange != exchanges.Return {
		j.state.Replay = message.Replay{} // replays publish there alone: who moved the message has taken it out of its replay
	}
	j.isSuspect = d.Headers[message.HeaderQuarantine] == true
	message.Strip(d.Headers, j.state)
	if j.state.Crashes > 0 && d.Queue != j.queue.Quarantine {
		forged = append(forged, message.HeaderCrashes)
		j.state.Crashes = 0
	}
	j.state.Garbage = append(forged, j.state.Garbage...)
	if d.Redelivered || d.Queue == j.queue.Quarantine {
		j.state.History.Immediate = message.MaxCount // it may have been tried at once, by who was interrupted
	}
}

// unreadable refuses a message of which the headers are not known: neither the handler nor a copy would have them. And one that it takes too
// much memory to hand over.
func unreadable(w *Worker, _ context.Context, j *job) (outcome, bool) {
	return outcome{kind: rejected}, j.delivery.Unreadable || w.outgrows(j)
}

// outgrows is true of a message that takes more than the worker can have for one.
func (w *Worker) outgrows(j *job) bool { return j.size > mostAlone(w.inflight.limit) }

// staleDelivery leaves alone a delivery whose session has ended: the broker has it again.
func staleDelivery(_ *Worker, _ context.Context, j *job) (outcome, bool) {
	return outcome{kind: stale}, !j.delivery.Live()
}

// expired fails a message that is past its deadline. The broker's own expiry does not see it in lanes, nor while it waits here.
func expired(w *Worker, _ context.Context, j *job) (outcome, bool) {
	now := w.options.Now()
	if !j.isExpired(now) {
		return outcome{}, false
	}
	return outcome{kind: failed, final: message.Final{
		Reason:      reasonExpired,
		Explanation: fmt.Sprintf("not handled before its deadline %s", j.state.Deadline.UTC().Format(time.RFC3339)),
		At:          now,
	}}, true
}

// isExpired is true of a message that is past its deadline.
func (j *job) isExpired(now time.Time) bool {
	return !j.state.Deadline.IsZero() && !now.Before(j.state.Deadline)
}

// early parks a message that is not due yet: no lane had its delay, or someone moved it. Without lanes there is nowhere to wait: no policy
// asks for a delay any more.
func early(w *Worker, _ context.Context, j *job) (outcome, bool) {
	if j.state.NotBefore.IsZero() {
		return outcome{}, false
	}
	now := w.options.Now()
	j.state.NotBefore = earlier(j.state.NotBefore, j.latestDue(now))
	if retry.Due(j.state.NotBefore, now, j.state.History.LastDelay) || len(j.program.config.Lanes) == 0 {
		return outcome{}, false
	}
	return outcome{kind: redelayed}, true
}

// latestDue is until when a job that is early may wait. A time that lies beyond maxAge is
// nobody's decision and is clamped to it. So is one that is further than mostHops of the largest lane and further than any delay that the
// policy can lead to: whoever may write headers could have the message published every second for as long as maxAge, where there are
// short lanes alone. And one that is further than the lane that it comes out of leaves: the clock was set back since it was written, and
// the message would take a lane of that hour, out of which nobody takes it when the clock is right again.
func (j *job) latestDue(now time.Time) time.Time {
	policy := j.foreseen()
	first := j.state.History.FirstFailure
	if first.IsZero() || first.After(now) {
		first = now
	}
	latest := first.Add(policy.MaxAge())
	lanes := j.program.config.Lanes
	if len(lanes) > 0 {
		if most := mostHops * lanes[len(lanes)-1]; j.state.NotBefore.After(now.Add(most)) {
			latest = earlier(latest, now.Add(max(most, policy.LongestWait())))
		}
	}
	if retry.Due(j.state.NotBefore, now, j.state.History.LastDelay) {
		return latest // most are, and need no look at their failures
	}
	if most, ok := j.state.MostLeft(lanes); ok {
		latest = earlier(latest, now.Add(most))
	}
	return latest
}

// foreseen is the policy that would decide on a job by now. The verdict has a budget of its own for the choice: a rule that has its
// steps at the first attempt has them at each other one, too.
func (j *job) foreseen() *retry.Policy {
	policy, _ := j.program.policyFor(j.view)
	j.budget = retry.Budget{}
	return policy
}

// earlier is the earlier of two times.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// unbegun is what becomes of a message that the handler has not begun with, though the job was granted a call. refused is true where the breaker took
// that back. One that has to keep its place waits
// there for the handler, for as long as it may be held: to give it back would raise the broker's count of its deliveries, which are its attempts
// to the next worker.
func (w *Worker) unbegun(ctx context.Context, j *job, refused bool) (outcome, bool) {
	if o, decided := expired(w, ctx, j); decided {
		return o, true
	}
	waits := j.isStrict() && j.held() > 0 && w.program.Load() == j.program
	if !refused && !waits {
		return notBegun(j), true
	}
	if waits {
		if o, ended := w.await(ctx, j, nextLook, nil); ended {
			return o, true
		}
	}
	return w.again(ctx, j)
}

// attempt calls the handler and asks the policy about a failure: once, or again at once where the policy says so.
func attempt(w *Worker, ctx context.Context, j *job) (outcome, bool) {
	for {
		used, attempted := j.permits, j.attempted
		j.permits, j.attempted = permits{}, true
		failure := w.call(w.trace(ctx, j), j, &used)
		if ctx.Err() != nil && failure != nil {
			w.report(used.permit, 0, resilience.Neither)
			return j.ended(outcome{kind: stale}, failure), true
		}
		if handler.IsNotBegun(failure) { // it is no attempt
			w.report(used.permit, 0, resilience.Neither)
			j.attempted = attempted
			refused := used.refused
			used.giveBack(w.options.Now())
			o, decided := w.unbegun(ctx, j, refused)
			if j.ended(o, failure); decided {
				return o, true
			}
			continue
		}
		w.countFirst(j)
		failure = j.heeded(failure)
		w.report(used.permit, j.took, health(failure))
		w.heedPartner(j, failure)
		if failure == nil {
			w.logSuccess(ctx, j)
			return j.ended(outcome{kind: succeeded}, nil), true
		}
		o, atOnce := w.judge(ctx, j, *failure)
		j.ended(o, failure)
		if !atOnce {
			return o, true
		}
		if o, decided := w.letOthers(ctx, j); decided {
			return o, true
		}
		if o, decided := w.again(ctx, j); decided {
			return o, true
		}
	}
}

// heeded is a failure without the advice that is not followed, by the policy or for the order of the queue: the breaker believes no handler that the
// policy does not.
func (j *job) heeded(failure *retry.Failure) *retry.Failure {
	if failure == nil || failure.Advice == "" {
		return failure
	}
	heeded := j.foreseen().Heeded(*failure)
	if j.isStrict() {
		heeded = heeded.InOrder()
	}
	return &heeded
}

// letOthers gives the place between two tries at once to another queue that waits for one, and takes its turn again: calls that hang would keep the place
// for all of their tries.
func (w *Worker) letOthers(ctx context.Context, j *job) (outcome, bool) {
	if j.isStrict() || !w.places.OthersWait(j.delivery.Queue) {
		return outcome{}, false
	}
	w.yieldSlot(ctx, j)
	o, ended := waitForPlace(w, ctx, j)
	if ended && o.kind == requeued {
		return w.denied(ctx, j, 0) // it has attempts, of which the broker knows nothing
	}
	return o, ended
}

// again goes through the stages before another call of the handler.
func (w *Worker) again(ctx context.Context, j *job) (outcome, bool) {
	for _, decides := range j.program.stages.again {
		if o, decided := decides(w, ctx, j); decided {
			return o, true
		}
	}
	return outcome{}, false
}

// countFirst counts a first attempt that was begun, by which the budget of retries is measured. One that was released has been counted.
func (w *Worker) countFirst(j *job) {
	if budget := j.program.protection.budget; budget != nil && j.state.History.Attempts == 0 && j.state.History.FirstFailure.IsZero() {
		budget.First(w.options.Now())
	}
}

// notBegun gives back a message that the handler had no room for, or nobody could tell whether it was to blame. Nothing is counted.
func notBegun(j *job) outcome {
	if j.isStrict() {
		return outcome{kind: returned}
	}
	return outcome{kind: requeued}
}

// call calls the handler with what the job was granted.
func (w *Worker) call(ctx context.Context, j *job, used *permits) *retry.Failure {
	j.decoded.LetGo()
	d, queue := j.delivery, j.queue.Name
	metrics := w.options.Metrics.of(queue)
	metrics.inFlight.Inc()
	defer metrics.inFlight.Dec()
	var began time.Time
	begin := func(ctx context.Context) bool {
		begins := w.begins(ctx, j, used)
		began = time.Now() // after the waits for a process and for leave: they say nothing about how fast the handler is
		return begins
	}
	// Before the time of the attempt begins: that of a wait is no part of it.
	if _, asks := j.program.handler.Handler.(handler.Drainer); !asks && !begin(ctx) {
		return handler.NotBegun("it was to be left alone when the message was about to be handed over")
	}
	live := ctx
	ctx, cancel := handler.WithTimeout(ctx, j.program.config.Timeout.Duration.Duration, j.held())
	defer cancel()
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
		ReplyTo:         d.ReplyTo,
		AppID:           d.AppID,
		UserID:          j.state.UserID,
		Priority:        j.state.Priority,
		Expiration:      j.state.Expiration,
		Timestamp:       d.Timestamp,
		Deadline:        j.state.Deadline,
		FirstFailure:    j.state.History.FirstFailure,
		Carry:           j.state.Carry,
		Traceparent:     j.traced.parent,
		Tracestate:      j.traced.state,
		Begin:           begin,
	})
	if began.IsZero() || handler.IsNotBegun(failure) {
		return failure
	}
	j.took = time.Since(began)
	metrics.seconds.Observe(j.took.Seconds())
	if j.noted && failure != nil && failure.Source == retry.SourceTimeout {
		w.awaitRunaway(live, j)
	}
	return failure
}

// runawayTime is how long a quarantined message waits for a call of a program that runs on after its time. It is less than that after which the program's
// process ends itself, which is no crash of the message.
const runawayTime = 45 * time.Second

// awaitRunaway keeps a message noted while its call runs on after its time: a process that this ends is charged to the message. A worker that stops waits
// no longer: its process is about to be ended, whatever the call does.
func (w *Worker) awaitRunaway(ctx context.Context, j *job) {
	calls, is := j.program.handler.Handler.(interface {
		handler.Handler
		Stuck() <-chan struct{}
	})
	if !is {
		return
	}
	limit := time.NewTimer(min(runawayTime, j.held()))
	defer limit.Stop()
	for {
		why, changed := calls.Ready()
		if why == nil {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			return
		case <-w.draining:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (w *Worker) logSuccess(ctx context.Context, j *job) {
	if w.options.Log.Enabled(ctx, slog.LevelDebug) {
		w.options.Log.DebugContext(ctx, "attempt succeeded", "queue", j.queue.Name, "message", j.state.ID,
			"attempt", j.state.History.Attempts+1, "took", j.took)
	}
}

// judge asks the policy about a failure and writes the answer into the job's state. atOnce is true where the message is to be
// tried again here and now; a worker that stops does not.
func (w *Worker) judge(ctx context.Context, j *job, failure retry.Failure) (o outcome, atOnce bool) {
	now := w.options.Now()
	if w.stopping() {
		j.state.History.Immediate = message.MaxCount
	}
	policy, problems := j.program.policyFor(j.view)
	j.state = message.Recall(j.state)
	isFirst := j.state.History.Attempts == 0
	verdict := policy.Decide(failure, j.view, j.state.History, now, w.options.Rand)
	w.reportExpressions(policy.Name(), append(problems, verdict.Problems...))
	j.budget = retry.Budget{}
	j.state.History = verdict.History
	// Headers hold whole milliseconds: without a fraction the first failure follows from the other two.
	j.state.NotBefore = now.Truncate(time.Millisecond).Add(verdict.Delay)
	j.priority = retryPriority(policy.RetryPriority(), j.state.Priority)
	if failure.Carry != nil {
		j.state.Carry = *failure.Carry
	}
	if verdict.Reason == retry.ReasonRelease {
		w.logRelease(ctx, j, &failure, &verdict)
		return outcome{kind: deferred, strategy: verdict.Strategy}, false
	}
	j.failedFirst = j.failedFirst || isFirst
	j.state = message.Record(j.state, message.Attempt{
		Number: verdict.History.Attempts, At: now, Source: failure.Source, Status: failure.Status, Class: failure.Class,
		Message: failure.Message, Strategy: verdict.Strategy, Delay: verdict.Delay,
	})
	w.logFailure(ctx, j, &failure, &verdict)
	switch verdict.Action {
	case v1alpha1.ActionRetry:
		if verdict.Reason == retry.ReasonImmediate {
			return outcome{kind: retried}, true
		}
		w.options.Metrics.retryDelay.WithLabelValues(j.queue.Name).Observe(verdict.Delay.Seconds())
		return outcome{kind: retried, strategy: verdict.Strategy}, false
	case v1alpha1.ActionDrop:
		return outcome{kind: dropped, strategy: verdict.Strategy}, false
	default:
		return outcome{kind: failed, strategy: verdict.Strategy, final: message.Final{
			Reason: verdict.Reason, Explanation: verdict.Explanation, Strategy: verdict.Strategy, Failure: failure, At: now,
		}}, false
	}
}

func (w *Worker) logRelease(ctx context.Context, j *job, failure *retry.Failure, verdict *retry.Verdict) {
	w.logFor(j).LogAttrs(ctx, slog.LevelInfo, "released by the handler",
		slog.String("queue", j.queue.Name), slog.String("message", j.state.ID), slog.String("error", message.Text(failure.Logged, maxLogged)),
		slog.Duration("took", j.took), slog.Duration("delay", verdict.Delay))
}

// maxLogged bounds the text of a failure in the log, in bytes.
const maxLogged = 300

func (w *Worker) logFailure(ctx context.Context, j *job, failure *retry.Failure, verdict *retry.Verdict) {
	w.logFor(j).LogAttrs(ctx, slog.LevelInfo, "attempt failed",
		slog.String("queue", j.queue.Name), slog.String("message", j.state.ID), slog.Int64("attempt", verdict.History.Attempts),
		slog.Int64("retries", verdict.Retries), slog.Int64("maxRetries", verdict.MaxRetries),
		slog.String("source", string(failure.Source)), slog.Int("status", failure.Status), slog.String("class", failure.Class),
		slog.String("error", message.Text(failure.Logged, maxLogged)),
		slog.Duration("took", j.took), slog.String("action", string(verdict.Action)), slog.Duration("delay", verdict.Delay),
		slog.String("strategy", verdict.Strategy), slog.String("reason", string(verdict.Reason)))
}

// retryPriority is the AMQP priority of a retry. Quorum queues since RabbitMQ 4.0 take 5 and above before the rest.
func retryPriority(wanted v1alpha1.RetryPriority, producers uint8) uint8 {
	switch wanted {
	case v1alpha1.RetryPriorityHigher:
		return max(producers, highPriority)
	case v1alpha1.RetryPriorityLower:
		return lowPriority
	default:
		return producers
	}
}

const (
	// ordinaryPriority is the highest of those that RabbitMQ 4.0 takes for ordinary ones.
	ordinaryPriority = 4
	// highPriority is above the priorities that RabbitMQ takes for ordinary ones.
	highPriority = 9
	// lowPriority is below them: RabbitMQ 4.3 takes 0 for an ordinary one, the same as none.
	lowPriority = 1
)

func (w *Worker) reportExpressions(policy string, problems []error) {
	for _, problem := range problems {
		w.options.Metrics.expressionErrors.WithLabelValues(policy).Inc()
		w.problems.warn("expression/"+policy, "an expression failed on a message and does not match", "policy", policy, "error", problem)
	}
}
