package local

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/version"
	"redrive.dev/redrive/internal/worker"
)

// group is a worker group: one worker with the concurrency of one pod, however many replicas the spec asks for, and a
// process for its suspects while there are some.
type group struct {
	worker  *worker.Worker
	metrics *prometheus.Registry
	keeper  *keeper
	drain   func()
	drained chan struct{}
}

// startGroup runs a group until drain is called. It logs in as broker says at the start of each session.
func startGroup(config compile.Config, broker *atomic.Pointer[Broker], options *Options, log *slog.Logger) (*group, error) {
	log = log.With("worker", config.Worker)
	registry := prometheus.NewRegistry()
	w, err := newWorker(config, broker, registry, log, nil)
	if err != nil {
		return nil, err
	}
	keeper := newKeeper(&options.Suspects, log)
	if err := keeper.take(config, *broker.Load()); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	g := &group{worker: w, metrics: registry, keeper: keeper, drained: make(chan struct{})}
	g.drain = func() {
		keeper.drain() // first: who waits for it may do so from when the worker has stopped
		stop()
	}
	go func() {
		defer close(g.drained)
		w.Run(ctx)
		keeper.wait()
	}()
	return g, nil
}

// take puts a changed configuration or changed credentials in force. A configuration that the worker refuses is none for its
// suspects either: a process that started with it would fail, while the one before it goes on.
func (g *group) take(config compile.Config, on Broker) error {
	if err := g.worker.Reload(config); err != nil {
		g.keeper.takeLogin(on)
		return err //nolint:wrapcheck // the caller says of what
	}
	return g.keeper.take(config, on)
}

func makeHandler(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
	return handler.New(spec, concurrency, version.Version()) //nolint:wrapcheck // the caller says of what
}
