package run

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/httpserver"
	"redrive.dev/redrive/internal/quarantine"
	"redrive.dev/redrive/internal/tracing"
	"redrive.dev/redrive/internal/version"
	"redrive.dev/redrive/internal/worker"
)

// errStuck ends a worker in which calls of the handler hold all places for good.
var errStuck = errors.New("calls of the handler still run long after their time was over, and hold all places: " +
	"the worker exits to be restarted; the handler must return when its context ends")

// job is one worker with what is around it.
type job struct {
	options  *Options
	log      *slog.Logger
	registry *prometheus.Registry
	login    *worker.Login
	// abandoned are the handler's calls that go on after their time is over; a reload ends none of them.
	abandoned *handler.Abandoned
	memory    *worker.Memory
	// failed gets why the worker stops before it is told to, from whatever found out first, and stop stops it.
	failed chan error
	stop   context.CancelFunc
}

// work runs a worker until ctx ends and all is settled.
func work(ctx context.Context, program public.Handler, o *Options) error {
	config, err := worker.ReadConfig(o.Config)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	j := &job{
		options: o, log: o.Log.With("transport", config.Transport, "worker", config.Worker), registry: o.Metrics,
		login: worker.NewLogin(o.Credentials, config.VHost), failed: make(chan error, 1), stop: stop,
		abandoned: handler.NewAbandoned(worker.KeptMemory()), memory: worker.NewMemory(0),
	}
	if j.registry == nil {
		j.registry = prometheus.NewRegistry()
		j.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	}
	traces, flush := tracing.Start(ctx, j.log, tracing.Transport(config.Transport), tracing.Worker(config.Worker))
	defer flush()
	most, err := maxTimeout()
	if err != nil {
		return err
	}
	settings := worker.Options{
		Config: config,
		Source: j.login.Target,
		Handlers: func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
			return j.handler(ctx, program, spec, concurrency)
		},
		Now:     time.Now,
		Rand:    worker.Random{},
		Metrics: worker.NewMetrics(j.registry),
		Log:     j.log,
		Traces:  traces,
		Name:    name(),
		MadeFor: os.Getenv(compile.MadeForVariable), MaxTimeout: most,
		Shared: j.memory,
	}
	if o.Quarantine {
		if settings.Journal, err = quarantine.Open(o.Journal, time.Now, j.log); err != nil {
			return err
		}
	}
	w, err := worker.New(settings)
	if err != nil {
		return fmt.Errorf("%s: %w", o.Config, err)
	}
	return j.serve(ctx, w)
}

// maxTimeout is the longest attempt that the pod has time for; 0 outside of a pod.
func maxTimeout() (time.Duration, error) {
	text := os.Getenv(compile.MaxTimeoutVariable)
	if text == "" {
		return 0, nil
	}
	most, err := time.ParseDuration(text)
	if err != nil || most <= 0 {
		return 0, fmt.Errorf("%s: %q is not a duration such as 30s", compile.MaxTimeoutVariable, text)
	}
	return most, nil
}

// name of this worker for people: its pod's, else its host's.
func name() string {
	if pod := os.Getenv("POD_NAME"); pod != "" {
		return pod
	}
	host, _ := os.Hostname() // without one it has no name
	return host
}

// handler makes the handler that a configuration names.
func (j *job) handler(ctx context.Context, program public.Handler, spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
	if program != nil && spec.InProcess == nil {
		j.log.Warn("this program's own handler is not used: the configuration names another one, not inProcess")
	}
	made, err := handler.New(spec, handler.Options{ //nolint:contextcheck // it lives until the worker closes it
		Concurrency: concurrency, Version: version.Version(), Files: j.options.HandlerFiles, Program: program,
		Log: j.log, Metrics: j.registry, Abandoned: j.abandoned, Lines: j.memory.Lines(),
	})
	if err != nil {
		return nil, err
	}
	if calls, ok := made.(interface{ Stuck() <-chan struct{} }); ok {
		j.watch(ctx, calls)
	}
	return made, nil
}

// watch stops the worker when calls of its handler hold all places for good, until ctx ends.
func (j *job) watch(ctx context.Context, calls interface{ Stuck() <-chan struct{} }) {
	go func() {
		select {
		case <-calls.Stuck():
			j.fail(errStuck)
		case <-ctx.Done():
		}
	}()
}

// fail stops the worker with an error.
func (j *job) fail(err error) {
	select {
	case j.failed <- err:
	default: // something else was first
	}
	j.stop()
}

// serve runs the worker until ctx ends or something fails, and all is settled.
func (j *job) serve(ctx context.Context, w *worker.Worker) error {
	server := httpserver.New(w.Endpoints(j.registry))
	defer func() { _ = server.Close() }()
	j.begin(func() error {
		listener, err := httpserver.Listen(ctx, j.options.Listen)
		if err == nil {
			err = server.Serve(listener)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("--listen: %w", err) // which names the address
		}
		return nil
	})
	go w.FollowConfig(ctx, j.options.Config)
	go w.FollowLogin(ctx, j.login)
	j.log.Info("worker started", "version", version.Version(), "config", w.ConfigHash())
	w.Run(ctx)
	j.log.Info("worker stopped")
	select {
	case err := <-j.failed:
		return err
	default:
		return nil
	}
}

// begin runs what the worker cannot do without.
func (j *job) begin(run func() error) {
	go func() {
		if err := run(); err != nil {
			j.fail(err)
		}
	}()
}
