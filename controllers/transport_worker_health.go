package controllers

import (
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/transportmemory"
	"redrive.dev/redrive/internal/workerstatus"
	"redrive.dev/redrive/internal/workload"
)

// eventRecovered tells that no pod says any more what an event of another reason told of.
const eventRecovered = "Recovered"

// askWorkers makes warnings of what the worker pods say of themselves, and events where that begins or ends. It comes before
// the broker is looked at, since the workers do not need the management API.
func (r *TransportReconciler) askWorkers(ctx context.Context, run *transportRun) error {
	name, now := client.ObjectKeyFromObject(run.transport), time.Now()
	heard, err := r.hear(ctx, run, now)
	if err != nil {
		run.partly(err)
	}
	last := r.scraper.Last(name)
	if len(heard)+len(last.Told) == 0 {
		return nil
	}
	if last.Told == nil {
		last.Told = workerstatus.ToldBefore(run.transport, heard, now)
	}
	told := status.Damp(last.Told, heard, now)
	for _, one := range workerstatus.InOrder(told) {
		run.warn([]topology.Finding{{
			Object: topology.Ref{Kind: topology.KindWorker, Name: one.Worker}, Reason: one.Reason, Message: one.Text + workerstatus.Saying(told[one].N),
		}})
	}
	if last.HasNew(transportmemory.FastRequeueFor, now) { // one that stays is no reason to ask all the time
		run.due = outcome.Sooner(run.due, brokerpool.Spread(transportmemory.FastRequeueInterval))
	}
	run.status.AfterPatch(func() {
		tellTroubles(run.status, last.Told, told)
		r.scraper.Told(name, told)
	})
	return nil
}

// hear gives the number of pods that tell of each trouble. Only those are asked that may have one to tell of. Where nobody can
// answer, or nobody can be asked, what was heard last stands: silence is no recovery.
func (r *TransportReconciler) hear(ctx context.Context, run *transportRun, now time.Time) (map[workerstatus.Problem]int64, error) {
	return r.hearGroups(ctx, r.scraper, run.transport, r.troubled(run), now)
}

// hearGroups asks the pods of some worker groups, given with how many pods each is to have.
func (r *TransportReconciler) hearGroups(
	ctx context.Context, scraper *workerstatus.Scraper, t *v1alpha1.Transport, groups map[string]int32, now time.Time,
) (map[workerstatus.Problem]int64, error) {
	return scraper.Hear(ctx, client.ObjectKeyFromObject(t), groups, now, func(visit func(*corev1.Pod) (more bool)) error {
		return r.reads.Pods(ctx, r.Live, t.Namespace, workload.TransportLabels(t), visit)
	})
}

// troubled are the worker groups that may hold messages back, and how many pods each is to have.
func (r *TransportReconciler) troubled(run *transportRun) map[string]int32 {
	name := client.ObjectKeyFromObject(run.transport)
	last := r.scraper.Last(name)
	inHand, groups := r.queueMetrics.Unacked(name), map[string]int32{}
	for i := range run.compiled.Workers {
		config := &run.compiled.Workers[i]
		workers := run.live.Deployments[workload.Name(run.transport, config.Worker)]
		holds := last.Tells(config.Worker) || slices.ContainsFunc(config.Named(), func(queue string) bool { return inHand[queue] || inHand[""] })
		ready := workers == nil || workers.Status.ReadyReplicas >= workload.Replicas(workers)
		if !config.MayHoldBack() && !holds && ready {
			continue // one that cannot consume a queue is not ready, and one that cannot publish has messages in hand
		}
		groups[config.Worker] = 0
		if workers != nil {
			groups[config.Worker] = workload.Replicas(workers)
		}
	}
	return groups
}

// tellTroubles sends an event for each reason with the troubles that began, and one with all that ended.
func tellTroubles(s *outcome.Patcher, before, now map[workerstatus.Problem]status.Damped) {
	began, ended := workerstatus.Changes(before, now)
	for _, reason := range slices.Sorted(maps.Keys(began)) {
		s.Event(corev1.EventTypeWarning, reason, status.Joined(began[reason]))
	}
	if len(ended) > 0 {
		s.Event(corev1.EventTypeNormal, eventRecovered, "no pod says any more: "+status.Joined(ended))
	}
}
