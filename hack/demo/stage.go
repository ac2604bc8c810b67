package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/topology"
)

// stage is where the Transport runs.
type stage interface {
	// address that the partner listens on, so that the workers reach it.
	address() string
	// run makes the Transport run, on the place's vhost.
	run(ctx context.Context, set *manifest.Set, unit *local.Unit) error
	// look counts the messages, and says what the Transport waits for.
	look(ctx context.Context) local.Snapshot
	// end returns when no worker has a message any more. What is in the queues stays there.
	end(ctx context.Context) error
}

// process runs the Transport in this process, as `redrive run` does.
type process struct {
	place  *place
	runner *local.Runner
}

func newProcess(p *place, log io.Writer) *process {
	return &process{place: p, runner: local.NewRunner(local.Options{
		Waits: topology.DefaultWaits(), Reapply: 15 * time.Second, Refresh: lookEvery,
		QuarantineStay: time.Minute, LogTo: log, LogLevel: slog.LevelWarn,
		Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})}
}

func (*process) address() string { return "127.0.0.1" }

func (p *process) run(_ context.Context, set *manifest.Set, unit *local.Unit) error {
	brokers, err := local.Brokers(set, p.place.getenv)
	if err != nil {
		return fmt.Errorf("choose the broker: %w", err)
	}
	return p.runner.Take([]local.Unit{*unit}, brokers)
}

func (p *process) look(context.Context) local.Snapshot { return p.runner.Snapshots()[0] }

func (p *process) end(ctx context.Context) error { return p.runner.Drain(ctx) }
