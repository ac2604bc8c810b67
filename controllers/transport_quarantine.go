package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/objectwriter"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/rollout"
	"redrive.dev/redrive/internal/ssa"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

const (
	// quarantineStay is how old a quarantine pod becomes at least: what ended one worker may well end the next one soon.
	quarantineStay = 5 * time.Minute
	// quarantineStart is how long a quarantine pod may take to get ready before that is told.
	quarantineStart = time.Minute
	// uncountedLimit is how long the broker may count no queue at all. It counts within 10 s after a start.
	uncountedLimit = 45 * time.Second
	// mostQuarantined is how many quarantine queues of a Transport the condition tells of. A spec has 64, and a configuration that somebody else has
	// written any number.
	mostQuarantined = 128

	// kindWorker stands in findings for a worker group.
	kindWorker topology.Kind = "worker"
)

// messageCounts is the number of messages in queues. A queue that is not in it is not counted; nil stands for a broker that counts none at all.
type messageCounts map[string]int64

// mayHold is true for a queue that holds messages, or is not counted.
func (c messageCounts) mayHold(queue string) bool {
	messages, counted := c[queue]
	return queue != "" && (!counted || messages > 0)
}

func messageCountsOf(queues []apply.QueueCount) messageCounts {
	counts := messageCounts{}
	for _, queue := range queues {
		if queue.Messages != nil {
			counts[queue.Name] = *queue.Messages
		}
	}
	return counts
}

// messageCountsOfBlocked tells only of queues that hold messages.
func messageCountsOfBlocked(queues []apply.Blocked) messageCounts {
	counts := messageCounts{}
	for _, queue := range queues {
		counts[queue.Queue] = queue.Messages
	}
	return counts
}

// applyQuarantine runs the quarantine pods by what the look at the broker has counted.
func (r *TransportReconciler) applyQuarantine(ctx context.Context, run *transportRun) error {
	counts := messageCountsOf(run.report.Queues)
	return r.runQuarantine(ctx, run, r.orUncounted(run, counts, len(run.report.Queues) > 0))
}

// orUncounted is nil where the broker has counted none of the queues that are there for so long that it does not do so at all: its statistics are switched
// off. What pods had in hand when they ended would wait for ever.
func (r *TransportReconciler) orUncounted(run *transportRun, counts messageCounts, some bool) messageCounts {
	counted := len(counts) > 0 || !some
	if r.counts.UncountedFor(client.ObjectKeyFromObject(run.transport), counted, time.Now()) < uncountedLimit {
		return counts
	}
	run.warnings = append(run.warnings, "RabbitMQ counts the messages of no queue, as where its statistics are switched off: the pods for quarantined "+
		"messages run whether there are any or not, and no queue that may hold messages is deleted")
	return nil
}

// bestEffort is a step that keeps nothing waiting where it fails: the workers run on with the last good configuration, follow the migrations
// of queues, and leave quarantined messages. The error stays that of the step.
func (r *TransportReconciler) bestEffort(next step[*transportRun]) step[*transportRun] {
	return func(ctx context.Context, run *transportRun) error {
		err := next(ctx, run)
		if err == nil || outcome.Interpret(err).Kind != outcome.KindStalled && run.observed == nil {
			return err // What is amiss with the broker or the API server is so for the rest too.
		}
		if left := r.keepReading(ctx, run); left != nil {
			ctrl.LoggerFrom(ctx).Info("keeping the last good configuration of the workers", "cause", left.Error())
		}
		if left := r.keepQuarantine(ctx, run); left != nil {
			ctrl.LoggerFrom(ctx).Info("keeping the quarantine pods", "cause", left.Error())
		}
		return err
	}
}

// keepQuarantine runs the quarantine pods, and touches nothing else.
func (r *TransportReconciler) keepQuarantine(ctx context.Context, run *transportRun) error {
	groups := run.quarantined()
	if len(groups) == 0 {
		return nil
	}
	observed, err := r.observeForFallback(ctx, run)
	if err != nil || observed == nil {
		return err
	}
	counts := messageCountsOfOurs(groups, observed, r.owner(run.transport))
	return r.runQuarantine(ctx, run, r.orUncounted(run, counts, slices.ContainsFunc(groups, quarantinedGroup.hasQueues)))
}

// observeForFallback is what is on the broker where a step before was not taken; nil where that is not known to be the Transport's broker.
func (r *TransportReconciler) observeForFallback(ctx context.Context, run *transportRun) (*topology.Observed, error) {
	home := run.transport.Status.Broker
	if home == nil {
		return nil, nil //nolint:nilnil // There is none, and nothing is wrong.
	}
	if run.port == nil {
		if err := r.connect(ctx, run); err != nil {
			return nil, err
		}
	}
	observed := run.observed
	if observed == nil {
		seen, err := run.port.Observe(ctx)
		if err != nil {
			return nil, err
		}
		observed = &seen
	}
	if observed.Cluster != home.Cluster || observed.VHost != home.VHost {
		return nil, nil //nolint:nilnil // What is there is of others.
	}
	return observed, nil
}

