package worker

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// processOrdered handles the message at the head of a strictly ordered queue. It is given back to its place, and never published
// anew, until it is done with: the broker's count of its deliveries is what is known of its past after a restart.
func (w *Worker) processOrdered(ctx context.Context, j *job) {
	live, cancel := j.delivery.WhileLive(ctx)
	defer cancel()
	h := w.ordered.of(j.queue.Name)
	if !h.enter(live) {
		h.unread.Add(1) // the message that comes next is this one, which waited for the end of its own call
		w.finish(ctx, j, outcome{kind: stale})
		return
	}
	defer h.leave()
	p := h.restore(j)
	o, ended := outcome{kind: failed, final: p.givenUp}, p.judged != nil
	if !ended && !j.moved {
		o, ended = w.await(ctx, j, p.early(w.options.Now()), nil)
	}
	if !ended {
		o = w.decide(ctx, j, j.stages(j.program.stages.strict))
	}
	w.yieldSlot(ctx, j)
	if o.kind == failed && (p.judged != nil || j.queue.Strict == v1alpha1.OnFailureBlock && o.final.Reason != reasonExpired) {
		o = w.block(live, j, p, o)
	}
	if o.kind == retried {
		o = w.waitInPlace(ctx, j, o)
	}
	p.remember(j, o)
	if o.kind == requeued || o.kind == stale {
		// A session that ends gives the message back to its place. To reject it would only have it delivered here again.
		_ = j.delivery.Abandon()
		w.count(j, o)
		return
	}
	if w.finish(ctx, j, o) && o.kind != returned {
		p.forget()
	}
}

// overdueTime is how long before the broker's consumer timeout a message is given back at the latest, and no more than an overdueShare of the timeout.
const (
	overdueTime  = 10 * time.Second
	overdueShare = 10
)

// waitInPlace holds a message that failed until its retry is due, and a millisecond more: that is the fraction which the headers leave
// out, and no retry is early. One that had waited before its attempt may have to go back before: it waits for the rest when it comes again.
func (w *Worker) waitInPlace(ctx context.Context, j *job, o outcome) outcome {
	w.tellRetried(ctx, j)
	wait := min(j.state.NotBefore.Add(time.Millisecond).Sub(w.options.Now()), j.loaned())
	if ended, early := w.await(ctx, j, max(wait, 0), nil); early {
		return ended
	}
	return outcome{kind: returned, strategy: o.strategy}
}

// isUncounted is true where a broker that can does not count that the message goes back: it had no attempt, and the next pod would take it for one. What
// its publisher wrote as a count would pass for the broker's as long as that has none, so such a message is counted.
func (j *job) isUncounted() bool {
	return !j.attempted && (j.delivery.Redelivered || j.delivery.ClaimedDeliveries() == 0)
}

// loaned is for how long the broker leaves a message to a job that holds it beyond the time for waiting and handling.
func (j *job) loaned() time.Duration {
	limit := j.program.config.LoanLimit()
	return limit - min(overdueTime, limit/overdueShare) - time.Since(j.received)
}

// crashed gives up a message that was delivered far more often than its retries and crashes account for, without running it
// again: it ends whatever runs it. Up to then it is run, so that one that was only interrupted can show what it is. It may also be
// the choice of its policy that ends the worker, so that is left out once the number is beyond what any policy allows for.
func crashed(w *Worker, _ context.Context, j *job) (outcome, bool) {
	if j.granted {
		return outcome{}, false
	}
	spare := int64(compile.SpareDeliveries)
	if j.queue.Strict == v1alpha1.OnFailureBlock {
		spare = 0 // nothing is lost by stopping here
	}
	used := j.state.History.Retries
	allowed := j.accountedFor(j.program.mostRetries())
	if used < allowed+spare {
		allowed = j.accountedFor(j.foreseen().MostRetries())
	}
	if used < allowed+spare {
		return outcome{}, false
	}
	return outcome{kind: failed, final: message.Final{
		Reason: reasonPoison, At: w.options.Now(), Worker: w.options.Name,
		Explanation: fmt.Sprintf("delivered %d times and never finished; its retries and crashes account for %d", used, allowed),
		Failure:     retry.Failure{Source: retry.SourceCrash, Class: "WorkerCrash", Message: "the worker ended while it handled the message"},
	}}, true
}

// accountedFor is the number of deliveries that so many retries and the crashes account for. Attempts that this process has seen the end of are no
// crashes, also where a changed policy allows for fewer of them by now.
func (j *job) accountedFor(retries int64) int64 {
	return max(min(retries, message.MaxCount), j.tried) + int64(j.program.maxCrashes())
}

