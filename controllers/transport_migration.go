package controllers

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/migration"
	"redrive.dev/redrive/internal/workerstatus"
	"redrive.dev/redrive/internal/workload"
)

// counted is a Transport with those times in its status from which waits count.
func (r *TransportReconciler) counted(t *v1alpha1.Transport) *v1alpha1.Transport {
	stamps, counted := r.memories.Stamp(client.ObjectKeyFromObject(t), t.Status.Retiring, t.Status.Migrations), *t
	now := time.Now()
	counted.Status.Retiring, counted.Status.Migrations = stamps.Retiring(t.Status.Retiring, now), stamps.Migrations(t.Status.Migrations, now)
	return &counted
}

// followers answer what apply asks about the workers.
func (r *TransportReconciler) followers(ctx context.Context, run *transportRun) *workerstatus.Followers {
	return &workerstatus.Followers{
		Scraper: r.scraper, Transport: r.counted(run.transport), Live: &run.live, Grace: r.Options.Waits.Grace, Now: r.Options.Clock.Now(),
		Pods: func(visit func(*corev1.Pod) (more bool)) error {
			return r.reads.Pods(ctx, r.Live, run.transport.Namespace, workload.TransportLabels(run.transport), visit)
		},
	}
}

// republish publishes the last good configurations with what is changed in how workers read what is migrated.
func (r *TransportReconciler) republish(ctx context.Context, run *transportRun, change func(compile.Config) (next compile.Config, changed bool)) error {
	for name, configMap := range run.live.ConfigMaps {
		last, ok := run.live.Config(name)
		if !ok {
			continue
		}
		next, changed := change(last)
		if !changed {
			continue
		}
		form, err := workload.ConfigMap(run.transport, next)
		if err != nil {
			return fmt.Errorf("worker %q: %w", next.Worker, err)
		}
		published := &corev1.ConfigMap{}
		if err := r.applyObject(ctx, run, form, asObject(configMap), published); err != nil {
			return err
		}
		if published.Name != "" {
			run.live.ConfigMaps[name] = published
		}
	}
	return nil
}

// keepReading lets workers that run on with the last good configuration follow the migrations all the same: these go on where something
// else is in the way, and where they do not, the queue that is read may be empty while the other one gets what is new.
func (r *TransportReconciler) keepReading(ctx context.Context, run *transportRun) error {
	if run.observed != nil {
		return r.republish(ctx, run, func(last compile.Config) (compile.Config, bool) {
			next, follows := last.Following(run.report.StandIns, run.report.Leaving, run.report.There())
			next, holds := next.Holding(run.holds(next))
			return next, follows || holds
		})
	}
	if len(run.transport.Status.Migrations) == 0 {
		return nil
	}
	observed, err := r.observeForFallback(ctx, run)
	if err != nil || observed == nil {
		return err
	}
	return r.readOn(ctx, run, migration.LeftOver(&r.counted(run.transport).Status, observed))
}

// readOn lets workers go on to the other queue where no further step of a migration is taken.
func (r *TransportReconciler) readOn(ctx context.Context, run *transportRun, states []v1alpha1.Retirement) error {
	return r.republish(ctx, run, func(last compile.Config) (compile.Config, bool) {
		return migration.ReadOn(last, states, r.Options.Waits.Unbound, time.Now())
	})
}
