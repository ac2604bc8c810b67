// Package worker carries a message from its delivery to its settlement: it calls the handler, asks the retry policy about
// a failure, and settles the message so that it is never lost: whatever becomes of it is first confirmed by the broker,
// and only then acknowledged.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/scheduler"
)

// drainGrace is how long settling may take after the last handler had to be done. The pod's termination grace is the
// handler's timeout and 15 s.
const drainGrace = 10 * time.Second

// heldGrace is for how long the broker may take none of the messages that are held before a worker that stops leaves them to it.
const heldGrace = 5 * time.Second

// HandlerFactory makes the handler that a configuration names.
type HandlerFactory func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error)

// Options of a Worker. All are needed but Journal, Name, Image, Traces, Memory and Shared.
type Options struct {
	// Config to begin with.
	Config compile.Config
	// Source of the broker's address and credentials.
	Source amqp.Source
	// Handlers makes handlers.
	Handlers HandlerFactory
	// Now is the clock.
	Now func() time.Time
	// Rand is used by many goroutines at once.
	Rand retry.Rand
	// Metrics to count on; workers of several Transports may share them.
	Metrics *Metrics
	Log     *slog.Logger
	// Journal makes this the quarantine worker: it consumes the quarantine queues alone, one message at a time. nil is an
	// ordinary worker.
	Journal Journal
	// Name of this worker for people, such as its pod's.
	Name string
	// MadeFor is which handler the worker's pod was made for, as compile.MadeFor says it. A configuration that is meant for another pod keeps the handler
	// before. Empty takes every handler.
	MadeFor string
	// MaxTimeout is the longest attempt for which the worker's pod has time when it is told to stop: a longer timeout of the configuration is for other pods.
	// 0 is any.
	MaxTimeout time.Duration
	// Traces makes the spans of attempts; nil makes none.
	Traces trace.TracerProvider
	// Memory is how many bytes the process may use; 0 is the limit that MemoryLimit finds. A quarter of it may be on loan, and
	// expressions read bodies of up to a 128th of it.
	Memory int64
	// Shared is what the worker has together with others of its process, in place of Memory; nil where it is alone.
	Shared *Memory
}

// Worker consumes queues and calls a handler.
type Worker struct {
	options   Options
	program   atomic.Pointer[program]
	reload    sync.Mutex
	consumer  *amqp.Consumer
	publisher *amqp.Publisher
	// places are those at the handler.
	places  *scheduler.Scheduler[*job]
	polling polling
	// idle hands jobs to the goroutines that wait for one; waiting is how many do.
	idle    chan *job
	waiting atomic.Int64
	// inflight are the deliveries that are not settled yet, and room is the memory that they take.
	inflight *inflight
	room     *amqp.Room
	// bodies is the memory for those that expressions read, and turns are those of their evaluations.
	bodies   *retry.Bodies
	turns    *retry.Turns
	draining chan struct{}
	problems *sampled
	troubles *troubles
	ordered  *orderedQueues
	// unread are the messages that came back because they had no room.
	unread *unread
	// redelivered are those that are quarantined because they came back.
	redelivered redelivered
	// tracer is nil where traces are off.
	tracer trace.Tracer
	// receiving is what the flow control decided last, and allowed how many messages at a time the breaker lets through.
	receiving atomic.Bool
	allowed   atomic.Int64
	// regulation wakes the flow control where it may decide otherwise.
	regulation chan struct{}
	// handler is what is known of the handler's readiness. Only the flow control uses it, but for wasReady: true once it has been.
	handler  readiness
	wasReady atomic.Bool
	// held counts the messages that have an outcome and wait for the broker to take it.
	held atomic.Int64
	// failing are the destinations that the broker takes nothing for.
	failingLock sync.Mutex
	failing     map[amqp.Destination]bool
	// retired are handlers that were replaced and may not be closed yet, former the programs that were replaced and may be in use yet, and over is true when
	// Run has ended; all under reload.
	retired []*shared
	former  []*program
	over    bool
}

