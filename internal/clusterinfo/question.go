// Package clusterinfo asks the cluster now and then what it is able to.
package clusterinfo

import (
	"context"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"redrive.dev/redrive/internal/broker"
)

// Question is whether the cluster is able to do something. It is safe for concurrent use.
type Question struct {
	// text of it, for the log.
	text string
	ask  func(ctx context.Context) (bool, error)
	// age is how long an answer counts as of now. A yes that is final counts for ever.
	age   time.Duration
	final bool

	// turn is taken by who asks. It is no mutex: a request gives the processor of its namespace to another reconcile meanwhile, which must not wait here
	// with that in hand, or the two wait for each other.
	turn chan struct{}

	mu       sync.Mutex
	yes      bool
	answered bool
	asked    time.Time
}

func newQuestion(text string, age time.Duration, final bool, ask func(context.Context) (bool, error)) *Question {
	return &Question{text: text, ask: ask, age: age, final: final, turn: make(chan struct{}, 1)}
}

// Answer asks the cluster, unless it has done so within a time. Where the cluster does not say, the last answer holds; the error is of one that has never
// been given.
func (q *Question) Answer(ctx context.Context, now time.Time) (bool, error) {
	if yes, known := q.recent(now); known {
		return yes, nil
	}
	var err error
	broker.Await(ctx, func() {
		select {
		case q.turn <- struct{}{}:
		case <-ctx.Done():
			err = ctx.Err()
		}
	})
	if err != nil {
		return false, err //nolint:wrapcheck // it says all
	}
	defer func() { <-q.turn }()
	if yes, known := q.recent(now); known { // another one has asked meanwhile
		return yes, nil
	}
	yes, err := q.ask(ctx)
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case err == nil:
		q.yes, q.answered = yes, true
	case !q.answered:
		return false, err
	default:
		ctrl.LoggerFrom(ctx).Info("the cluster does not say "+q.text+": the answer before holds", "cause", err.Error())
	}
	q.asked = now
	return q.yes, nil
}

func (q *Question) recent(now time.Time) (yes, known bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.yes, q.answered && (q.final && q.yes || now.Sub(q.asked) < q.age)
}

// Doubt has the cluster asked again at once.
func (q *Question) Doubt() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = time.Time{}
}
