package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/brokersource"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/scaler"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/workload"
)

const (
	// soonStopped is when it is first looked again whether the last worker pod is gone.
	soonStopped = 2 * time.Second
	// lateStopped is that for pods that do not go for long, such as those that nobody deletes or whose node is lost.
	lateStopped = 30 * time.Second
	// unnamedLimit is how long the Secret or RabbitmqCluster may be missing: for longer than it takes to replace one.
	unnamedLimit = 30 * time.Second
)

// untilWorkersStop is when to look again whether the last worker pod is gone: the longer the Transport goes already, the later.
func (run *transportRun) untilWorkersStop() time.Duration {
	return min(max(soonStopped, time.Since(run.transport.DeletionTimestamp.Time)/10), lateStopped)
}

// delete takes the Transport's objects off the broker, one stage at a time, and then lets the Transport go. It sets
// Reconciling with Deleting, or with DeletionBlocked where queues hold messages.
func (r *TransportReconciler) delete(ctx context.Context, run *transportRun) error {
	if run.transport.Status.Broker == nil {
		return r.removeFinalizer(ctx, run) // Nothing was ever made.
	}
	if run.transport.Spec.DeletionPolicy == v1alpha1.DeletionRetain {
		return r.release(ctx, run, "spec.deletionPolicy is Retain")
	}
	if run.endingErr != nil {
		return run.endingErr
	}
	if run.ending != nil {
		run.status.EventsOf = run.ending
		return r.release(ctx, run, "its namespace is being deleted")
	}
	err := runSteps(ctx, run, r.readWorkers, r.connect)
	unnamed := errors.Is(err, brokersource.ErrNone)
	switch lasts := r.counts.Lacks(client.ObjectKeyFromObject(run.transport), status.LackOfName, !unnamed, time.Now()); {
	case unnamed && lasts >= r.Options.UnnamedLimit:
		return r.release(ctx, run, err.Error())
	case unnamed: // It may be replaced at the moment.
		return outcome.Waiting(v1alpha1.ReasonDeleting, r.Options.UnnamedLimit-lasts, fmt.Errorf(
			"%w; if it is not there again within %s, the Transport goes and leaves its queues with their messages", err, r.Options.UnnamedLimit))
	case err == nil:
		err = r.takeDown(ctx, run)
	}
	return withDeletionAdvice(err)
}

// withDeletionAdvice adds to what keeps a deletion waiting for the broker how it can end without it.
func withDeletionAdvice(err error) error {
	var why *outcome.StepError
	if !errors.As(err, &why) {
		return err
	}
	switch why.Reason {
	case v1alpha1.ReasonBrokerUnreachable, v1alpha1.ReasonBrokerRefused, v1alpha1.ReasonBrokerNotFound,
		v1alpha1.ReasonBrokerChanged, v1alpha1.ReasonSecretInvalid, v1alpha1.ReasonSecretNotFound:
		told := *why
		told.Err = fmt.Errorf("%w; to delete the Transport without its broker, set spec.deletionPolicy to Retain", why.Err)
		return &told
	}
	return err
}

// endingNamespace returns the Transport's namespace where it is being deleted, or gone already; nil where it is not.
func (r *TransportReconciler) endingNamespace(ctx context.Context, run *transportRun) (*corev1.Namespace, error) {
	namespace := &corev1.Namespace{}
	err := r.Live.Get(ctx, client.ObjectKey{Name: run.transport.Namespace}, namespace)
	switch {
	case apierrors.IsNotFound(err):
		namespace.Name = run.transport.Namespace
		return namespace, nil
	case err != nil:
		return nil, fmt.Errorf("read namespace %s: %w", run.transport.Namespace, err)
	case namespace.DeletionTimestamp.IsZero():
		return nil, nil //nolint:nilnil // it is not ending
	default:
		return namespace, nil
	}
}

