// Package outcome is how a reconcile ends: what an error of a step means for the conditions, one patch of the status, and the events of what was done.
package outcome

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

// Kind is what happens after a reconcile that did not reach its end.
type Kind int

const (
	// KindStalled says that only a change by the user leads further.
	KindStalled Kind = iota
	// KindWaiting says that it goes on by itself after a known time, or when something that is watched changes.
	KindWaiting
	// KindTransient says that it is tried again with a growing delay.
	KindTransient
)

// condition that is true while this holds.
func (k Kind) condition() string {
	if k == KindStalled {
		return v1alpha1.StalledCondition
	}
	return v1alpha1.ReconcilingCondition
}

// StepError is the error of a step that knows how the reconcile goes on.
type StepError struct {
	Kind Kind
	// Reason of the conditions, one of the API's.
	Reason string
	// After is when to look again at the latest; zero leaves it to the poll.
	After time.Duration
	Err   error
}

// Error implements error.
func (f *StepError) Error() string { return f.Err.Error() }

// Unwrap gives the cause to package errors.
func (f *StepError) Unwrap() error { return f.Err }

// Stalled is the error of what only the user can fix. It sets Stalled, and nothing is tried again before the next
// poll or change.
func Stalled(reason string, err error) error {
	return &StepError{Kind: KindStalled, Reason: reason, Err: err}
}

// Waiting is the error of what goes on by itself. It sets Reconciling.
func Waiting(reason string, after time.Duration, err error) error {
	return &StepError{Kind: KindWaiting, Reason: reason, After: after, Err: err}
}

// Transient is the error of what may work the next time. It sets Reconciling, and the delays grow.
func Transient(reason string, err error) error {
	return &StepError{Kind: KindTransient, Reason: reason, Err: err}
}

// ErrOutdated is in the error of a step that worked on an outdated copy of the Transport.
var ErrOutdated = errors.New("the copy is outdated")

// Outdated puts ErrOutdated into an error.
func Outdated(err error) error { return &outdatedError{err} }

type outdatedError struct{ error }

func (e *outdatedError) Unwrap() []error { return []error{ErrOutdated, e.error} }

// Interpret tells what an error of a step means: one that does not say so is tried again.
func Interpret(err error) *StepError {
	if known, ok := errors.AsType[*StepError](err); ok {
		return known
	}
	return &StepError{Kind: KindTransient, Reason: v1alpha1.ReasonProgressing, Err: err}
}

const (
	// RetryAfterConflict is when a reconcile runs again that worked on an outdated copy.
	RetryAfterConflict = time.Second
	// statusTimeout bounds the write of the status.
	statusTimeout = 10 * time.Second
)

// Finish is the end of every reconcile: conditions by the error of the steps, one patch of the status, an event if
// Ready changed, and when to look again. next is when that is where nothing else decides; zero is not at all.
func Finish(ctx context.Context, s *Patcher, outcome error, warnings []string, next time.Duration) (ctrl.Result, error) {
	stopped := errors.Is(ctx.Err(), context.Canceled)
	if !stopped {
		s.Summarise(outcome, warnings)
	}
	// What was done is to be remembered, also where the time for the steps was over or the operator stops.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusTimeout)
	defer cancel()
	if err := s.WriteStatus(ctx); err != nil {
		if s.outdated = apierrors.IsConflict(err); s.outdated {
			return ctrl.Result{RequeueAfter: RetryAfterConflict}, nil
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
	why := Interpret(outcome)
	if why.Kind == KindTransient {
		return ctrl.Result{}, outcome
	}
	return ctrl.Result{RequeueAfter: Sooner(why.After, next)}, nil
}

// Sooner is the shorter of two delays, of which zero is none.
func Sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