// block keeps a message that was given up at the head of its queue, which so stops. A changed configuration may give it
// further retries, or let it go.
func (w *Worker) block(ctx context.Context, j *job, past *redeliveryState, o outcome) outcome {
	if past.judged == nil {
		past.judged, past.givenUp = j.program, o.final
		w.options.Log.Error("a strictly ordered queue stops: its first message was given up", "queue", j.queue.Name, "message", j.state.ID,
			"reason", o.final.Reason, "explanation", o.final.Explanation)
	}
	gauge := w.options.Metrics.blocked.WithLabelValues(j.queue.Name)
	gauge.Set(1)
	defer gauge.Set(0)
	w.troubles.begin(troubleBlocked, j.queue.Name, w.options.Now())
	defer w.troubles.end(troubleBlocked, j.queue.Name)
	// Before the broker's consumer timeout the message goes back, and comes again.
	hold := time.NewTimer(j.held())
	defer hold.Stop()
	for {
		changed := w.ordered.changed()
		if p := w.program.Load(); p != past.judged {
			before := j.foreseen().MostRetries()
			w.use(j)
			past.judged = j.program
			if o, decided := w.reconsider(j, before, o); decided {
				w.options.Log.Info("queue unblocked", "queue", j.queue.Name, "message", j.state.ID, "outcome", o.kind)
				past.judged, past.granted = nil, o.kind == retried
				return o
			}
		}
		select {
		case <-changed:
		case <-hold.C:
			return outcome{kind: returned}
		case <-w.draining:
			return outcome{kind: requeued}
		case <-ctx.Done():
			return outcome{kind: stale}
		}
	}
}

// reconsider asks a changed configuration about a message that was given up. before is the number of its retries by the one that it was given up by. More than
// that are one attempt at least, however often the message came again while it blocked its queue: each is a delivery for a pod that knows no more of it.
func (w *Worker) reconsider(j *job, before int64, o outcome) (outcome, bool) {
	queue, ours := j.program.queues[j.delivery.Queue]
	if !ours {
		return outcome{kind: requeued}, true // another group goes on with it
	}
	j.queue = queue
	if queue.Strict != v1alpha1.OnFailureBlock {
		return o, true
	}
	policy := j.foreseen()
	j.decoded.LetGo()
	most := policy.MostRetries()
	if o.final.Reason != retry.ReasonMaxRetries && o.final.Reason != reasonPoison || j.state.History.Retries >= most && most <= before {
		w.options.Log.Warn("the changed configuration gives the first message of the queue no further retry", "queue", queue.Name,
			"message", j.state.ID, "reason", o.final.Reason, "retriesUsed", j.state.History.Retries, "maxRetries", most)
		return o, false
	}
	j.state.NotBefore = w.options.Now()
	return outcome{kind: retried}, true
}

// orderedQueues remember of each strictly ordered queue what the message at its head has gone through in this process.
type orderedQueues struct {
	mu    sync.Mutex
	known map[string]*orderedQueue
	woken chan struct{}
}

// orderedQueue is that of one queue. One message at a time is worked on, also when a session has ended in between.
type orderedQueue struct {
	turn chan struct{}
	// pasts are those of the messages that may come again, the latest first. One is enough for a strict queue. A classic queue that is
	// emptied while a strict one takes its place gives each of its consumers a message, and what one returns it may give to another.
	pasts []*redeliveryState
	// unread is how often the message that comes next was given back unread.
	unread atomic.Int64
}

// maxPasts is how many messages a head remembers.
const maxPasts = 256

// redeliveryState is what a message has gone through in this process.
type redeliveryState struct {
	id      string
	history retry.History
	// nameless is what the message is known by when it comes again, where the id was drawn here; zero where it is on the message.
	nameless nameless
	// traceparent is the span of the last attempt, and carry what its failure asked to have back.
	traceparent, carry string
	// deadline of the message; zero where it has none. A delivery that comes again does not count its expiration anew.
	deadline time.Time
	// due is when the retry is that it waited for.
	due time.Time
	// idle deliveries were no attempts; tried ones were.
	idle, tried int64
	// counted is what the broker had counted when it came last. released is true where not every broker has counted that it went back then.
	counted  int64
	released bool
	// claimed is how often the message was delivered by the word of its publisher.
	claimed int64
	// granted is true where a changed configuration gives the message another attempt, whatever its deliveries account for.
	granted bool
	// judged is the configuration that gave the message up; nil while none has. givenUp is why.
	judged  *program
	givenUp message.Final
	// done is true once it was settled for good. Until the next message comes it is remembered, for the settlement may get lost.
	done bool
}

