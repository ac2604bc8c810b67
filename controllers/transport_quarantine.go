package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/objectcache"
	"redrive.dev/redrive/internal/objectwriter"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/quarantinepod"
	"redrive.dev/redrive/internal/rollout"
	"redrive.dev/redrive/internal/ssa"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

// uncountedLimit is how long the broker may count no queue at all. It counts within 10 s after a start.
const uncountedLimit = 45 * time.Second

// silenceLimit is how long the management API may give no answer: for longer than a restart of the broker takes.
const silenceLimit = 5 * time.Minute

// applyQuarantine runs the quarantine pods by what the look at the broker has counted.
func (r *TransportReconciler) applyQuarantine(ctx context.Context, run *transportRun) error {
	counts := quarantinepod.CountsOf(run.report.Queues)
	return r.runQuarantine(ctx, run, r.orUncounted(run, counts, len(run.report.Queues) > 0))
}

// orUncounted is nil where the broker has counted none of the queues that are there for so long that it does not do so at all: its statistics are switched
// off. What pods had in hand when they ended would wait for ever.
func (r *TransportReconciler) orUncounted(run *transportRun, counts quarantinepod.Counts, some bool) quarantinepod.Counts {
	r.counts.Lacks(client.ObjectKeyFromObject(run.transport), status.LackOfAnswers, true, time.Now())
	counted := len(counts) > 0 || !some
	if r.counts.Lacks(client.ObjectKeyFromObject(run.transport), status.LackOfCounts, counted, time.Now()) < uncountedLimit {
		return counts
	}
	run.warnings = append(run.warnings, "RabbitMQ counts the messages of no queue, as where its statistics are switched off: the pods for quarantined "+
		"messages run whether there are any or not, each worker group that was scaled to zero has a pod, and no queue that may hold messages is deleted")
	return nil
}

// bestEffort is a step that keeps nothing waiting where it fails: the workers run on with the last good configuration, follow the migrations
// of queues, and leave quarantined messages; those that KEDA put to sleep, and that the spec does not have it wake, are woken, and those whose Deployment
// somebody deletes get it again. The error stays that of the step.
func (r *TransportReconciler) bestEffort(next step[*transportRun]) step[*transportRun] {
	return func(ctx context.Context, run *transportRun) error {
		err := next(ctx, run)
		if err == nil {
			return nil
		}
		why := outcome.Interpret(err)
		r.logLeft(ctx, "restoring the Deployments of workers", r.restoreWorkers(ctx, run, why.Reason))
		r.logLeft(ctx, "waking groups that no autoscaler wakes", r.wakeUnscaled(ctx, run))
		if why.Kind != outcome.KindStalled && run.observed == nil {
			r.logLeft(ctx, "keeping the quarantine pods", r.keepUnanswered(ctx, run, why.Reason))
			return err // What is amiss with the broker or the API server is so for the rest too.
		}
		r.logLeft(ctx, "keeping the last good configuration of the workers", r.keepReading(ctx, run))
		r.logLeft(ctx, "keeping the quarantine pods", r.keepQuarantine(ctx, run))
		return err
	}
}

// logLeft tells of what a step could not do beside the error of another.
func (r *TransportReconciler) logLeft(ctx context.Context, doing string, err error) {
	if err != nil {
		ctrl.LoggerFrom(ctx).Info(doing, "cause", err.Error())
	}
}

// keepQuarantine runs the quarantine pods, and touches nothing else.
func (r *TransportReconciler) keepQuarantine(ctx context.Context, run *transportRun) error {
	groups := quarantinepod.Groups(run.transport, &run.live)
	if len(groups) == 0 {
		return nil
	}
	observed, err := r.observeForFallback(ctx, run)
	if err != nil || observed == nil {
		return err
	}
	counts := quarantinepod.CountsOwned(groups, observed, r.owner(run.transport))
	return r.runQuarantine(ctx, run, r.orUncounted(run, counts, slices.ContainsFunc(groups, quarantinepod.Group.HasQueues)))
}

// keepUnanswered runs the quarantine pods, and wakes the workers, where the management API, or what it says to the operator's login, has told nothing for
// long. Pods need AMQP only: what others had in hand when they ended would wait for as long as that lasts.
func (r *TransportReconciler) keepUnanswered(ctx context.Context, run *transportRun, reason string) error {
	if reason != v1alpha1.ReasonBrokerUnreachable && reason != v1alpha1.ReasonBrokerRefused {
		return nil
	}
	silent := r.counts.Lacks(client.ObjectKeyFromObject(run.transport), status.LackOfAnswers, false, time.Now())
	if silent < r.Options.SilenceLimit {
		return nil
	}
	run.warnings = append(run.warnings, "RabbitMQ's management API gives the operator no answer: the pods for quarantined messages run whether there are any "+
		"or not, each worker group that was scaled to zero has a pod, and all use AMQP only")
	return r.runQuarantine(ctx, run, nil)
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

// runQuarantine runs a pod for each worker group whose quarantine queues hold messages, and takes it away when none of them
// does. What keeps such a pod from its work is a warning and no more: the workers go on without it. Where counts is nil, nothing is known of any queue, and
// KEDA gets no number that it could wake a group by.
func (r *TransportReconciler) runQuarantine(ctx context.Context, run *transportRun, counts quarantinepod.Counts) error {
	if counts == nil {
		if err := r.wake(ctx, run, r.scalers.Wake); err != nil {
			return err
		}
	}
	groups := quarantinepod.Groups(run.transport, &run.live)
	figures := r.counts.Quarantine(client.ObjectKeyFromObject(run.transport), quarantinepod.Held(groups, counts), time.Now())
	told := map[string]bool{}
	for _, group := range groups {
		trouble, err := r.runQuarantineOf(ctx, run, group, counts)
		if err != nil {
			return fmt.Errorf("quarantine of worker %q: %w", group.Name, err)
		}
		if group.Former { // It helps out: the group of the spec that consumes the same queue has told of it.
			group.Queues = slices.DeleteFunc(group.Queues, func(queue string) bool { return told[queue] })
		}
		run.warn(group.Warning(figures, trouble))
		for _, queue := range group.Queues {
			told[queue] = true
		}
	}
	return nil
}

// runQuarantineOf makes or deletes the quarantine Deployment of one worker group. trouble says what keeps its pod from its work;
// empty where nothing does, or where there is none.
func (r *TransportReconciler) runQuarantineOf(
	ctx context.Context, run *transportRun, group quarantinepod.Group, counts quarantinepod.Counts,
) (trouble string, err error) {
	name := workload.QuarantineName(run.transport, group.Name)
	live := run.live.Quarantine[name]
	if !group.Wanted(live, counts, r.Options.Clock.Now(), r.Options.QuarantineStay) {
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
	ctx context.Context, run *transportRun, group quarantinepod.Group, live *appsv1.Deployment,
) (*appsv1.Deployment, error) {
	if !group.Former {
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
	if !objectcache.IsPart(cached) {
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
	return quarantinepod.Trouble(live, cause, r.Options.Clock.Now()), err
}
