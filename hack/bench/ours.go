package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/worker"
)

// counted ticks a meter with each message that its handler has handled.
type counted struct {
	handler.Handler

	meter *meter
}

// Handle implements handler.Handler.
func (c *counted) Handle(ctx context.Context, request handler.Request) *retry.Failure {
	failure := c.Handler.Handle(ctx, request)
	if failure != nil {
		c.meter.begin() // what fails is timed too
	} else {
		c.meter.tick()
	}
	return failure
}

// ours is the worker itself, with the handler of the play. program is that of a handler that is inProcess.
func ours(program public.Func) runner {
	return func(ctx context.Context, s *stage, m *meter) error {
		registry := prometheus.NewRegistry()
		w, err := worker.New(worker.Options{
			Config:   s.config,
			Source:   s.target,
			Handlers: handlers(program, m, registry), //nolint:contextcheck // a handler lives longer than any call
			Now:      time.Now,
			Rand:     worker.Random{},
			Metrics:  worker.NewMetrics(registry),
			Log:      slog.New(slog.DiscardHandler),
		})
		if err != nil {
			return fmt.Errorf("worker: %w", err)
		}
		defer worker.LetHeapGrow()() // as the program does
		running, stop := context.WithCancel(ctx)
		defer stop()
		var ended sync.WaitGroup
		ended.Go(func() { w.Run(running) })
		err = m.wait(ctx)
		stop()
		ended.Wait()
		return err
	}
}

// handlers makes the handler of a play, and has the meter count what it handles.
func handlers(program public.Func, m *meter, registry prometheus.Registerer) worker.HandlerFactory {
	return func(spec v1alpha1.Handler, concurrency int) (handler.Handler, error) {
		h, err := handler.New(spec, handler.Options{Concurrency: concurrency, Version: "bench", Program: program, Metrics: registry})
		return &counted{Handler: h, meter: m}, err
	}
}

// inProcess is the spec of a handler that is a Go function.
func inProcess() v1alpha1.Handler {
	return v1alpha1.Handler{InProcess: &v1alpha1.InProcessHandler{}}
}

// nothing is the work that takes no time.
func nothing(context.Context, *public.Message) error { return nil }