// release lets the Transport go and leaves its objects. What is left is said by an event, which outlives the Transport and
// its namespace, and by the log.
func (r *TransportReconciler) release(ctx context.Context, run *transportRun, why string) error {
	sent := run.transport.Status.Deletions
	doubts := r.memories.Doubt(client.ObjectKeyFromObject(run.transport), sent)
	if left := doubts.Awaited(sent, r.Options.Waits, time.Now()); left > 0 {
		return errAwaited(left)
	}
	users, err := r.releaseUsers(ctx, run)
	if err != nil {
		return err
	}
	note := fmt.Sprintf("the Transport %s/%s goes, because %s; left %s", run.transport.Namespace, run.transport.Name, why, leftText(run.transport))
	if users != "" {
		// Before all else, since the text may be cut.
		note = fmt.Sprintf("the Transport %s/%s goes, because %s, and leaves %s; left %s",
			run.transport.Namespace, run.transport.Name, why, users, leftText(run.transport))
	}
	run.status.Event(corev1.EventTypeWarning, "Retained", note)
	ctrl.LoggerFrom(ctx).Info("the Transport goes and its objects stay", "note", note)
	return r.removeFinalizer(ctx, run)
}

// leftText lists what a Transport leaves. Stages that are done have taken some of it away.
func leftText(t *v1alpha1.Transport) string {
	names := compile.NamesOf(t)
	queues := queueNames(t)
	for _, state := range t.Status.Retiring {
		if !strings.HasPrefix(state.Queue, names.LanePrefix()) && !slices.Contains(queues, state.Queue) && state.Queue != names.FailureQueue() {
			queues = append(queues, state.Queue)
		}
	}
	for _, m := range t.Status.Migrations {
		if !slices.Contains(queues, m.Standin) {
			queues = append(queues, m.Standin)
		}
	}
	return fmt.Sprintf("on cluster %q, vhost %q, with the messages that are still in them: the queues %s, %s, "+
		"their quarantine queues (*%s) and %s*, and the exchanges and policies that belong to them",
		t.Status.Broker.Cluster, t.Status.Broker.VHost, names.FailureQueue(), status.JoinedBy(", ", queues), compile.QuarantineSuffix, names.LanePrefix())
}

// takeDown goes one stage further.
func (r *TransportReconciler) takeDown(ctx context.Context, run *transportRun) error {
	t := run.transport
	pods, err := r.pods(ctx, t)
	if err != nil {
		return err
	}
	if err := outcome.CheckCurrent(ctx, r.Live, t); err != nil {
		return err
	}
	workersGone := len(run.live.All()) == 0 && len(pods) == 0
	state := apply.StateOf(t)
	state.Doubts = r.memories.Doubt(client.ObjectKeyFromObject(t), state.Deletions)
	state.Stamps = r.memories.Stamp(client.ObjectKeyFromObject(t), state.Retiring, state.Migrations)
	report, err := apply.Delete(ctx, run.port, apply.DeleteInput{
		Owner: r.owner(t), Prefix: compile.NamesOf(t).Prefix, State: state,
		Force:       t.Spec.DeletionPolicy == v1alpha1.DeletionDelete,
		WorkersGone: workersGone, Waits: r.Options.Waits, Now: time.Now(), WriteDeletions: r.writeDeletions(run),
	})
	t.Status.Created, t.Status.Deletions = report.Created, report.Deletions
	r.memories.NoteSent(t, report.Deletions, r.Options.Waits.Request)
	stamps := r.memories.Stamp(client.ObjectKeyFromObject(t), report.Retiring, state.Migrations)
	t.Status.Retiring = r.counts.Retiring(client.ObjectKeyFromObject(t), t.Status.Retiring, report.Retiring, time.Now())
	if len(report.Steps) > 0 {
		run.status.Event(corev1.EventTypeNormal, "TopologyUpdated", stepsText(report.Steps))
	}
	if err != nil {
		return brokerError(err)
	}
	run.report.Queues = report.Queues
	r.reportCounts(run)
	if report.Drained && !workersGone {
		return r.stopWorkers(ctx, run, pods)
	}
	if !workersGone {
		// Quarantined messages are left for their pod, as all else is for the workers, and it goes with them.
		if err := r.applyQuarantine(ctx, run); err != nil {
			return err
		}
		if err := r.republish(ctx, run, run.withoutHolds); err != nil {
			return err
		}
		if err := r.readOn(ctx, run, stamps.Retiring(report.Retiring, time.Now())); err != nil {
			return err
		}
		if err := r.wakeUnscaled(ctx, run); err != nil {
			return err
		}
	}
	return r.afterStage(ctx, run, report)
}

