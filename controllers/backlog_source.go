package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/autoscaling"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workerstatus"
	"redrive.dev/redrive/internal/workload"
)

// backlogSource is what the autoscaling of workers asks a reconciler for. It implements autoscaling.Source.
type backlogSource struct{ r *TransportReconciler }

// Configurations implements autoscaling.Source. What the ConfigMaps take is counted until the last one was visited.
func (s backlogSource) Configurations(
	ctx context.Context, t *v1alpha1.Transport, workers []string, visit func(worker string, queues []compile.Queue),
) error {
	held := s.r.configMaps.Memory().Reserve(t.Namespace)
	defer held.Release()
	for _, worker := range workers {
		configMap, err := s.r.configMaps.Get(ctx, t, worker, held)
		if err != nil {
			return fmt.Errorf("worker %q: %w", worker, err)
		}
		if configMap == nil {
			continue
		}
		if config, ok := workload.Published(configMap); ok {
			visit(worker, config.Queues)
		}
	}
	return nil
}

// Observe implements autoscaling.Source.
func (s backlogSource) Observe(ctx context.Context, t *v1alpha1.Transport, age, timeout time.Duration) (topology.Observed, error) {
	home := t.Status.Broker
	if home == nil {
		return topology.Observed{}, errors.New("nothing of the Transport is on the broker yet")
	}
	found := s.r.findBroker(ctx, t)
	if found.err != nil {
		return topology.Observed{}, found.err
	}
	defer found.held.Release()
	place, err := found.port.JoinSamples(t.Namespace)
	if err != nil {
		return topology.Observed{}, autoscaling.ErrNoSample
	}
	defer place.Leave()
	if came, _ := place.Wait(ctx, timeout); !came {
		return topology.Observed{}, autoscaling.ErrNoSample
	}
	end, err := s.r.asking.Enter(t.Namespace, false)
	if err != nil {
		return topology.Observed{}, autoscaling.ErrNoSample
	}
	defer end()
	processor, err := s.r.processors.Acquire(ctx, t.Namespace)
	if err != nil {
		return topology.Observed{}, autoscaling.ErrNoSample
	}
	defer processor.Release()
	port := found.port.View(client.ObjectKeyFromObject(t).String(), age)
	defer port.Release()
	observed, err := port.Observe(broker.WithWaiter(ctx, processor))
	if err == nil && (observed.Cluster != home.Cluster || observed.VHost != home.VHost) {
		err = errors.New("this is another broker than the one that the Transport is on")
	}
	return observed, err
}

// Hear implements autoscaling.Source.
func (s backlogSource) Hear(
	ctx context.Context, scraper *workerstatus.Scraper, t *v1alpha1.Transport, groups map[string]int32, now time.Time,
) (map[workerstatus.Problem]int64, error) {
	return s.r.hearGroups(ctx, scraper, t, groups, now)
}

// Owner implements autoscaling.Source.
func (s backlogSource) Owner(t *v1alpha1.Transport) string { return s.r.owner(t) }
