package workerstatus

import (
	"cmp"
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
	// Now is the time of the API server, by which the pods are deleted.
	Now time.Time

	// Err says why the pods could not be listed; nil where they could, or were not.
	Err error
	// Awaited is a pod that keeps a queue from its next step, and why; empty where none does.
	Awaited string

	asked bool
	// dissent names a pod that says that it has another configuration than its group's, leaving one that has the time to end, and silent one
	// that does not answer, or cannot be asked yet; empty where there is none.
	dissent, leaving, silent string
}

// Follow is true where all pods consume the queue so.
func (f *Followers) Follow(ctx context.Context, queue string, reads compile.Reading) bool {
	for _, config := range f.Live.Configs() {
		if !config.Follows(queue, reads) {
			return false
		}
	}
	if !f.asked {
		f.asked, f.Err = true, f.ask(ctx)
	}
	switch {
	case f.Err != nil:
		return false
	case f.dissent != "":
		f.Awaited = f.dissent
	// A worker that stops begins nothing more, so that what it was not told of does no harm. But until it ends it might still take up a queue
	// that is made anew by its name, and have what is new before what is in the stand-in.
	case f.leaving != "" && reads == compile.ReadsStandin:
		f.Awaited = f.leaving
	case f.silent != "" && !f.longAgo(queue):
		f.Awaited = f.silent
	default:
		return true
	}
	return false
}

// ask asks the pods of the workers for the configuration that is in force there.
func (f *Followers) ask(ctx context.Context) error {
	pods, err := f.peers()
	if err != nil || f.dissent != "" {
		return err
	}
	addresses := make([]string, len(pods))
	for i := range pods {
		addresses[i] = pods[i].address
	}
	for i, hash := range f.Scraper.Hashes(ctx, addresses) {
		switch hash {
		case "":
			f.silent = cmp.Or(f.silent, "pod "+pods[i].name+" does not answer")
		case pods[i].wanted:
		default:
			f.dissent = cmp.Or(f.dissent, "pod "+pods[i].name+" has another configuration in force")
		}
	}
	return nil
}

// peer is what is kept of a pod to ask: its name and address, and the configuration that it is to have in force.
type peer struct{ name, address, wanted string }

// peers are the pods to ask. A Transport may have thousands of pods: no more is kept of them, and none is read any more where one cannot follow.
func (f *Followers) peers() (pods []peer, err error) {
	err = f.Pods(func(pod *corev1.Pod) (more bool) {
		over := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if over || pod.Labels[workload.WorkerLabel] == "" {
			return true
		}
		configMap := f.Live.ConfigMaps[workload.Name(f.Transport, pod.Labels[workload.WorkerLabel])]
		switch {
		case !pod.DeletionTimestamp.IsZero():
			f.noteLeaving(pod)
		case configMap == nil:
			f.dissent = "pod " + pod.Name + " is of a worker group without a configuration"
		case !CanAnswer(pod):
			f.silent = cmp.Or(f.silent, "pod "+pod.Name+" cannot be asked")
		default:
			pods = append(pods, peer{pod.Name, AddressOf(pod), configMap.Annotations[workload.ConfigHashAnnotation]})
		}
		return f.dissent == ""
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods: %w", err)
	}
	return pods, nil
}

// noteLeaving notes a pod that is being deleted. One that was to end long ago is on a node that is lost, where nobody ends it and nobody is asked: it counts
// as any other that does not answer.
func (f *Followers) noteLeaving(pod *corev1.Pod) {
	until := pod.DeletionTimestamp.UTC()
	text := fmt.Sprintf("pod %s on node %s is being deleted and has until %s to end", pod.Name, pod.Spec.NodeName, until.Format(time.RFC3339))
	if !f.Now.Before(until) {
		text += ": if its node is lost, delete it by force"
	}
	if f.Now.Sub(until) >= f.Grace {
		f.silent = cmp.Or(f.silent, text)
		return
	}
	f.leaving = cmp.Or(f.leaving, text)
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
