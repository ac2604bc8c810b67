package controllers

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

// step is one part of a reconcile. Steps run in order, and the first error ends them. The error is control flow: stall,
// wait and again say what it means; any other error is tried again with a growing delay.
type step[S any] func(ctx context.Context, state S) error

func runSteps[S any](ctx context.Context, state S, steps ...step[S]) error {
	for _, next := range steps {
		if err := next(ctx, state); err != nil {
			return err
		}
	}
	return nil
}

// stepOutcome is what happens after a reconcile that did not reach its end.
type stepOutcome int

const (
	// outcomeStalled: only a change by the user leads further.
	outcomeStalled stepOutcome = iota
	// outcomeWaiting: it goes on by itself after a known time, or when something that is watched changes.
	outcomeWaiting
	// outcomeTransient: it is tried again with a growing delay.
	outcomeTransient
)

// condition that is true while this holds.
func (c stepOutcome) condition() string {
	if c == outcomeStalled {
		return v1alpha1.StalledCondition
	}
	return v1alpha1.ReconcilingCondition
}

// stepError is the error of a step that knows how the reconcile goes on.
type stepError struct {
	outcome stepOutcome
	// reason of the conditions, one of the API's.
	reason string
	// after is when to look again at the latest; zero leaves it to the poll.
	after time.Duration
	err   error
}

func (i *stepError) Error() string { return i.err.Error() }
func (i *stepError) Unwrap() error { return i.err }

// stalled is the error of what only the user can fix. It sets Stalled, and nothing is tried again before the next
// poll or change.
func stalled(reason string, err error) error {
	return &stepError{outcome: outcomeStalled, reason: reason, err: err}
}

// waiting is the error of what goes on by itself. It sets Reconciling.
func waiting(reason string, after time.Duration, err error) error {
	return &stepError{outcome: outcomeWaiting, reason: reason, after: after, err: err}
}

// transient is the error of what may work the next time. It sets Reconciling, and the delays grow.
func transient(reason string, err error) error {
	return &stepError{outcome: outcomeTransient, reason: reason, err: err}
}

// interpret tells what an error of a step means.
func interpret(err error) *stepError {
	if known, ok := errors.AsType[*stepError](err); ok {
		return known
	}
	return &stepError{outcome: outcomeTransient, reason: v1alpha1.ReasonProgressing, err: err}
}

const (
	// againAfterConflict is when a reconcile runs again that worked on an outdated copy.
	againAfterConflict = time.Second
	// statusTimeout bounds the write of the status.
	statusTimeout = 10 * time.Second
)

// finish is the end of every reconcile: conditions by the error of the steps, one patch of the status, an event if
// Ready changed, and when to look again. next is when that is where nothing else decides; zero is not at all.
func finish(ctx context.Context, c client.Client, s *statusPatcher, outcome error, warnings []string, next time.Duration) (ctrl.Result, error) {
	stopped := errors.Is(ctx.Err(), context.Canceled)
	if !stopped {
		s.summarise(outcome, warnings)
	}
	// What was done is to be remembered, also where the time for the steps was over or the operator stops.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusTimeout)
	defer cancel()
	if err := s.writeStatus(ctx, c); err != nil {
		if apierrors.IsConflict(err) {
			return ctrl.Result{RequeueAfter: againAfterConflict}, nil
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	s.flushEvents()
	if stopped {
		return ctrl.Result{}, nil
	}
	s.emitReadyEvent()
	if outcome == nil {
		return ctrl.Result{RequeueAfter: next}, nil
	}
	why := interpret(outcome)
	if why.outcome == outcomeTransient {
		return ctrl.Result{}, outcome
	}
	return ctrl.Result{RequeueAfter: sooner(why.after, next)}, nil
}

// sooner is the shorter of two delays, of which zero is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
