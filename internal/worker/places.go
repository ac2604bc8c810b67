package worker

import (
	"context"
	"sync"
	"time"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/scheduler"
)

// mostWaiting is how many goroutines are kept for the next jobs: about as many as await the broker's confirm at a time where each
// message is retried. Where the handler takes its time it matters little.
const mostWaiting = 256

// accept takes a delivery, and does not block: the prefetch bounds how many there are. One that has to wait for a place at the
// handler does so in the scheduler, and has no goroutine until it has one.
func (w *Worker) accept(ctx context.Context, d *amqp.Delivery) {
	if d.NoRoom {
		go w.awaitRoom(ctx, d)
		return
	}
	counted := w.program.Load().handler
	j := &job{delivery: d, received: time.Now(), size: sizeFor(counted, d), counted: counted, inflight: w.inflight.of(d.Queue)}
	j.turn.Value = j
	w.room.Add(j.size)
	if j.inflight.begin(j.size, j.received) {
		w.inflight.due.Store(true)
		w.wakeFlowControl()
	}
	if w.isApart(d) || w.takePlace(ctx, j, j.received) {
		w.launch(ctx, j)
	}
}

// takePlace is false where the job has to wait for a place at the handler.
func (w *Worker) takePlace(ctx context.Context, j *job, now time.Time) bool {
	holds, again := w.places.Take(&j.turn, j.delivery.Queue, now)
	w.pollAfter(ctx, again)
	return holds
}

// sizeFor is about what a message takes in memory, in bytes: itself, and what the handler writes it into.
func sizeFor(s *shared, d *amqp.Delivery) int64 {
	size := message.MemorySize(&d.Message)
	if framer, ok := s.Handler.(handler.Framer); ok {
		size += int64(framer.FrameSize(&d.Message))
	}
	return size
}

// recount counts a message by the handler that it goes to, where that is another one than when it came.
func (w *Worker) recount(j *job) {
	if j.counted == j.program.handler {
		return
	}
	j.counted = j.program.handler
	more := sizeFor(j.counted, j.delivery) - j.size
	j.size += more
	j.inflight.grow(more)
	w.room.Add(more)
}

// awaitRoom gives a message back for which there was no room, once there is. RabbitMQ delivers it again, as one that came back.
func (w *Worker) awaitRoom(ctx context.Context, d *amqp.Delivery) {
	w.options.Metrics.noRoom.WithLabelValues(d.Queue).Inc()
	w.problems.warn("room/"+d.Queue, "a message was not read, because those on loan have all the memory they may; it is given back when there is room",
		"queue", d.Queue, "bytes", d.LeftOut, "limit", w.inflight.limit)
	live, cancel := d.WhileLive(ctx)
	defer cancel()
	live, stop := context.WithTimeout(live, w.program.Load().config.HoldLimit())
	defer stop()
	w.room.Await(live, d.LeftOut)
	p := w.program.Load()
	// Of a stand-in it is known by its work queue, as it is when it comes again.
	if queue, _ := p.queueOf(d.Queue); d.Strict() {
		w.ordered.of(queue.Name).unread.Add(1) // it was no attempt
	} else {
		w.unread.add(queue.Name, p.config.LongestRun())
	}
	_ = d.GiveBack()
}

// isApart is true of a message that may not need a place at all, or does more than wait for it.
func (w *Worker) isApart(d *amqp.Delivery) bool {
	return d.Strict() || d.Redelivered || d.Headers[message.HeaderQuarantine] != nil || d.Unreadable || w.options.Journal != nil || w.stopping()
}

// launch runs a job beside the caller.
func (w *Worker) launch(ctx context.Context, j *job) {
	select {
	case w.idle <- j:
	default:
		go w.run(ctx, j)
	}
}

// run takes a job to its settlement, and then goes on with the one that has its place next, or any other one: a new goroutine for
// each would grow a new stack each time.
func (w *Worker) run(ctx context.Context, j *job) {
	for j != nil {
		w.processDelivery(ctx, j)
		next := w.pass(ctx, j)
		j.inflight.end(j.size, j.took, time.Now())
		w.room.Add(-j.size)
		w.unuse(j)
		if j = next; j == nil {
			j = w.wait()
		}
	}
}

// wait returns the next job that is launched. It is nil where enough others wait already, or the worker stops.
func (w *Worker) wait() *job {
	defer w.waiting.Add(-1)
	if w.waiting.Add(1) > mostWaiting {
		return nil
	}
	select {
	case j := <-w.idle:
		return j
	case <-w.draining:
		return nil
	}
}

