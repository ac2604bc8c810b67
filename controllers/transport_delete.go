package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
)

// untilWorkersStop is how often it is looked whether the last worker pod is gone.
const untilWorkersStop = 2 * time.Second

// delete takes the Transport's objects off the broker, one stage at a time, and then lets the Transport go. It sets
// Reconciling with Deleting, or with DeletionBlocked where queues hold messages.
func (r *TransportReconciler) delete(ctx context.Context, run *transportRun) error {
	if run.transport.Status.Broker == nil {
		return r.removeFinalizer(ctx, run) // Nothing was ever made.
	}
	retain, err := r.retained(ctx, run)
	if err != nil {
		return err
	}
	if retain != "" {
		return r.release(ctx, run, retain)
	}
	err = runSteps(ctx, run, r.readWorkers, r.connect)
	var why *interruption
	if errors.As(err, &why) && why.reason == v1alpha1.ReasonSecretNotFound {
		return r.release(ctx, run, "the Secret of the broker is gone")
	}
	if err == nil {
		err = r.takeDown(ctx, run)
	}
	return withWayOut(err)
}

// withWayOut adds to what keeps a deletion waiting for the broker how it can end without it.
func withWayOut(err error) error {
	var why *interruption
	if !errors.As(err, &why) {
		return err
	}
	switch why.reason {
	case v1alpha1.ReasonBrokerUnreachable, v1alpha1.ReasonBrokerRefused, v1alpha1.ReasonSecretInvalid:
		told := *why
		told.err = fmt.Errorf("%w; to let the Transport go without its broker, set spec.deletionPolicy to Retain", why.err)
		return &told
	}
	return err
}

// retained says why the objects stay on the broker; empty where they do not.
func (r *TransportReconciler) retained(ctx context.Context, run *transportRun) (string, error) {
	if run.transport.Spec.DeletionPolicy == v1alpha1.DeletionRetain {
		return "spec.deletionPolicy is Retain", nil
	}
	namespace := &corev1.Namespace{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: run.transport.Namespace}, namespace); err != nil {
		return "", fmt.Errorf("read namespace %s: %w", run.transport.Namespace, err)
	}
	if !namespace.DeletionTimestamp.IsZero() {
		return "its namespace is being deleted", nil
	}
	return "", nil
}

// release lets the Transport go and leaves its objects. A namespace that is being deleted takes no events, so the log
// says it too.
func (r *TransportReconciler) release(ctx context.Context, run *transportRun, why string) error {
	broker, names := run.transport.Status.Broker, compile.NamesOf(run.transport)
	note := fmt.Sprintf("left on cluster %q, vhost %q, because %s: the queues %s, %s and %s*, and the exchanges that belong to them",
		broker.Cluster, broker.VHost, why, joined(queueNames(run.transport)), names.FailureQueue(), names.LanePrefix())
	run.subject.event(corev1.EventTypeWarning, "Retained", note)
	ctrl.LoggerFrom(ctx).Info("the Transport goes and its objects stay", "note", note)
	return r.removeFinalizer(ctx, run)
}

// takeDown goes one stage further.
func (r *TransportReconciler) takeDown(ctx context.Context, run *transportRun) error {
	t := run.transport
	pods, err := r.pods(ctx, t)
	if err != nil {
		return err
	}
	workersGone := len(run.live.deployments) == 0 && len(pods) == 0
	report, err := apply.Delete(ctx, run.port, apply.DeleteInput{
		Owner: r.owner(t), Prefix: compile.NamesOf(t).Prefix, State: stateOf(t),
		Force:       t.Spec.DeletionPolicy == v1alpha1.DeletionDelete,
		WorkersGone: workersGone, Waits: r.Options.Waits, Now: time.Now(),
	})
	t.Status.Created, t.Status.Retiring = report.Created, report.Retiring
	if len(report.Steps) > 0 {
		run.subject.event(corev1.EventTypeNormal, "BrokerUpdated", stepsText(report.Steps))
	}
	if err != nil {
		return brokerError(err)
	}
	if report.Drained && !workersGone {
		return r.stopWorkers(ctx, run)
	}
	return r.afterStage(ctx, run, report)
}

// stopWorkers deletes the Deployments, now that nothing is left for their pods to do.
func (r *TransportReconciler) stopWorkers(ctx context.Context, run *transportRun) error {
	for _, deployment := range run.live.deployments {
		if err := r.remove(ctx, run, "Deployment", deployment); err != nil {
			return err
		}
	}
	return wait(v1alpha1.ReasonDeleting, untilWorkersStop, errors.New("the queues are empty, and the workers stop"))
}

// afterStage tells how the deletion goes on.
func (r *TransportReconciler) afterStage(ctx context.Context, run *transportRun, report apply.DeleteReport) error {
	switch {
	case report.Done:
		if len(report.Left) > 0 {
			run.subject.event(corev1.EventTypeNormal, "Retained", listed(report.Left, findingText))
		}
		return r.removeFinalizer(ctx, run)
	case len(report.Failures) > 0:
		return again(v1alpha1.ReasonBrokerRefused, errors.New(listed(report.Failures, failureText)))
	case len(report.Blocked) > 0:
		return wait(v1alpha1.ReasonDeletionBlocked, report.RequeueAfter, fmt.Errorf(
			"queues hold messages: %s; let them be handled or take them out, "+
				"or set spec.deletionPolicy to Retain to leave everything on the broker, or to Delete to lose them",
			listed(report.Blocked, blockedText)))
	default:
		return wait(v1alpha1.ReasonDeleting, report.RequeueAfter, errors.New("the objects are on their way out of the broker"))
	}
}

// removeFinalizer lets the API server delete the Transport.
func (r *TransportReconciler) removeFinalizer(ctx context.Context, run *transportRun) error {
	controllerutil.RemoveFinalizer(run.transport, v1alpha1.Finalizer)
	if err := run.subject.writeMeta(ctx, r.Client); client.IgnoreNotFound(err) != nil {
		return err
	}
	r.forget(client.ObjectKeyFromObject(run.transport))
	return wait(v1alpha1.ReasonDeleting, 0, errors.New("the objects on the broker are dealt with"))
}

func queueNames(t *v1alpha1.Transport) []string {
	names := make([]string, len(t.Spec.Queues))
	for i := range t.Spec.Queues {
		names[i] = t.Spec.Queues[i].Name
	}
	return names
}

func blockedText(b apply.Blocked) string { return fmt.Sprintf("%s (%d)", b.Queue, b.Messages) }
