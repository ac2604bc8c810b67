package controllers

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/rollout"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/workload"
)

// rolloutError says how far the workers are that are not there yet, and what keeps them.
func (r *TransportReconciler) rolloutError(ctx context.Context, rolling []*appsv1.Deployment) error {
	texts := make([]string, len(rolling))
	for i, deployment := range rolling {
		cause, err := r.rolloutCause(ctx, deployment)
		if err != nil {
			return err
		}
		texts[i] = fmt.Sprintf("%s (%d of %d available)%s",
			deployment.Labels[workload.WorkerLabel], deployment.Status.AvailableReplicas, workload.Replicas(deployment), cause)
	}
	return fmt.Errorf("workers are rolling out: %s", status.Joined(texts))
}

// rolloutCause says what keeps a Deployment's pods from starting; empty where nothing is known to be wrong. The pods are read from the API server, since
// the cache has only their metadata, and only here, while a worker is not there.
func (r *TransportReconciler) rolloutCause(ctx context.Context, deployment *appsv1.Deployment) (string, error) {
	return rollout.Cause(deployment, func(visit func(*corev1.Pod) (more bool)) error {
		return r.reads.Pods(ctx, r.Live, deployment.Namespace, deployment.Spec.Selector.MatchLabels, visit)
	})
}

// askedAnew is true where the user has changed the Transport since its workers were last brought to what it asks for. A status
// of an earlier build does not say so, and then its last look counts.
func askedAnew(t *v1alpha1.Transport) bool {
	carried := t.Status.WorkersGeneration
	if carried == 0 {
		carried = t.Status.ObservedGeneration
	}
	return carried != t.Generation
}

// warnOfUpgrade tells of workers that an upgrade has changed and that do not come up.
func (run *transportRun) warnOfUpgrade(limit int) {
	for i := range run.transport.Spec.Workers {
		worker := run.transport.Spec.Workers[i].Name
		live := run.live.Deployments[workload.Name(run.transport, worker)]
		if live != nil && rollout.IsUpgrading(live) && rollout.IsOverdue(live, time.Now()) {
			run.warnings = append(run.warnings, fmt.Sprintf(
				"worker %q: its new pods do not become ready since the operator was upgraded; with %d such worker groups the upgrade continues one group at a time",
				worker, limit))
		}
	}
}