// pass gives the place of a job, if it has one, to the job whose turn it is. That is returned where it needs somebody to run it.
func (w *Worker) pass(ctx context.Context, j *job) *job {
	if !j.turn.Holds() {
		return nil
	}
	next, again := w.places.Done(&j.turn, time.Now())
	w.pollAfter(ctx, again)
	if next == nil {
		return nil
	}
	return w.begun(next)
}

// polling is the one timer for the places that are kept free for a moment.
type polling struct {
	mu    sync.Mutex
	timer *time.Timer
	at    time.Time // when it fires; zero where it does not
}

// pollAfter gives away the places that are kept free for a moment, when that is over.
func (w *Worker) pollAfter(ctx context.Context, moment time.Duration) {
	if moment <= 0 {
		return
	}
	p := &w.polling
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Now().Add(moment)
	if !p.at.IsZero() && !at.Before(p.at) {
		return
	}
	p.at = at
	if p.timer == nil {
		p.timer = time.AfterFunc(moment, func() { w.poll(ctx) })
		return
	}
	p.timer.Reset(moment)
}

func (w *Worker) poll(ctx context.Context) {
	w.polling.mu.Lock()
	w.polling.at = time.Time{}
	w.polling.mu.Unlock()
	begun, again := w.places.Poll(time.Now())
	w.start(ctx, begun)
	w.pollAfter(ctx, again)
}

// begun wakes who waits for the turn that has come, or else returns its job.
func (w *Worker) begun(turn *scheduler.Turn[*job]) *job {
	if turn.Value.woken == nil {
		return turn.Value
	}
	close(turn.Value.woken)
	return nil
}

// start runs those whose turn has come.
func (w *Worker) start(ctx context.Context, begun []*scheduler.Turn[*job]) {
	for _, turn := range begun {
		if j := w.begun(turn); j != nil {
			w.launch(ctx, j)
		}
	}
}

// yieldSlot makes room for others at the handler.
func (w *Worker) yieldSlot(ctx context.Context, j *job) {
	if next := w.pass(ctx, j); next != nil {
		w.launch(ctx, next)
	}
}

// resize changes the number of places and the weights of the queues.
func (w *Worker) resize(ctx context.Context, p *program) {
	weights := map[string]int{}
	for name, queue := range p.queues {
		weights[name] = max(1, queue.Weight)
	}
	w.start(ctx, w.places.Configure(p.capacity(), weights, time.Now()))
	w.poll(ctx)
}

// capacity is how many messages are called at a time: no more than the handler begins, or they would wait there in the order in which they came, and the
// queues would not share by their weights.
func (p *program) capacity() int {
	if limited, is := p.handler.Handler.(handler.Limited); is {
		return min(p.config.Concurrency, limited.Capacity())
	}
	return p.config.Concurrency
}

// sweep gives back to their queues jobs that wait for a place: all, or those that have waited for as long as they may, and those of queues that
// are not the worker's any more. It leaves alone those whose session has ended: the broker has them again.
func (w *Worker) sweep(ctx context.Context, all bool) {
	p := w.program.Load()
	limit := p.config.HoldLimit()
	for _, turn := range w.places.Withdraw(func(j *job) bool {
		_, ours := p.queueOf(j.delivery.Queue)
		return j.woken == nil && (all || !ours || !j.delivery.Live() || time.Since(j.received) >= limit)
	}) {
		turn.Value.back = true
		w.launch(ctx, turn.Value)
	}
}

// waitForPlace waits until there is a place for the job, where it does not have one. It is released when the worker stops
// meanwhile, or when the broker would soon take it away. One that has to keep its place in its queue is begun even then, where
// there is room: to give it back would cost it one of its deliveries.
func waitForPlace(w *Worker, ctx context.Context, j *job) (outcome, bool) {
	switch {
	case j.turn.Holds():
		return outcome{}, false
	case j.back, w.stopping() && !j.isStrict():
		return outcome{kind: requeued}, true
	}
	j.woken = make(chan struct{})
	if w.takePlace(ctx, j, time.Now()) {
		return outcome{}, false
	}
	o, ended := w.await(ctx, j, j.held(), j.woken)
	if w.places.Cancel(&j.turn) {
		if !ended {
			o = j.overdue()
		}
		return o, true
	}
	<-j.woken // it has a place now, whatever ended the wait
	return o, ended
}

// overdue is what becomes of a job that cannot be held for longer.
func (j *job) overdue() outcome {
	if j.isStrict() {
		return outcome{kind: returned}
	}
	return outcome{kind: requeued}
}
