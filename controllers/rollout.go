package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/rollout"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/workload"
)

// maxPodsRead bounds how many pods of a worker are looked at for why it is not there yet.
const maxPodsRead = 20

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

// rolloutCause is empty where nothing is known to be wrong. The pods are read from the API server, since the cache has only
// their metadata, and only here, while a worker is not there.
func (r *TransportReconciler) rolloutCause(ctx context.Context, deployment *appsv1.Deployment) (string, error) {
	for _, condition := range deployment.Status.Conditions {
		if condition.Type == appsv1.DeploymentReplicaFailure && condition.Status == corev1.ConditionTrue {
			return ": its pods are refused: " + status.OneLine(condition.Message), nil
		}
	}
	cause, seen := "", 0
	err := r.reads.Pods(ctx, r.Live, deployment.Namespace, deployment.Spec.Selector.MatchLabels, func(pod *corev1.Pod) (more bool) {
		if pod.DeletionTimestamp.IsZero() {
			if trouble := podTrouble(pod); trouble != "" {
				cause = fmt.Sprintf(": pod %s: %s", pod.Name, trouble)
			}
		}
		seen++
		return cause == "" && seen < maxPodsRead
	})
	if err != nil {
		return "", fmt.Errorf("list the pods of %s: %w", deployment.Name, err)
	}
	return cause, nil
}

// podTrouble says why a pod does not start; empty where it may just take its time. Texts that change with each try are left
// out: the status is written when they change.
func podTrouble(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return "no node takes it: " + status.OneLine(condition.Message)
		}
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if trouble := containerTrouble(&status); trouble != "" {
			return fmt.Sprintf("container %s: %s", status.Name, trouble)
		}
	}
	return ""
}

func containerTrouble(container *corev1.ContainerStatus) string {
	waiting := container.State.Waiting
	if waiting == nil {
		return ""
	}
	switch waiting.Reason {
	case "", "ContainerCreating", "PodInitializing":
		return ""
	case "ErrImagePull", "ImagePullBackOff": // the two take turns
		return fmt.Sprintf("the image %q cannot be pulled", container.Image)
	case "InvalidImageName", "ErrImageNeverPull":
		return fmt.Sprintf("%s: the image %q", waiting.Reason, container.Image)
	case "CrashLoopBackOff":
		if last := container.LastTerminationState.Terminated; last != nil {
			return fmt.Sprintf("it ends again and again: %s, exit code %d", last.Reason, last.ExitCode)
		}
		return "it ends again and again"
	default:
		return strings.TrimSuffix(waiting.Reason+": "+status.OneLine(waiting.Message), ": ")
	}
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
		if live != nil && rollout.IsUpgrading(live) && rollout.IsOverdue(live) {
			run.warnings = append(run.warnings, fmt.Sprintf(
				"worker %q: its new pods do not become ready since the operator was upgraded; with %d such worker groups the upgrade continues one group at a time",
				worker, limit))
		}
	}
}