// messageCountsOfOurs counts the quarantine queues of worker groups without those that somebody else has made anew.
func messageCountsOfOurs(groups []quarantinedGroup, observed *topology.Observed, owner string) messageCounts {
	counts := messageCounts{}
	for _, group := range groups {
		for _, name := range group.queues {
			if queue := observed.Queues[name]; queue.Messages != nil && queue.Arguments.Owner() == owner {
				counts[name] = *queue.Messages
			}
		}
	}
	return counts
}

// runQuarantine runs a pod for each worker group whose quarantine queues hold messages, and takes it away when none of them
// does. What keeps such a pod from its work is a warning and no more: the workers go on without it.
func (r *TransportReconciler) runQuarantine(ctx context.Context, run *transportRun, counts messageCounts) error {
	groups, held := run.quarantined(), map[string]int64{}
	for _, group := range groups {
		for _, queue := range group.queues {
			if counts[queue] > 0 && len(held) < mostQuarantined {
				held[queue] = counts[queue]
			}
		}
	}
	figures := r.counts.Quarantine(client.ObjectKeyFromObject(run.transport), held, time.Now())
	told := map[string]bool{}
	for _, group := range groups {
		trouble, err := r.runQuarantineOf(ctx, run, group, counts)
		if err != nil {
			return fmt.Errorf("quarantine of worker %q: %w", group.Name, err)
		}
		if group.former { // It helps out: the group of the spec that consumes the same queue has told of it.
			group.queues = slices.DeleteFunc(group.queues, func(queue string) bool { return told[queue] })
		}
		run.warnOfQuarantine(group, figures, trouble)
		for _, queue := range group.queues {
			told[queue] = true
		}
	}
	return nil
}

// quarantinedGroup is a worker group with the quarantine queues that it consumes.
type quarantinedGroup struct {
	*v1alpha1.Worker

	queues []string
	// former is true for a group that has left the spec: of its Worker only the name is known, and that it has no replicas where that is so.
	former bool
}

// quarantined are the worker groups that run, with the quarantine queues of their published configuration: those of the spec, and then those that have left
// it. One without workers, or whose workers are being deleted, or without a configuration that can be read, is left as it is.
func (run *transportRun) quarantined() []quarantinedGroup {
	var groups []quarantinedGroup
	inSpec := map[string]bool{}
	add := func(group quarantinedGroup) {
		name := workload.Name(run.transport, group.Name)
		config, published := run.live.Config(name)
		workers := run.live.Deployments[name]
		inSpec[name] = true
		if !published || workers == nil || !workers.DeletionTimestamp.IsZero() {
			return
		}
		for _, queue := range config.Queues {
			if queue.Quarantine != "" {
				group.queues = append(group.queues, queue.Quarantine)
			}
		}
		groups = append(groups, group)
	}
	for i := range run.transport.Spec.Workers {
		add(quarantinedGroup{Worker: &run.transport.Spec.Workers[i]})
	}
	for _, name := range slices.Sorted(maps.Keys(run.live.ConfigMaps)) {
		if config, published := run.live.Config(name); published && !inSpec[name] {
			worker := &v1alpha1.Worker{Name: config.Worker}
			if !run.mayHavePods(name) {
				worker.Replicas = new(int32(0))
			}
			add(quarantinedGroup{Worker: worker, former: true})
		}
	}
	return groups
}

// runQuarantineOf makes or deletes the quarantine Deployment of one worker group. trouble says what keeps its pod from its work;
// empty where nothing does, or where there is none.
func (r *TransportReconciler) runQuarantineOf(
	ctx context.Context, run *transportRun, group quarantinedGroup, counts messageCounts,
) (trouble string, err error) {
	name := workload.QuarantineName(run.transport, group.Name)
	live := run.live.Quarantine[name]
	if !wantsQuarantine(group, live, counts, time.Now(), r.Options.QuarantineStay) {
		if live == nil {
			return "", nil
		}
		delete(run.live.Quarantine, name)
		return "", r.writer.Delete(ctx, run.objectOwner(), "Deployment", live)
	}
	desired, err := r.desiredQuarantine(ctx, run, group, live)
	switch {
	case objectwriter.IsRefused(err):
		return "its Deployment cannot be made: " + status.OneLine(err.Error()), nil
	case err != nil:
		return "", err
	case desired == nil:
		return r.quarantineTrouble(ctx, live)
	}
	result := &appsv1.Deployment{}
	err = r.writer.Write(ctx, run.objectOwner(), desired, asObject(live), result)
	switch {
	case errors.Is(err, rollout.ErrQueued): // It goes on as it is.
	case objectwriter.IsRefused(err), errors.Is(err, ssa.ErrFieldManagerConflict), apierrors.IsForbidden(err):
		return "its Deployment cannot be made: " + status.OneLine(err.Error()), nil
	case err != nil:
		return "", err
	}
	if result.Name != "" {
		live = result
		run.live.Quarantine[name] = live
	}
	return r.quarantineTrouble(ctx, live)
}