// New makes a worker, or says what is wrong with its configuration. It does nothing before Run.
func New(o Options) (*Worker, error) {
	name := fmt.Sprintf("redrive %s/%s", o.Config.Transport, o.Config.Worker)
	if o.Journal != nil {
		name += " quarantine"
	}
	session := func(role string) amqp.Options {
		return amqp.Options{
			Source:    o.Source,
			Name:      name + " " + role,
			Log:       o.Log.With("session", role),
			OnState:   o.Metrics.session(role),
			OnRenewal: o.Metrics.renewal(role),
		}
	}
	memory := o.Shared
	if memory == nil {
		memory = NewMemory(o.Memory)
	}
	w := &Worker{
		options:   o,
		publisher: amqp.NewPublisher(session("publish")),
		draining:  make(chan struct{}),
		problems:  newSampled(o.Log, o.Now),
		places:    scheduler.NewScheduler[*job](1, time.Now()),
		idle:      make(chan *job),
		inflight:  newLoans(memory.loans),
		room:      memory.room,
		bodies:    memory.bodies,
		turns:     memory.turns,
		troubles:  newTroubles(),
		ordered:   newOrderedQueues(),
		unread:    &unread{all: map[string]returns{}},
		tracer:    newTracer(o.Traces),

		regulation: make(chan struct{}, 1),
	}
	consuming := session("consume")
	if o.Journal != nil {
		w.room = amqp.NewRoom(w.inflight.limit / quarantineShare) // it handles one at a time, beside a worker that has what others may
	}
	consuming.OnQueue, consuming.MaxBody, consuming.Room = w.noteQueue, largestBody(w.inflight.limit), w.room
	consuming.ConsumerTimeout = func() time.Duration { return w.program.Load().config.LoanLimit() }
	w.consumer = amqp.NewConsumer(consuming)
	p, err := w.newProgram(o.Config, nil)
	if err != nil {
		return nil, err
	}
	w.activate(p)
	return w, nil
}

// Reload puts another configuration in force, without touching the sessions and the messages that are being handled. On
// an error the one before stays.
func (w *Worker) Reload(config compile.Config) error {
	w.reload.Lock()
	defer w.reload.Unlock()
	if w.over {
		return nil
	}
	before := w.program.Load()
	p, err := w.newProgram(config, before)
	if err != nil {
		w.options.Metrics.configErrors.Inc()
		return err
	}
	if p.hash == before.hash {
		return nil
	}
	w.awaitStart(p, before)
	w.activate(p)
	w.options.Metrics.config.DeleteLabelValues(before.hash)
	w.options.Log.Info("configuration taken over", "hash", p.hash, "before", before.hash)
	return nil
}

func (w *Worker) activate(p *program) {
	before := w.program.Swap(p)
	w.tellStages(p, before)
	w.tellHolds(p, before)
	if before != nil {
		p.protection.replaced(&before.protection)
		w.former = slices.DeleteFunc(append(w.former, before), (*program).isUnused)
		if p.handler != before.handler {
			w.replaced(before.handler)
		}
	}
	w.options.Metrics.config.WithLabelValues(p.hash).Set(1)
	w.ordered.wake()
	w.wakeFlowControl()
	if w.stopping() {
		p.handler.drain()
	}
}

// tellHolds tells which queues are not consumed any more, or again.
func (w *Worker) tellHolds(p, before *program) {
	held := map[string]string{}
	if before != nil {
		held = before.holds()
	}
	holds := p.holds()
	for queue := range held {
		if holds[queue] == "" {
			w.options.Log.Info("the queue is not held any more", "queue", queue)
			w.options.Metrics.queueHeld.DeleteLabelValues(queue)
			w.troubles.hold(queue, "", w.options.Now())
		}
	}
	for queue, why := range holds {
		if why != held[queue] {
			w.options.Log.Error("the queue is not consumed", "queue", queue, "why", why)
			w.options.Metrics.queueHeld.WithLabelValues(queue).Set(1)
			w.troubles.hold(queue, why, w.options.Now())
		}
	}
}

// ConfigHash names the configuration in force.
func (w *Worker) ConfigHash() string { return w.program.Load().hash }

// Ready is nil when messages can be received and settled, and else says what is missing. It waits for the handler once: a handler
// that fails from the start stops a rollout, while one that fails later is a trouble that the worker reports, and no reason
// to take the worker for broken.
func (w *Worker) Ready() error {
	if ready, _ := w.publisher.Ready(); !ready {
		return waiting("the broker takes no messages at the moment", w.publisher.Trouble())
	}
	p := w.program.Load()
	if why, _ := p.handler.Ready(); why != nil {
		if w.wasReady.Load() {
			return nil // nothing is received meanwhile, and that is as it should be
		}
		return waiting("the handler is not ready", why)
	}
	if p.protection.allowed(p.config.Concurrency, w.options.Now()) == 0 {
		return nil // nothing is received while the breaker is open either
	}
	if active, want := w.consumer.Active(), p.needed(); active < want {
		return waiting(fmt.Sprintf("%d of %d queues are consumed", active, want), w.consumer.Trouble())
	}
	return nil
}

// waiting says what is missing and, where that is known, why.
func waiting(what string, why error) error {
	if why == nil {
		return errors.New(what)
	}
	return fmt.Errorf("%s: %w", what, why)
}

