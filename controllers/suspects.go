package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

const (
	// suspectsStay is how old a suspects' pod becomes at least: what ended one worker may well end the next one soon.
	suspectsStay = 5 * time.Minute
	// suspectsStart is how long a suspects' pod may take to get ready before that is told.
	suspectsStart = time.Minute
	// mostSuspected is how many suspects' queues of a Transport the condition tells of. A spec has 64, and a configuration that somebody else has
	// written any number.
	mostSuspected = 128

	// kindWorker stands in findings for a worker group.
	kindWorker topology.Kind = "worker"
)

// census is the number of messages in queues. A queue that is not in it is not counted.
type census map[string]int64

func censusOf(queues []apply.QueueCount) census {
	counts := census{}
	for _, queue := range queues {
		if queue.Messages != nil {
			counts[queue.Name] = *queue.Messages
		}
	}
	return counts
}

// censusOfBlocked tells only of queues that hold messages.
func censusOfBlocked(queues []apply.Blocked) census {
	counts := census{}
	for _, queue := range queues {
		counts[queue.Queue] = queue.Messages
	}
	return counts
}

// applySuspects runs the suspects' pods by what the look at the broker has counted.
func (r *TransportReconciler) applySuspects(ctx context.Context, run *transportRun) error {
	return r.runSuspects(ctx, run, censusOf(run.report.Queues))
}

// orKeep is a step that keeps nothing waiting where it fails: the workers run on with the last good configuration, follow the exchanges
// of queues, and leave suspects. The error stays that of the step.
func (r *TransportReconciler) orKeep(next step[*transportRun]) step[*transportRun] {
	return func(ctx context.Context, run *transportRun) error {
		err := next(ctx, run)
		if err == nil || interpret(err).course != stalled && run.observed == nil {
			return err // What is amiss with the broker or the API server is so for the rest too.
		}
		if left := r.keepReading(ctx, run); left != nil {
			ctrl.LoggerFrom(ctx).Info("the workers go on as they do", "cause", left.Error())
		}
		if left := r.keepSuspects(ctx, run); left != nil {
			ctrl.LoggerFrom(ctx).Info("the suspects' pods are left as they are", "cause", left.Error())
		}
		return err
	}
}

// keepSuspects runs the suspects' pods, and touches nothing else.
func (r *TransportReconciler) keepSuspects(ctx context.Context, run *transportRun) error {
	groups := run.suspected()
	if len(groups) == 0 {
		return nil
	}
	observed, err := r.lookAnyway(ctx, run)
	if err != nil || observed == nil {
		return err
	}
	return r.runSuspects(ctx, run, censusOfOurs(groups, observed, r.owner(run.transport)))
}

