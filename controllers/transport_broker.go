package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

// connect reads the Secret and finds the broker's client: Reconciling with SecretNotFound where there is no Secret, since
// those are often made by somebody else and a little later; Stalled with SecretInvalid where it cannot be used.
func (r *TransportReconciler) connect(ctx context.Context, run *transportRun) error {
	spec := run.transport.Spec.Broker
	secret := &corev1.Secret{}
	key := types.NamespacedName{Namespace: run.transport.Namespace, Name: spec.SecretRef.Name}
	err := r.Live.Get(ctx, key, secret)
	if apierrors.IsNotFound(err) {
		return again(v1alpha1.ReasonSecretNotFound, fmt.Errorf("there is no Secret %q in namespace %q", key.Name, key.Namespace))
	}
	if err != nil {
		return fmt.Errorf("read Secret %s: %w", key.Name, err)
	}
	invalid := func(err error) error {
		return stall(v1alpha1.ReasonSecretInvalid, fmt.Errorf("the Secret %q: %w", key.Name, err))
	}
	login, err := credentials.FromSecret(secret.Data)
	if err != nil {
		return invalid(err)
	}
	if run.port, err = r.brokers.port(login, login.VHostOr(spec.VHost)); err != nil {
		return invalid(err)
	}
	return nil
}

// applyTopology brings the broker to what the Transport needs. What must not be forgotten is in the status before
// anything is made: which broker it is, and which of the objects without a mark are ours. It sets Stalled with Invalid,
// BrokerChanged or Conflict, or Reconciling with BrokerUnreachable or BrokerRefused.
func (r *TransportReconciler) applyTopology(ctx context.Context, run *transportRun) error {
	t := run.transport
	desired, err := topology.Desired(t, r.lanes(run), r.owner(t))
	if err != nil {
		return stall(v1alpha1.ReasonInvalid, err)
	}
	observed, err := run.port.Observe(ctx)
	if err != nil {
		return brokerError(err)
	}
	prepared, err := apply.Prepare(apply.Input{
		Desired: desired, State: stateOf(t), Waits: r.Options.Waits, Now: time.Now(),
	}, observed)
	if err != nil {
		return brokerError(err)
	}
	t.Status.Broker = &v1alpha1.BrokerIdentity{Cluster: observed.Cluster, VHost: observed.VHost}
	t.Status.Created = prepared.Created
	if len(prepared.Plan) > 0 {
		if err := run.subject.writeStatus(ctx, r.Client); err != nil {
			return err
		}
	}
	run.report, err = prepared.CarryOut(ctx, run.port)
	r.reportTopology(run)
	if err != nil {
		return brokerError(err)
	}
	return judge(run)
}

// lanes that have to be on the broker: those of the new configuration, and those that a published one still names. So the
// way out of a lane begins when no configuration names it any more, however long publishing takes.
func (r *TransportReconciler) lanes(run *transportRun) retry.Lanes {
	lanes := slices.Clone(run.compiled.Lanes)
	for _, config := range run.live.configs() {
		lanes = append(lanes, config.Lanes...)
	}
	slices.Sort(lanes)
	return slices.Compact(lanes)
}

// reportTopology puts into the status what a run on the broker did and found, also one that ended early.
func (r *TransportReconciler) reportTopology(run *transportRun) {
	status, report := &run.transport.Status, run.report
	status.Created, status.Adopted, status.Retiring = report.Created, report.Adopted, report.Retiring
	status.Queues = new(int32(len(run.transport.Spec.Queues))) //nolint:gosec // the schema allows 64
	status.Lanes = nil
	for _, lane := range run.compiled.Lanes {
		status.Lanes = append(status.Lanes, retry.LaneKey(lane))
	}
	run.due = report.RequeueAfter
	for _, finding := range slices.Concat(topology.Advice(run.transport), report.Warnings) {
		run.warnings = append(run.warnings, finding.String())
	}
	for _, blocked := range report.Blocked {
		run.warnings = append(run.warnings, fmt.Sprintf(
			"queue %s is no longer in the spec and is kept, because it holds %d messages: it is deleted when it is empty",
			blocked.Queue, blocked.Messages))
	}
	if len(report.Steps) > 0 {
		run.subject.event(corev1.EventTypeNormal, "BrokerUpdated", stepsText(report.Steps))
	}
	r.reportCounts(run)
}

// judge turns what could not be done on the broker into an error. A conflict keeps the workers as they are: whoever owns
// the object in question must not get their messages.
func judge(run *transportRun) error {
	report := run.report
	if len(report.Conflicts) > 0 {
		return stall(v1alpha1.ReasonConflict, errors.New(listed(report.Conflicts, topology.Conflict.String)))
	}
	if len(report.Failures) > 0 {
		return again(v1alpha1.ReasonBrokerRefused, errors.New(listed(report.Failures, failureText)))
	}
	if len(report.Problems) > 0 {
		run.partly(wait(v1alpha1.ReasonProgressing, 0, errors.New(listed(report.Problems, findingText))))
	}
	return nil
}

func stateOf(t *v1alpha1.Transport) apply.State {
	return apply.State{Created: t.Status.Created, Retiring: t.Status.Retiring, Broker: t.Status.Broker}
}

// brokerError tells what an error of the broker means for the Transport.
func brokerError(err error) error {
	var moved *apply.BrokerChangedError
	switch {
	case errors.As(err, &moved):
		return stall(v1alpha1.ReasonBrokerChanged, fmt.Errorf(
			"%w; neither is touched: let the Secret lead to the first again, or delete the Transport with deletionPolicy Retain and make it anew", err))
	case errors.Is(err, broker.ErrUnreachable):
		return again(v1alpha1.ReasonBrokerUnreachable, err)
	case errors.Is(err, broker.ErrUnauthorized), errors.Is(err, broker.ErrForbidden), errors.Is(err, broker.ErrNotFound),
		errors.Is(err, broker.ErrRefused), errors.Is(err, broker.ErrConflict):
		return again(v1alpha1.ReasonBrokerRefused, err)
	default:
		return err
	}
}

func failureText(f apply.Failure) string    { return f.Err.Error() }
func findingText(f topology.Finding) string { return f.String() }

// maxListed bounds how many items a message names.
const maxListed = 10

// listed puts items into one line and counts those that do not fit.
func listed[T any](items []T, text func(T) string) string {
	texts := make([]string, 0, maxListed+1)
	for i, item := range items {
		if i == maxListed {
			texts = append(texts, fmt.Sprintf("and %d more", len(items)-maxListed))
			break
		}
		texts = append(texts, text(item))
	}
	return strings.Join(texts, "; ")
}

func stepsText(steps []topology.Step) string {
	return listed(steps, func(step topology.Step) string {
		return fmt.Sprintf("%s %s %s", step.Action, step.Ref().Kind, step.Ref().Name)
	})
}

func joined(texts []string) string {
	return listed(texts, func(text string) string { return text })
}
