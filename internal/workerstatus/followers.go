package workerstatus

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/workload"
)

// Followers tells whether all worker pods of a Transport consume a queue that is migrated as they are to. The pods are asked once, and only where a
// migration waits for them.
type Followers struct {
	Scraper   *Scraper
	Transport *v1alpha1.Transport
	// Live are the workers' objects as the cluster has them.
	Live *workload.Live
	// Pods shows the pods of all workers to visit, until that wants no more.
	Pods func(visit func(*corev1.Pod) (more bool)) error
	// Grace is the time in which all workers take over a configuration.
	Grace time.Duration

	// Err says why the pods could not be listed; nil where they could, or were not.
	Err error

	asked bool
	// dissent is true where a pod says that it has another configuration than its group's, or cannot be asked yet; silent where
	// one does not answer.
	dissent, silent bool
}

// Follow is true where all pods consume the queue so.
func (f *Followers) Follow(ctx context.Context, queue string, reads compile.Reading) bool {
	for _, config := range f.Live.Configs() {
		if !config.Follows(queue, reads) {
			return false
		}
	}
	if !f.asked {
		f.asked = true
		if f.Err = f.ask(ctx); f.Err != nil {
			f.dissent = true
		}
	}
	return !f.dissent && (!f.silent || f.longAgo(queue))
}

// ask asks the pods of the workers for the configuration that is in force there. One that is about to end counts until it is gone.
func (f *Followers) ask(ctx context.Context) error {
	addresses, wanted, err := f.peers()
	if err != nil || f.dissent {
		return err
	}
	for i, hash := range f.Scraper.Hashes(ctx, addresses) {
		switch hash {
		case "":
			f.silent = true
		case wanted[i]:
		default:
			f.dissent = true
		}
	}
	return nil
}

// peers are the addresses of the pods to ask, and the configuration that each is to have in force. A Transport may have thousands of pods: no more is kept
// of them, and none is read any more where one cannot follow.
func (f *Followers) peers() (addresses, wanted []string, err error) {
	err = f.Pods(func(pod *corev1.Pod) (more bool) {
		over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if over || pod.Labels[workload.WorkerLabel] == "" {
			return true
		}
		configMap := f.Live.ConfigMaps[workload.Name(f.Transport, pod.Labels[workload.WorkerLabel])]
		switch {
		case configMap == nil, !pod.DeletionTimestamp.IsZero():
			f.dissent = true
		case !CanAnswer(pod):
			f.silent = true
		default:
			addresses = append(addresses, AddressOf(pod))
			wanted = append(wanted, configMap.Annotations[workload.ConfigHashAnnotation])
		}
		return !f.dissent
	})
	if err != nil {
		return nil, nil, fmt.Errorf("list the pods: %w", err)
	}
	return addresses, wanted, nil
}

// longAgo is true where the workers that cannot be asked have had the time in which all take over a configuration, and none is of
// an older build.
func (f *Followers) longAgo(queue string) bool {
	for _, known := range f.Transport.Status.Migrations {
		if known.Queue == queue && known.Since != nil {
			return time.Since(known.Since.Time) >= f.Grace && len(f.Live.Rolling()) == 0
		}
	}
	return false
}
