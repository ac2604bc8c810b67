package controllers

import (
	"context"
	"errors"
	"math/rand/v2"
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

// course is what happens after a reconcile that did not reach its end.
type course int

const (
	// stalled: only a change by the user leads further.
	stalled course = iota
	// waits: it goes on by itself after a known time, or when something that is watched changes.
	waits
	// retries: it is tried again with a growing delay.
	retries
)

// condition that is true while this holds.
func (c course) condition() string {
	if c == stalled {
		return v1alpha1.StalledCondition
	}
	return v1alpha1.ReconcilingCondition
}

// interruption is the error of a step that knows how the reconcile goes on.
type interruption struct {
	course course
	// reason of the conditions, one of the API's.
	reason string
	// after is when to look again at the latest; zero leaves it to the poll.
	after time.Duration
	err   error
}

func (i *interruption) Error() string { return i.err.Error() }
func (i *interruption) Unwrap() error { return i.err }

// stall is the error of what only the user can put right. It sets Stalled, and nothing is tried again before the next
// poll or change.
func stall(reason string, err error) error {
	return &interruption{course: stalled, reason: reason, err: err}
}

// wait is the error of what goes on by itself. It sets Reconciling.
func wait(reason string, after time.Duration, err error) error {
	return &interruption{course: waits, reason: reason, after: after, err: err}
}

// again is the error of what may work the next time. It sets Reconciling, and the delays grow.
func again(reason string, err error) error {
	return &interruption{course: retries, reason: reason, err: err}
}

// interpret tells what an error of a step means.
func interpret(err error) *interruption {
	if known, ok := errors.AsType[*interruption](err); ok {
		return known
	}
	return &interruption{course: retries, reason: v1alpha1.ReasonProgressing, err: err}
}

const (
	// againAfterConflict is when a reconcile runs again that worked on an outdated copy.
	againAfterConflict = time.Second
	// statusTimeout bounds the write of the status.
	statusTimeout = 10 * time.Second
)

// conclude is the end of every reconcile: conditions by the error of the steps, one patch of the status, an event if
// Ready changed, and when to look again. next is when that is where nothing else decides; zero is not at all.
func conclude(ctx context.Context, c client.Client, s *subject, outcome error, warnings []string, next time.Duration) (ctrl.Result, error) {
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
	s.tell()
	if stopped {
		return ctrl.Result{}, nil
	}
	s.announce()
	if outcome == nil {
		return ctrl.Result{RequeueAfter: next}, nil
	}
	why := interpret(outcome)
	if why.course == retries {
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

// jitter spreads a delay by a tenth either way, so that what began together does not stay together.
func jitter(d time.Duration) time.Duration {
	if d < 10 {
		return d
	}
	return d - d/10 + rand.N(d/5) //nolint:gosec // it spreads load and guards nothing
}
