package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/objectwriter"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/workload"
)

// restoreWorkers makes the Deployments again that somebody has deleted while the workers run on with the last good configuration: their queues have no
// consumer. Nobody has kept what was in one. The spec is the same to it where its group is to have the pods that the configuration was made for, and then it
// is made by that, at the broker that the Transport has. Where it is not, a warning names the queues that no worker reads.
func (r *TransportReconciler) restoreWorkers(ctx context.Context, run *transportRun, reason string) error {
	for _, name := range slices.Sorted(maps.Keys(run.live.ConfigMaps)) {
		last, published := run.live.Config(name)
		if !published || run.live.Deployments[name] != nil {
			continue
		}
		obstacle, err := r.restore(ctx, run, &last, reason)
		if err != nil {
			return err
		}
		if obstacle != "" {
			run.warnOfMissing(&last, obstacle)
		}
	}
	run.transport.Status.Workers = run.live.Summary()
	return nil
}

// restore makes the Deployment of one worker group again. obstacle says why it cannot be; empty where it can.
func (r *TransportReconciler) restore(ctx context.Context, run *transportRun, last *compile.Config, reason string) (obstacle string, err error) {
	if err := outcome.CheckCurrent(ctx, r.Live, run.transport); err != nil {
		return "", err
	}
	workers := run.transport.Spec.Workers
	i := slices.IndexFunc(workers, func(worker v1alpha1.Worker) bool { return worker.Name == last.Worker })
	switch {
	case i < 0:
		return "the spec does not have this worker group any more", nil
	case compile.MadeFor(&workers[i].Handler, compile.TemplateDigest(&workers[i])) != last.MadeFor:
		return "the spec has another handler or template for it, which is not accepted yet", nil
	case run.awaitsUser():
		return "its RabbitMQ user does not exist yet", nil
	case run.endpoint.err != nil:
		return status.OneLine(run.endpoint.err.Error()), nil //nolint:nilerr // it is told as the outcome
	}
	// Which Secret the workers had is not known where the spec has changed since.
	if run.asked || reason == v1alpha1.ReasonBrokerChanged {
		observed, err := r.observeForFallback(ctx, run)
		if err != nil || observed == nil {
			return "it is not known whether the spec's Secret leads to the broker that the Transport has", nil //nolint:nilerr // it is told as the outcome
		}
	}
	run.source = run.endpoint.source
	err = r.restoreBySpec(ctx, run, &workers[i])
	if objectwriter.IsRefused(err) || apierrors.IsForbidden(err) {
		return status.OneLine(err.Error()), nil
	}
	return "", err
}

// restoreBySpec makes the Deployment that a worker group of the spec is to have.
func (r *TransportReconciler) restoreBySpec(ctx context.Context, run *transportRun, worker *v1alpha1.Worker) error {
	options, err := r.workerOptions(ctx, run, worker)
	if err != nil {
		return err
	}
	desired, err := workload.Deployment(run.transport, worker, options)
	if err != nil {
		return objectwriter.Refused(err)
	}
	result := &appsv1.Deployment{}
	if err := r.writer.Write(ctx, run.objectOwner(), desired, nil, result); err != nil {
		return err
	}
	if result.Name != "" {
		run.live.Deployments[result.Name] = result
	}
	return nil
}

// warnOfMissing tells of the queues that only a group reads whose Deployment is gone.
func (run *transportRun) warnOfMissing(last *compile.Config, obstacle string) {
	var others []compile.Config
	for name := range run.live.ConfigMaps {
		if config, published := run.live.Config(name); published && run.live.Deployments[name] != nil && run.live.MayHavePods(run.transport, name) {
			others = append(others, config)
		}
	}
	queues := make([]string, 0, len(last.Queues))
	for _, queue := range last.Queues {
		queues = append(queues, queue.Name)
	}
	if unread := compile.Unread(queues, others); len(unread) > 0 {
		run.warnings = append(run.warnings, fmt.Sprintf("worker %q: its Deployment is gone and is not made again, because %s: no worker reads %s. "+
			"Correct what keeps the spec from being carried out, or take back what has changed in it", last.Worker, obstacle, status.JoinedBy(", ", unread)))
	}
}
