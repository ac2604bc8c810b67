package local

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/version"
	"redrive.dev/redrive/internal/worker"
)

// group is a worker group: one worker with the concurrency of one pod, however many replicas the spec asks for.
type group struct {
	worker  *worker.Worker
	metrics *prometheus.Registry
	drain   context.CancelFunc
	drained chan struct{}
}

// startGroup runs a worker until drain is called. It logs in as broker says at the start of each session.
func startGroup(config compile.Config, broker *atomic.Pointer[Broker], log *slog.Logger) (*group, error) {
	registry := prometheus.NewRegistry()
	w, err := worker.New(worker.Options{
		Config: config,
		Source: func() (amqp.Target, error) { return broker.Load().target() },
		Handlers: func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
			return handler.New(spec, concurrency, version.Version())
		},
		Now:     time.Now,
		Rand:    worker.Random{},
		Metrics: worker.NewMetrics(registry),
		Log:     log.With("worker", config.Worker),
	})
	if err != nil {
		return nil, fmt.Errorf("worker %s: %w", config.Worker, err)
	}
	ctx, drain := context.WithCancel(context.Background())
	g := &group{worker: w, metrics: registry, drain: drain, drained: make(chan struct{})}
	go func() {
		defer close(g.drained)
		w.Run(ctx)
	}()
	return g, nil
}
