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

// Options of a Worker. All are needed.
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
}

// New makes a worker, or says what is wrong with its configuration. It does nothing before Run.
func New(o Options) (*Worker, error) {
	p, err := newProgram(o.Config, o.Handlers, nil)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("redrive %s/%s", o.Config.Transport, o.Config.Worker)
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
	p, err := newProgram(config, w.options.Handlers, before)
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
	w.program.Store(p)
	w.options.Metrics.config.WithLabelValues(p.hash).Set(1)
	w.consumer.Subscribe(p.subscriptions())
}

// ConfigHash names the configuration in force.
func (w *Worker) ConfigHash() string { return w.program.Load().hash }

// Ready is nil when messages can be received and settled, and else says what is missing.
func (w *Worker) Ready() error {
	if ready, _ := w.publisher.Ready(); !ready {
		return waiting("the broker takes no messages at the moment", w.publisher.Trouble())
	}
	if active, want := w.consumer.Active(), len(w.program.Load().config.Queues); active < want {
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

// gate lets messages in while they can be settled, and none from when ctx ends.
func (w *Worker) gate(ctx context.Context) {
	defer w.consumer.Receive(false)
	for {
		ready, changed := w.publisher.Ready()
		w.consumer.Receive(ready)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
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
