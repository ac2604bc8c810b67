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
	"redrive.dev/redrive/internal/version"
	"redrive.dev/redrive/internal/worker"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

type options struct {
	config      string
	credentials string
	listen      string
	level       slog.Level
}

func parse() options {
	var o options
	flag.StringVar(&o.config, "config", "/etc/redrive/config/config.json", "file with the worker's configuration; it is read again when it changes")
	flag.StringVar(&o.credentials, "credentials", "/etc/redrive/broker", "folder with the keys of the broker's Secret, one file each; read again when it changes")
	flag.StringVar(&o.listen, "listen", ":9095", "address of /healthz, /readyz and /metrics")
	flag.TextVar(&o.level, "log-level", slog.LevelInfo, "DEBUG, INFO, WARN or ERROR")
	flag.Parse()
	return o
}

func run() error {
	o := parse()
	log := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: o.level}))
	config, err := worker.ReadConfig(o.config)
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	login := worker.NewLogin(o.credentials, config.VHost)
	w, err := worker.New(worker.Options{
		Config: config,
		Source: login.Target,
		Handlers: func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
			return handler.New(spec, concurrency, version.Version())
		},
		Now:     time.Now,
		Rand:    worker.Random{},
		Metrics: worker.NewMetrics(registry),
		Log:     log.With("transport", config.Transport, "worker", config.Worker),
	})
	if err != nil {
		return fmt.Errorf("%s: %w", o.config, err)
	}
	return serve(w, login, &o, registry, log)
}

// serve runs the worker until it is told to stop and all is settled.
func serve(w *worker.Worker, login *worker.Login, o *options, registry *prometheus.Registry, log *slog.Logger) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
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
