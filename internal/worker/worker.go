// Package worker carries a message from its delivery to its settlement: it calls the handler, asks the retry policy about
// a failure, and settles the message so that it is never lost: whatever becomes of it is first confirmed by the broker,
// and only then acknowledged.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// drainGrace is how long settling may take after the last handler had to be done. The pod's termination grace is the
// handler's timeout and 15 s.
const drainGrace = 10 * time.Second

// HandlerFactory makes the handler that a configuration names.
type HandlerFactory func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error)

// Options of a Worker. All are needed but Journal and Name.
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
	// Journal makes this the suspects' worker: it consumes the suspects' queues alone, one message at a time. nil is an
	// ordinary worker.
	Journal Journal
	// Name of this worker for people, such as its pod's.
	Name string
}

// Worker consumes queues and calls a handler.
type Worker struct {
	options   Options
	program   atomic.Pointer[program]
	reload    sync.Mutex
	consumer  *amqp.Consumer
	publisher *amqp.Publisher
	// onLoan counts the deliveries that are not settled yet.
	onLoan   atomic.Int64
	draining chan struct{}
	problems *sampled
	troubles *troubles
	heads    *heads
	// aside is the number of messages that wait for their turn without a place at the handler.
	aside atomic.Int64
	// receiving is what gate decided last.
	receiving atomic.Bool
	// regulation wakes gate where a breaker may let another number of messages through.
	regulation chan struct{}
}

// New makes a worker, or says what is wrong with its configuration. It does nothing before Run.
func New(o Options) (*Worker, error) {
	name := fmt.Sprintf("redrive %s/%s", o.Config.Transport, o.Config.Worker)
	if o.Journal != nil {
		name += " suspects"
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
	w := &Worker{
		options:   o,
		consumer:  amqp.NewConsumer(session("consume")),
		publisher: amqp.NewPublisher(session("publish")),
		draining:  make(chan struct{}),
		problems:  newSampled(o.Log, o.Now),
		troubles:  newTroubles(),
		heads:     newHeads(),

		regulation: make(chan struct{}, 1),
	}
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
	before := w.program.Load()
	p, err := w.newProgram(config, before)
	if err != nil {
		w.options.Metrics.configErrors.Inc()
		return err
	}
	if p.hash == before.hash {
		return nil
	}
	w.activate(p)
	w.options.Metrics.config.DeleteLabelValues(before.hash)
	w.options.Log.Info("configuration taken over", "hash", p.hash, "before", before.hash)
	return nil
}

func (w *Worker) activate(p *program) {
	if before := w.program.Swap(p); before != nil {
		p.protection.replaced(&before.protection)
	}
	w.options.Metrics.config.WithLabelValues(p.hash).Set(1)
	w.heads.wake()
	w.regulate()
}

// ConfigHash names the configuration in force.
func (w *Worker) ConfigHash() string { return w.program.Load().hash }

// Ready is nil when messages can be received and settled, and else says what is missing.
func (w *Worker) Ready() error {
	if ready, _ := w.publisher.Ready(); !ready {
		return waiting("the broker takes no messages at the moment", w.publisher.Trouble())
	}
	p := w.program.Load()
	if p.protection.allowed(p.config.Concurrency, w.options.Now()) == 0 {
		return nil // nothing is received while the breaker is open, and that is as it should be
	}
	if active, want := w.consumer.Active(), len(p.consumed); active < want {
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
// end within their timeout, and returns when all is settled. What cannot be settled in time is delivered again by the
// broker.
func (w *Worker) Run(ctx context.Context) {
	sessions, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { w.publisher.Run(sessions) })
	running.Go(func() { w.consumer.Run(sessions, func(d *amqp.Delivery) { w.accept(sessions, d) }) })
	w.gate(ctx)
	close(w.draining)
	w.drain()
	stop()
	running.Wait()
}

// gate lets messages in while they can be settled, as many as the breaker allows for, and none from when ctx ends.
func (w *Worker) gate(ctx context.Context) {
	defer w.consumer.Receive(false)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var applied struct {
		program *program
		allowed int
	}
	for {
		ready, changed := w.publisher.Ready()
		p := w.program.Load()
		allowed := p.protection.allowed(p.config.Concurrency, w.options.Now())
		if p != applied.program || allowed > 0 && allowed != applied.allowed {
			applied.program, applied.allowed = p, allowed
			w.consumer.Subscribe(p.subscriptions(max(1, allowed)))
		}
		w.receiving.Store(ready && allowed > 0)
		w.consumer.Receive(ready && allowed > 0)
		select {
		case <-changed:
		case <-w.regulation:
		case <-tick.C: // an open breaker begins to probe, an exhausted budget fills again
			w.Status()
		case <-ctx.Done():
			return
		}
	}
}

// regulate lets gate look again.
func (w *Worker) regulate() {
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

// drain waits until nothing is received any more and nothing is on loan.
func (w *Worker) drain() {
	deadline := time.After(w.program.Load().config.Timeout.Duration.Duration + drainGrace)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !w.consumer.Quiet() || w.onLoan.Load() > 0 {
		select {
		case <-tick.C:
		case <-deadline:
			w.options.Log.Warn("stopped before all messages were settled: the broker delivers the rest again", "messages", w.onLoan.Load())
			return
		}
	}
}

// accept takes a delivery. Their number is bounded by the prefetch.
func (w *Worker) accept(ctx context.Context, d *amqp.Delivery) {
	w.onLoan.Add(1)
	go func() {
		defer w.onLoan.Add(-1)
		w.process(ctx, d)
	}()
}