// desiredQuarantine is the quarantine Deployment that a worker group is to have; nil where the one that it has goes on as it is. A group that has left the
// spec gets one by its own Deployment, and never another one.
func (r *TransportReconciler) desiredQuarantine(
	ctx context.Context, run *transportRun, group quarantinedGroup, live *appsv1.Deployment,
) (*appsv1.Deployment, error) {
	if !group.former {
		options, err := r.workerOptions(ctx, run, group.Worker)
		if err != nil {
			return nil, err
		}
		desired, err := workload.QuarantineDeployment(run.transport, group.Worker, options)
		if err != nil {
			return nil, objectwriter.Refused(err)
		}
		return desired, nil
	}
	if live != nil {
		return nil, nil //nolint:nilnil // It has one.
	}
	workers, err := r.whole(ctx, run.live.Deployments[workload.Name(run.transport, group.Name)])
	if err != nil {
		return nil, err
	}
	desired := workload.FormerQuarantine(run.transport, group.Name, workers)
	if desired == nil {
		return nil, objectwriter.Refused(errors.New("the spec does not have this group any more, and its Deployment has no worker to go by"))
	}
	return desired, nil
}

// whole is a Deployment with its template, which the cache does not keep of a large one.
func (r *TransportReconciler) whole(ctx context.Context, cached *appsv1.Deployment) (*appsv1.Deployment, error) {
	if len(cached.Spec.Template.Spec.Containers) > 0 {
		return cached, nil
	}
	var list appsv1.DeploymentList
	err := r.Live.List(ctx, &list, client.InNamespace(cached.Namespace), client.MatchingFields{"metadata.name": cached.Name})
	if err != nil || len(list.Items) != 1 {
		return nil, fmt.Errorf("read Deployment %s: %w", cached.Name, cmp.Or(err, errors.New("it is gone")))
	}
	return &list.Items[0], nil
}

// quarantineTrouble says what keeps the pod of a quarantine Deployment from its work; empty where nothing does.
func (r *TransportReconciler) quarantineTrouble(ctx context.Context, live *appsv1.Deployment) (string, error) {
	if live.Status.AvailableReplicas > 0 {
		return "", nil
	}
	cause, err := r.rolloutCause(ctx, live)
	return quarantineTrouble(live, cause, time.Now()), err
}

// quarantineTrouble says what keeps the pod of a quarantine Deployment from its work that is not available. cause is what is known
// of it. Where nothing is, a pod that takes long runs and does not get ready: its readiness waits for its consumers.
func quarantineTrouble(live *appsv1.Deployment, cause string, now time.Time) string {
	if cause != "" {
		return fmt.Sprintf("its Deployment %s does not start%s", live.Name, cause)
	}
	since := live.CreationTimestamp.Time
	for _, condition := range live.Status.Conditions {
		if condition.Type == appsv1.DeploymentAvailable && condition.LastTransitionTime.After(since) {
			since = condition.LastTransitionTime.Time
		}
	}
	if now.Sub(since) < quarantineStart {
		return ""
	}
	return "its pod is not ready: look at its log for a right or a connection that is missing"
}

// wantsQuarantine says whether a worker group is to have a quarantine pod. live is nil where it has none. A count that is not
// known changes nothing, and a group that the spec stops has none.
func wantsQuarantine(group quarantinedGroup, live *appsv1.Deployment, counts messageCounts, now time.Time, stay time.Duration) bool {
	if group.stopped() {
		return false
	}
	if counts == nil {
		return group.hasQueues()
	}
	known := true
	for _, queue := range group.queues {
		messages, counted := counts[queue]
		if messages > 0 {
			return true
		}
		known = known && counted
	}
	return live != nil && (!known || now.Sub(live.CreationTimestamp.Time) < stay)
}

func (g quarantinedGroup) hasQueues() bool { return len(g.queues) > 0 }

// stopped is true for a group whose replicas the spec sets to 0, or its Deployment where it has left the spec. An autoscaler that has none because its
// queues are empty stops nothing.
func (g quarantinedGroup) stopped() bool { return ptr.Deref(g.Replicas, 1) == 0 }

// warnOfQuarantine tells of the messages in the quarantine queues of a group, by figures that do not change with each look.
func (run *transportRun) warnOfQuarantine(group quarantinedGroup, figures map[string]status.Damped, trouble string) {
	var holding []apply.Blocked
	for _, queue := range group.queues {
		if figure, holds := figures[queue]; holds {
			holding = append(holding, apply.Blocked{Queue: queue, Messages: figure.N})
		}
	}
	if len(holding) == 0 {
		return
	}
	text := "messages that were at pods which ended are handled one by one: "
	if group.stopped() {
		text = "messages that were at pods which ended wait until the group has replicas again: "
	}
	text += status.Listed(holding, blockedText)
	if trouble != "" {
		text += "; " + trouble
	}
	run.warn([]topology.Finding{{
		Object: topology.Ref{Kind: kindWorker, Name: group.Name}, Reason: v1alpha1.ReasonMessagesQuarantined, Message: text,
	}})
}
