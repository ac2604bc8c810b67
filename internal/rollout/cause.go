package rollout

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"redrive.dev/redrive/internal/status"
)

// MaxPodsRead bounds how many pods of a Deployment are looked at for why it is not available yet.
const MaxPodsRead = 20

// Cause says what keeps the pods of a Deployment from starting; empty where nothing is known to be wrong. list visits its pods until there are to be no
// more, and is called only where the Deployment does not say it.
func Cause(deployment *appsv1.Deployment, list func(visit func(*corev1.Pod) (more bool)) error) (string, error) {
	for _, condition := range deployment.Status.Conditions {
		if condition.Type == appsv1.DeploymentReplicaFailure && condition.Status == corev1.ConditionTrue {
			return ": its pods are refused: " + status.OneLine(condition.Message), nil
		}
	}
	cause, seen := "", 0
	err := list(func(pod *corev1.Pod) (more bool) {
		if pod.DeletionTimestamp.IsZero() {
			if problem := podProblem(pod); problem != "" {
				cause = fmt.Sprintf(": pod %s: %s", pod.Name, problem)
			}
		}
		seen++
		return cause == "" && seen < MaxPodsRead
	})
	if err != nil {
		return "", fmt.Errorf("list the pods of %s: %w", deployment.Name, err)
	}
	return cause, nil
}

// podProblem says why a pod does not start; empty where it may just take its time. Texts that change with each try are left
// out: the status is written when they change.
func podProblem(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return "no node takes it: " + status.OneLine(condition.Message)
		}
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if problem := containerProblem(&status); problem != "" {
			return fmt.Sprintf("container %s: %s", status.Name, problem)
		}
	}
	return ""
}

func containerProblem(container *corev1.ContainerStatus) string {
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
