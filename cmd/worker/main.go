// Command worker consumes the queues of one Transport, calls the team's handler with each message, and carries out the
// retry policy. It is what the worker Deployments run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/suspects"
	"redrive.dev/redrive/internal/version"
	"redrive.dev/redrive/internal/worker"
)

func main() {
	os.Exit(run(func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
		return handler.New(spec, concurrency, version.Version())
	}))
}

type options struct {
	config      string
	credentials string
	listen      string
	level       slog.Level
	suspects    bool
	journal     string
}

func parse() options {
	var o options
	flag.StringVar(&o.config, "config", "/etc/redrive/config/config.json", "file with the worker's configuration; it is read again when it changes")
	flag.StringVar(&o.credentials, "credentials", "/etc/redrive/broker", "folder with the keys of the broker's Secret, one file each; read again when it changes")
	flag.StringVar(&o.listen, "listen", ":9095", "address of /healthz, /readyz, /status and /metrics")
	flag.TextVar(&o.level, "log-level", slog.LevelInfo, "DEBUG, INFO, WARN or ERROR")
	flag.BoolVar(&o.suspects, "suspects", false, "handle the messages of the suspects' queues instead, one at a time, in a process that may be brought down")
	flag.StringVar(&o.journal, "journal", "/var/lib/redrive/journal",
		"folder that remembers over a crash which message was handled; of the suspects' worker")
	flag.Parse()
	return o
}

// run does what the command line says, and returns the exit code.
func run(handlers worker.HandlerFactory) int {
	o := parse()
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: o.level}))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if o.suspects && !suspects.IsChild() {
		return (&suspects.Supervisor{Command: suspects.Itself, Journal: o.journal, Log: log}).Run(ctx)
	}
	if o.suspects {
		ctx = suspects.Attach(ctx)
	}
	if err := work(ctx, &o, handlers, log); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		return 1
	}
	return 0
}

// work runs a worker until ctx ends and all is settled.
func work(ctx context.Context, o *options, handlers worker.HandlerFactory, log *slog.Logger) error {
	config, err := worker.ReadConfig(o.config)
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	login := worker.NewLogin(o.credentials, config.VHost)
	log = log.With("transport", config.Transport, "worker", config.Worker)
	settings := worker.Options{
		Config:   config,
		Source:   login.Target,
		Handlers: handlers,
		Now:      time.Now,
		Rand:     worker.Random{},
		Metrics:  worker.NewMetrics(registry),
		Log:      log,
		Name:     name(),
	}
	if o.suspects {
		if settings.Journal, err = suspects.Open(o.journal, time.Now, log); err != nil {
			return err //nolint:wrapcheck // it says of what
		}
	}
	w, err := worker.New(settings)
	if err != nil {
		return fmt.Errorf("%s: %w", o.config, err)
	}
	return serve(ctx, w, login, o, registry, log)
}

// name of this worker for people: its pod's, else its host's.
func name() string {
	if pod := os.Getenv("POD_NAME"); pod != "" {
		return pod
	}
	host, _ := os.Hostname() // without one it has no name
	return host
}

// serve runs the worker until it is told to stop and all is settled.
func serve(
	ctx context.Context, w *worker.Worker, login *worker.Login, o *options, registry *prometheus.Registry, log *slog.Logger,
) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	server := &http.Server{Addr: o.listen, Handler: w.Endpoints(registry), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 3)
	go func() {
		if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
			failed <- fmt.Errorf("listen on %s: %w", o.listen, err)
			stop()
		}
	}()
	go func() {
		if err := w.FollowConfig(ctx, o.config); err != nil {
			failed <- err
			stop()
		}
	}()
	go func() {
		if err := w.FollowLogin(ctx, login); err != nil {
			failed <- err
			stop()
		}
	}()
	log.Info("worker started", "version", version.Version(), "config", w.ConfigHash())
	w.Run(ctx)
	log.Info("worker stopped")
	_ = server.Close()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}