// withoutHolds is the configuration of a worker group in a deletion. Nobody writes its Deployment any more: pods for a former handler go only where a rollout
// has begun.
func (run *transportRun) withoutHolds(last compile.Config) (next compile.Config, changed bool) {
	workers := run.live.Deployments[workload.Name(run.transport, last.Worker)]
	return last.WithoutHolds(workers != nil && !workload.IsCurrent(workers))
}

// wakeUnscaled wakes the worker groups that an autoscaler has put to sleep which is there no more: nobody would handle what their queues hold.
func (r *TransportReconciler) wakeUnscaled(ctx context.Context, run *transportRun) error {
	return r.wake(ctx, run, r.scalers.WakeUnscaled)
}

// wake goes through the worker groups that an autoscaler has put to sleep.
func (r *TransportReconciler) wake(ctx context.Context, run *transportRun, wake func(context.Context, *scaler.Group) error) error {
	for _, deployment := range run.live.Deployments {
		if workload.Replicas(deployment) > 0 || deployment.Annotations[workload.AutoscaledAnnotation] == "" {
			continue
		}
		var err error
		if run.scalers == nil {
			if run.scalers, err = r.scalers.Read(ctx, run.transport); err != nil {
				return err
			}
		}
		err = wake(ctx, &scaler.Group{
			Transport: run.transport, Owner: run.objectOwner(), Worker: &v1alpha1.Worker{Name: workload.GroupOf(deployment.Labels)}, Scalers: run.scalers,
			Live: deployment,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// stopWorkers deletes the Deployments, now that nothing is left for their pods to do, and names the pods that are still there.
func (r *TransportReconciler) stopWorkers(ctx context.Context, run *transportRun, pods []metav1.PartialObjectMetadata) error {
	scalers, err := r.scalers.Read(ctx, run.transport)
	if err != nil {
		return err
	}
	if err := r.scalers.RemoveAllBut(ctx, run.objectOwner(), scalers, nil); err != nil {
		return err
	}
	for _, deployment := range run.live.All() {
		if err := r.writer.Delete(ctx, run.objectOwner(), "Deployment", deployment); err != nil {
			return err
		}
	}
	text := "the queues are empty, and the workers stop"
	if run.transport.Spec.DeletionPolicy == v1alpha1.DeletionDelete {
		text = "the workers stop, and then the queues go with what is in them"
	}
	if len(pods) > 0 {
		slices.SortFunc(pods, func(a, b metav1.PartialObjectMetadata) int { return cmp.Compare(a.Name, b.Name) })
		text += "; still there: " + status.Listed(pods, func(pod metav1.PartialObjectMetadata) string { return podText(run.transport, pod) })
	}
	orphans, err := r.orphans(ctx, run.transport)
	if err != nil {
		return err
	}
	if len(pods) > 0 && len(orphans) > 0 {
		text += fmt.Sprintf("; Deployment %s was orphaned and is left alone: delete it, or set spec.deletionPolicy to Retain",
			status.JoinedBy(", ", orphans))
	}
	return outcome.Waiting(v1alpha1.ReasonDeleting, run.untilWorkersStop(), errors.New(text))
}

// orphans are the Deployments that were the Transport's and are nobody's any more, as after a deletion with
// --cascade=orphan. They are not deleted: whoever deletes so wants to keep them.
func (r *TransportReconciler) orphans(ctx context.Context, t *v1alpha1.Transport) ([]string, error) {
	var list appsv1.DeploymentList
	if err := r.Client.List(ctx, &list, client.InNamespace(t.Namespace), client.MatchingLabels(workload.TransportLabels(t))); err != nil {
		return nil, fmt.Errorf("list the Deployments: %w", err)
	}
	var names []string
	for i := range list.Items {
		if metav1.GetControllerOf(&list.Items[i]) == nil {
			names = append(names, list.Items[i].Name)
		}
	}
	return names, nil
}

// podText names a pod with the labels of a Transport's workers, and what keeps it.
func podText(t *v1alpha1.Transport, pod metav1.PartialObjectMetadata) string {
	maker := "nobody"
	if controller := metav1.GetControllerOf(&pod); controller != nil {
		maker = controller.Kind + " " + controller.Name
	}
	switch {
	case !strings.HasPrefix(maker, "ReplicaSet "+t.Name+"-"):
		return fmt.Sprintf("pod %s, which is no worker's (it belongs to %s): delete it, or take its label %s away",
			pod.Name, maker, workload.TransportLabel)
	case pod.DeletionTimestamp != nil:
		return fmt.Sprintf("pod %s, which has until %s to end", pod.Name, pod.DeletionTimestamp.UTC().Format(time.RFC3339))
	default:
		return "pod " + pod.Name
	}
}

// afterStage tells how the deletion goes on.
func (r *TransportReconciler) afterStage(ctx context.Context, run *transportRun, report apply.DeleteReport) error {
	switch {
	case report.Done:
		if err := r.dropUsers(ctx, run); err != nil {
			return err
		}
		if len(report.Left) > 0 {
			run.status.Event(corev1.EventTypeNormal, "Retained", status.Listed(report.Left, findingText))
		}
		return r.removeFinalizer(ctx, run)
	case len(report.Failures) > 0:
		return refused(report.Failures)
	case len(report.Blocked) > 0:
		return outcome.Waiting(v1alpha1.ReasonDeletionBlocked, report.RequeueAfter, fmt.Errorf("queues hold messages: %s; %s, %s",
			status.Listed(holding(run.transport.Status.Retiring, report.Blocked), apply.Blocked.String), run.remedy(report), deletionAdvice))
	case len(report.Rebound) > 0:
		return outcome.Waiting(v1alpha1.ReasonDeleting, report.RequeueAfter, fmt.Errorf(
			"queues were bound again by others: %s; ask their owner to stop that, %s", status.JoinedBy(", ", report.Rebound), deletionAdvice))
	case len(report.Uncounted) > 0:
		return outcome.Waiting(v1alpha1.ReasonDeleting, report.RequeueAfter, fmt.Errorf(
			"the broker has not counted the messages in %s; if that stays, look whether its statistics are switched off or a node is down, %s",
			status.JoinedBy(", ", report.Uncounted), deletionAdvice))
	case report.Awaited > 0:
		return errAwaited(report.Awaited)
	default:
		return outcome.Waiting(v1alpha1.ReasonDeleting, report.RequeueAfter, errors.New("objects are being removed from the broker"))
	}
}

// errAwaited keeps a Transport whose objects may still be deleted by a request that had no answer: one that is made again with the same
// queues would lose them.
func errAwaited(left time.Duration) error {
	return outcome.Waiting(v1alpha1.ReasonDeleting, left, errors.New(
		"a request to delete something on the broker had no answer, and may still be carried out: the Transport goes when it cannot any more"))
}

// remedy says whether the workers still empty the queues, or somebody else has to.
func (run *transportRun) remedy(report apply.DeleteReport) string {
	switch {
	case len(run.live.Deployments) == 0:
		return "its workers are gone: take the messages out"
	case !report.Drained && run.live.Ready() > 0:
		return "workers keep running until the queues are empty; if that does not end, remove the messages"
	default:
		return "let them be handled or take them out"
	}
}

// deletionAdvice of a deletion that waits for somebody.
const deletionAdvice = "or set spec.deletionPolicy to Retain to leave everything on the broker, or to Delete to lose what is in it"

// removeFinalizer lets the API server delete the Transport.
func (r *TransportReconciler) removeFinalizer(ctx context.Context, run *transportRun) error {
	controllerutil.RemoveFinalizer(run.transport, v1alpha1.Finalizer)
	if err := run.status.WriteMeta(ctx); client.IgnoreNotFound(err) != nil {
		return err
	}
	r.forget(client.ObjectKeyFromObject(run.transport))
	return outcome.Waiting(v1alpha1.ReasonDeleting, 0, errors.New("broker objects removed"))
}

func queueNames(t *v1alpha1.Transport) []string {
	names := make([]string, len(t.Spec.Queues))
	for i := range t.Spec.Queues {
		names[i] = t.Spec.Queues[i].Name
	}
	return names
}
