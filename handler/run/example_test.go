package run_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/handler"
	"redrive.dev/redrive/handler/run"
)

type order struct {
	ID string `json:"id"`
}

func ship(ctx context.Context, m *handler.Message) error {
	var o order
	if err := json.Unmarshal(m.Body, &o); err != nil {
		return handler.Fail(fmt.Errorf("the body is no order: %w", err))
	}
	slog.InfoContext(ctx, "shipped", "order", o.ID, "attempt", m.Attempt)
	return nil
}

// The whole program of a team that has nothing else to set up.
func Example() {
	main := func() {
		run.Main(handler.Func(ship))
	}
	_ = main // it never returns
	// Output:
}

// A program with flags and metrics of its own, which ends what it has begun after the worker has stopped.
func ExampleRun() {
	main := func() error {
		partner := flag.String("partner", "https://partner.example", "where the orders go")
		options := run.Flags(flag.CommandLine)
		flag.Parse()

		registry := prometheus.NewRegistry()
		shipped := prometheus.NewCounter(prometheus.CounterOpts{Name: "orders_shipped_total", Help: "Orders shipped."})
		registry.MustRegister(shipped)
		options.Metrics = registry

		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
		defer stop()
		slog.Info("orders go to a partner", "partner", *partner)
		defer slog.Info("the last order is shipped")
		return run.Run(ctx, handler.Func(func(ctx context.Context, m *handler.Message) error {
			if err := ship(ctx, m); err != nil {
				return err
			}
			shipped.Inc()
			return nil
		}), *options)
	}
	_ = main // its caller gives it an exit code
	// Output:
}