// Run consumes until ctx ends. Then it receives no more, gives back to the queues what it has not begun, lets the handlers
// end within their timeout, and returns when all is settled and the handler is closed. What cannot be settled in time is
// delivered again by the broker. It is called once.
func (w *Worker) Run(ctx context.Context) {
	w.options.Metrics.lenders.Store(w.inflight, true)
	defer w.options.Metrics.lenders.Delete(w.inflight)
	sessions, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { w.publisher.Run(sessions) })
	running.Go(func() { w.consumer.Run(sessions, func(d *amqp.Delivery) { w.accept(sessions, d) }) })
	w.runFlowControl(ctx, sessions)
	close(w.draining)
	w.drainHandlers()
	w.drain(sessions)
	stop()
	running.Wait()
	w.closeHandlers()
}

// runFlowControl lets messages in while they can be settled and the handler is ready, as many as the breaker allows for, and none from when
// ctx ends.
func (w *Worker) runFlowControl(ctx, sessions context.Context) {
	defer w.consumer.Receive(false)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var steered flowState
	for look := true; ; look = w.inflight.due.Swap(false) {
		p := w.program.Load()
		published, publisherChanged := w.publisher.Ready()
		why, handlerChanged := p.handler.Ready()
		w.noteHandler(why)
		allowed := p.protection.allowed(p.config.Concurrency, w.options.Now())
		w.allowed.Store(int64(allowed))
		w.updateSubscriptions(sessions, &steered, p, allowed, look)
		open := allowed > 0 && why == nil
		w.receiving.Store(published && open)
		w.consumer.Receive(published && open)
		var quiet <-chan time.Time
		if !open && w.places.Waiting() > 0 {
			// Before the worker has stopped to receive, they would come back at once.
			if w.consumer.Quiet() {
				w.sweep(sessions, true)
			}
			quiet = time.After(nextLook)
		}
		select {
		case <-publisherChanged:
		case <-handlerChanged:
		case <-quiet:
		case <-w.regulation:
		case <-tick.C: // an open breaker begins to probe, an exhausted budget fills again
			w.Status()
			p.protection.roll(w.options.Now())
			w.sweep(sessions, false)
			w.inflight.due.Store(true)
		case <-ctx.Done():
			return
		}
	}
}

// flowState is what the flow control has put in force.
type flowState struct {
	program       *program
	capacity      int
	subscriptions []amqp.Subscription
}

// updateSubscriptions subscribes to the queues of a program, with the prefetches that they should have.
func (w *Worker) updateSubscriptions(sessions context.Context, s *flowState, p *program, allowed int, look bool) {
	changed := p != s.program
	if capacity := p.capacity(); changed || capacity != s.capacity {
		w.resize(sessions, p)
		s.program, s.capacity = p, capacity
	}
	now := time.Now()
	if look || changed {
		if w.inflight.decide(p, changed || allowed >= p.config.Concurrency && w.receiving.Load(), now) {
			for name := range w.inflight.decided {
				w.places.Backlog(name, w.inflight.prefetch.Backlogged(name))
			}
		}
	}
	subscriptions := p.subscriptions(w.inflight.granted, max(1, allowed))
	if changed || allowed > 0 && !slices.Equal(subscriptions, s.subscriptions) {
		s.subscriptions = subscriptions
		w.inflight.allow(subscriptions, w.options.Metrics, now)
		w.consumer.Subscribe(subscriptions)
	}
}

// wakeFlowControl lets the flow control look again.
func (w *Worker) wakeFlowControl() {
	select {
	case w.regulation <- struct{}{}:
	default:
	}
}

// stopping is true from when the worker has been told to end.
func (w *Worker) stopping() bool {
	select {
	case <-w.draining:
		return true
	default:
		return false
	}
}

// longestTimeout is that of the programs that messages in hand are handled with: a reload gives them no other one. The pod's grace period allows for each.
func (w *Worker) longestTimeout() time.Duration {
	w.reload.Lock()
	defer w.reload.Unlock()
	longest := w.program.Load().config.Timeout.Duration.Duration
	for _, p := range w.former {
		if !p.isUnused() {
			longest = max(longest, p.config.Timeout.Duration.Duration)
		}
	}
	return longest
}

// drain waits until nothing is received any more and nothing is on loan.
func (w *Worker) drain(ctx context.Context) {
	deadline := time.After(w.longestTimeout() + drainGrace)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last, since := -1, time.Now()
	for {
		w.sweep(ctx, true)
		left, _ := w.inflight.sum()
		if w.consumer.Quiet() && left == 0 {
			return
		}
		if ready, _ := w.publisher.Ready(); !ready || left == 0 || left != last || left != int(w.held.Load()) {
			last, since = left, time.Now()
		}
		if time.Since(since) > heldGrace {
			w.options.Log.Warn("stopped while the broker does not take what is published: it delivers the messages again", "messages", left)
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			w.options.Log.Warn("stopped before all messages were settled: the broker delivers them again", "messages", left)
			return
		}
	}
}