func newOrderedQueues() *orderedQueues {
	return &orderedQueues{known: map[string]*orderedQueue{}, woken: make(chan struct{})}
}

func (s *orderedQueues) of(queue string) *orderedQueue {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known[queue] == nil {
		s.known[queue] = &orderedQueue{turn: make(chan struct{}, 1)}
	}
	return s.known[queue]
}

// wake lets blocked messages look at a changed configuration.
func (s *orderedQueues) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.woken)
	s.woken = make(chan struct{})
}

func (s *orderedQueues) changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.woken
}

// enter waits until the delivery before is done with. It is false where ctx ends first.
func (h *orderedQueue) enter(ctx context.Context) bool {
	select {
	case h.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (h *orderedQueue) leave() { <-h.turn }

// restore fills in the history of a message: what this process remembers, and how often the broker delivered it. A message
// that has been elsewhere in the meantime, such as the failure queue, brings a history of its own, which is over. A classic queue does
// not count: what this process remembers is all there is.
func (h *orderedQueue) restore(j *job) *redeliveryState {
	var seen nameless
	if j.nameless {
		seen = namelessOf(j.delivery)
	}
	p := h.lookup(j, seen)
	if seen.follows(p.nameless) {
		j.state.ID, j.view.ID = p.id, p.id
	}
	p.id, p.nameless = j.state.ID, seen
	unread := h.unread.Swap(0)
	if j.delivery.Redelivered {
		p.idle += unread
	}
	counted := j.delivery.DeliveryCount()
	if counted == p.claimed {
		counted = 0 // nobody has counted since
	}
	if p.released && counted-p.counted > unread {
		p.idle++
	}
	p.counted, p.released = counted, false
	attempts := min(max(p.tried, counted-p.idle), message.MaxCount)
	j.state.History, j.state.Traceparent, j.state.Carry = p.history, p.traceparent, p.carry
	j.state.History.Attempts, j.state.History.Retries, j.tried = attempts, attempts, p.tried
	j.granted, p.granted = p.granted, false
	if !p.deadline.IsZero() {
		j.state.Deadline = p.deadline
	}
	p.deadline = j.state.Deadline
	return p
}

// lookup is the past of a message that came back, and a new one of any other; it is the latest from now on.
func (h *orderedQueue) lookup(j *job, seen nameless) *redeliveryState {
	at := -1
	if j.delivery.Redelivered {
		at = slices.IndexFunc(h.pasts, func(p *redeliveryState) bool {
			if j.nameless {
				return seen.mayFollow(p.nameless)
			}
			return p.id == j.state.ID
		})
	}
	p := &redeliveryState{carry: j.state.Carry} // what a message brings from elsewhere is still true of it
	if at >= 0 {
		p = h.pasts[at]
	} else if !j.delivery.Redelivered {
		p.claimed = j.delivery.ClaimedDeliveries()
	}
	h.pasts = slices.DeleteFunc(h.pasts, func(other *redeliveryState) bool { return other == p || other.done })
	h.pasts = slices.Insert(h.pasts, 0, p)
	h.pasts = slices.Delete(h.pasts, min(maxPasts, len(h.pasts)), len(h.pasts))
	p.done = false
	return p
}

// remember keeps what a message has gone through in case that it is delivered again. Whatever became of it here, it is when its
// settlement does not arrive.
func (p *redeliveryState) remember(j *job, o outcome) {
	p.history, p.traceparent, p.carry = j.state.History, j.state.Traceparent, j.state.Carry
	p.history.Immediate = 0
	if j.attempted {
		p.due = j.state.NotBefore.Add(time.Millisecond)
	} else {
		p.granted = p.granted || j.granted
	}
	switch comesAgain := o.kind == returned || o.kind == requeued || o.kind == stale; {
	case comesAgain && j.attempted:
		p.tried++
	case o.kind == returned && j.isUncounted():
		p.released = true
	case comesAgain:
		p.idle++
	}
}

// early is by how much a message has come before its retry is due. However the clock was set since, it is no longer than its delay.
func (p *redeliveryState) early(now time.Time) time.Duration {
	return min(p.due.Sub(now), p.history.LastDelay+time.Millisecond)
}

// forget is called when the message is settled for good: an equal one that comes next, or one of the same id, is another.
func (p *redeliveryState) forget() { p.nameless, p.tried, p.done = nameless{}, 0, true }
