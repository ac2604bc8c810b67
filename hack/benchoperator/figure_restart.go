package main

import (
	"context"
	"errors"
	"time"
)

// restart measures a new manager that finds all as it should be.
func (r *operatorRun) restart(ctx context.Context, _ *bareRun) ([]result, error) {
	if err := r.calm(ctx); err != nil {
		return nil, err
	}
	if err := r.manager.stop(); err != nil {
		return nil, err
	}
	var err error
	if r.manager, err = r.cluster.startManager(r.settings, ordinary); err != nil {
		return nil, err
	}
	before, err := r.mark()
	if err != nil {
		return nil, err
	}
	tellf("restarted the manager")
	go r.manager.profile(ctx, r.settings, "profile?seconds=15", "restart-cpu")
	if err := r.allReady(ctx); err != nil {
		return nil, err
	}
	if err := pause(ctx, ordinary); err != nil { // with whatever it does late
		return nil, err
	}
	after, err := r.mark()
	if err != nil {
		return nil, err
	}
	r.manager.profile(ctx, r.settings, "heap", "restart-heap")
	api := after.api.since(before.api)
	tellf("restarted: the broker %v, the API server %v, %.1f s of CPU, %.0f MB", after.broker.since(before.broker), api,
		after.usage.cpu.Seconds(), after.usage.peak)
	return []result{
		limited("restart: writes to the broker until all are Ready, and a minute on", 0, float64(after.broker.since(before.broker).writes()), 0),
		limited("… writes to the API server", 0, float64(api.total()), 0),
		shown("… CPU of the manager (s)", 0, after.usage.cpu.Seconds()),
		limited("… peak memory of the manager (MB)", memory, after.usage.peak, 1),
	}, nil
}

// calm waits until the manager writes nothing for longer than it waits for anything.
func (r *operatorRun) calm(ctx context.Context) error {
	const quiet = 25 * time.Second
	last, since := -1, time.Now()
	return until(ctx, longest, "the manager to write nothing any more", func() (bool, error) {
		written, err := r.cluster.written()
		if now := written.total() + r.broker.proxy.seen().writes(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > quiet, errors.Join(err, r.manager.died())
	})
}

func pause(ctx context.Context, lasts time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // the user's interrupt
	case <-time.After(lasts):
		return nil
	}
}

// again stops the manager and starts one with another poll, and returns when it has looked at all.
func (r *operatorRun) again(ctx context.Context, poll time.Duration) error {
	if err := r.manager.stop(); err != nil {
		return err
	}
	var err error
	if r.manager, err = r.cluster.startManager(r.settings, poll); err != nil {
		return err
	}
	return r.allReady(ctx)
}

// allReady waits until the manager says of all that they are ready. It asks as often as a Prometheus in a hurry: the answer has tens of
// thousands of lines.
func (r *operatorRun) allReady(ctx context.Context) error {
	const scrape = 5 * time.Second
	return until(ctx, longest, "all Transports to be ready", func() (bool, error) {
		if err := pause(ctx, scrape); err != nil {
			return false, err
		}
		sums, answers, err := r.manager.metric(ctx, readyMetric)
		return answers && int(sums[0]) == r.transports, errors.Join(err, r.manager.died())
	})
}
