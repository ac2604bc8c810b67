package handler

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// runawayMetrics count the calls of a program that run on after their time is over. A handler that replaces another goes on
// with the same ones.
type runawayMetrics struct {
	now   prometheus.Gauge
	total prometheus.Counter
}

func newRunawayMetrics(registry prometheus.Registerer) (runawayMetrics, error) {
	m := runawayMetrics{
		now: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "redrive", Name: "handler_abandoned_calls",
			Help: "Calls of a handler in this process that still run although their time is over.",
		}),
		total: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: "redrive", Name: "handler_abandoned_calls_total",
			Help: "Calls of a handler in this process that did not return when their time was over.",
		}),
	}
	if registry == nil {
		return m, nil
	}
	var err, errTotal error
	m.now, err = register(registry, m.now)
	m.total, errTotal = register(registry, m.total)
	if err := errors.Join(err, errTotal); err != nil {
		return m, fmt.Errorf("metrics of the handler: %w", err)
	}
	return m, nil
}

// register gives the collector that is registered, which may be the one of a handler before.
func register[C prometheus.Collector](registry prometheus.Registerer, collector C) (C, error) {
	err := registry.Register(collector)
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if before, ok := there.ExistingCollector.(C); ok {
			return before, nil
		}
	}
	return collector, err //nolint:wrapcheck // the caller says of what
}

func (m runawayMetrics) count(change int) {
	m.now.Add(float64(change))
	if change > 0 {
		m.total.Add(float64(change))
	}
}