// lookAnyway is what is on the broker where a step before was not taken; nil where that is not known to be the Transport's broker.
func (r *TransportReconciler) lookAnyway(ctx context.Context, run *transportRun) (*topology.Observed, error) {
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

// censusOfOurs counts the suspects' queues of worker groups without those that somebody else has made anew.
func censusOfOurs(groups []suspectedGroup, observed *topology.Observed, owner string) census {
	counts := census{}
	for _, group := range groups {
		for _, name := range group.queues {
			if queue := observed.Queues[name]; queue.Messages != nil && queue.Arguments.Owner() == owner {
				counts[name] = *queue.Messages
			}
		}
	}
	return counts
}

// runSuspects runs a pod for each worker group whose suspects' queues hold messages, and takes it away when none of them
// does. What keeps such a pod from its work is a warning and no more: the workers go on without it.
func (r *TransportReconciler) runSuspects(ctx context.Context, run *transportRun, counts census) error {
	groups, held := run.suspected(), map[string]int64{}
	for _, group := range groups {
		for _, queue := range group.queues {
			if counts[queue] > 0 && len(held) < mostSuspected {
				held[queue] = counts[queue]
			}
		}
	}
	figures := r.counts.suspects(client.ObjectKeyFromObject(run.transport), held, time.Now())
	for _, group := range groups {
		trouble, err := r.runSuspectsOf(ctx, run, group, counts)
		if err != nil {
			return fmt.Errorf("suspects of worker %q: %w", group.Name, err)
		}
		run.warnOfSuspects(group, figures, trouble)
	}
	return nil
}

// suspectedGroup is a worker group with the suspects' queues that it consumes.
type suspectedGroup struct {
	*v1alpha1.Worker

	queues []string
}

// suspected are the worker groups that run, with the suspects' queues of their published configuration. One without workers,
// or whose workers are being deleted, or without a configuration that can be read, is left as it is.
func (run *transportRun) suspected() []suspectedGroup {
	var groups []suspectedGroup
	for i := range run.transport.Spec.Workers {
		group := suspectedGroup{Worker: &run.transport.Spec.Workers[i]}
		name := workload.Name(run.transport, group.Name)
		config, published := run.live.config(name)
		workers := run.live.deployments[name]
		if !published || workers == nil || !workers.DeletionTimestamp.IsZero() {
			continue
		}
		for _, queue := range config.Queues {
			if queue.Suspects != "" {
				group.queues = append(group.queues, queue.Suspects)
			}
		}
		groups = append(groups, group)
	}
	return groups
}

// runSuspectsOf makes or deletes the suspects' Deployment of one worker group. trouble says what keeps its pod from its work;
// empty where nothing does, or where there is none.
func (r *TransportReconciler) runSuspectsOf(ctx context.Context, run *transportRun, group suspectedGroup, counts census) (trouble string, err error) {
	name := workload.SuspectsName(run.transport, group.Name)
	live := run.live.suspects[name]
	if !wantsSuspects(group, live, counts, time.Now(), r.Options.SuspectsStay) {
		if live == nil {
			return "", nil
		}
		delete(run.live.suspects, name)
		return "", r.remove(ctx, run, "Deployment", live)
	}
	options, err := r.workerOptions(ctx, run, group.Worker)
	if err != nil {
		return "", err
	}
	desired, err := workload.SuspectsDeployment(run.transport, group.Worker, options)
	if err != nil {
		return "its Deployment cannot be made: " + oneLine(err.Error()), nil
	}
	result := &appsv1.Deployment{}
	err = r.write(ctx, run, desired, asObject(live), result)
	switch {
	case errors.Is(err, errTurn): // It goes on as it is.
	case isRefusal(err), errors.Is(err, errContested), apierrors.IsForbidden(err):
		return "its Deployment cannot be made: " + oneLine(err.Error()), nil
	case err != nil:
		return "", err
	}
	if result.Name != "" {
		live = result
		run.live.suspects[name] = live
	}
	if live.Status.AvailableReplicas > 0 {
		return "", nil
	}
	cause, err := r.rolloutCause(ctx, live)
	return suspectsTrouble(live, cause, time.Now()), err
}

// suspectsTrouble says what keeps the pod of a suspects' Deployment from its work that is not available. cause is what is known
// of it. Where nothing is, a pod that takes long runs and does not get ready: its readiness waits for its consumers.
func suspectsTrouble(live *appsv1.Deployment, cause string, now time.Time) string {
	if cause != "" {
		return fmt.Sprintf("its Deployment %s does not start%s", live.Name, cause)
	}
	since := live.CreationTimestamp.Time
	for _, condition := range live.Status.Conditions {
		if condition.Type == appsv1.DeploymentAvailable && condition.LastTransitionTime.After(since) {
			since = condition.LastTransitionTime.Time
		}
	}
	if now.Sub(since) < suspectsStart {
		return ""
	}
	return "its pod is not ready: look at its log for a right or a connection that is missing"
}

// wantsSuspects says whether a worker group is to have a suspects' pod. live is nil where it has none. A count that is not
// known changes nothing, and a group that the spec stops has none.
func wantsSuspects(group suspectedGroup, live *appsv1.Deployment, counts census, now time.Time, stay time.Duration) bool {
	if group.stopped() {
		return false
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

// stopped is true for a group whose replicas the spec sets to 0. An autoscaler that has none because its queues are empty
// stops nothing.
func (g suspectedGroup) stopped() bool { return ptr.Deref(g.Replicas, 1) == 0 }

// warnOfSuspects tells of the messages in the suspects' queues of a group, by figures that do not change with each look.
func (run *transportRun) warnOfSuspects(group suspectedGroup, figures map[string]figure, trouble string) {
	var holding []apply.Blocked
	for _, queue := range group.queues {
		if figure, holds := figures[queue]; holds {
			holding = append(holding, apply.Blocked{Queue: queue, Messages: figure.n})
		}
	}
	if len(holding) == 0 {
		return
	}
	text := "messages that pods had in hand when they ended are handled one by one: "
	if group.stopped() {
		text = "messages that pods had in hand when they ended wait until the group has replicas again: "
	}
	text += listed(holding, blockedText)
	if trouble != "" {
		text += "; " + trouble
	}
	run.warn([]topology.Finding{{
		Object: topology.Ref{Kind: kindWorker, Name: group.Name}, Reason: v1alpha1.ReasonSuspects, Message: text,
	}})
}
