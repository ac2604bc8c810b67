// Package clusterinfo asks the cluster now and then what it is able to.
package clusterinfo

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	ctrl "sigs.k8s.io/controller-runtime"

	"redrive.dev/redrive/internal/broker"
)

// askWithin bounds a request to the API server.
const askWithin = 10 * time.Second

// Question is whether the cluster is able to do something. It is safe for concurrent use.
type Question struct {
	// text of it, for the log.
	text string
	ask  func(ctx context.Context) (bool, error)
	// age is how long an answer counts as of now. A yes that is final counts for ever.
	age   time.Duration
	final bool

	// asking is one request for all who need the answer. It is nobody's own: with the request of one, who has to wait for the processor of its namespace
	// before and after it, those of other namespaces would wait for that as well.
	asking singleflight.Group

	mu       sync.Mutex
	yes      bool
	answered bool
	asked    time.Time
}

func newQuestion(text string, age time.Duration, final bool, ask func(context.Context) (bool, error)) *Question {
	return &Question{text: text, ask: ask, age: age, final: final}
}

// Answer asks the cluster, unless it has done so within a time. Where the cluster does not say, the last answer holds; the error is of one that has never
// been given.
func (q *Question) Answer(ctx context.Context, now time.Time) (bool, error) {
	if yes, known := q.recent(now); known {
		return yes, nil
	}
	log := ctrl.LoggerFrom(ctx)
	var answer singleflight.Result
	// Of the context of who asks first it has nothing but the log.
	answers := q.asking.DoChan("", func() (any, error) { return q.askFor(ctrl.LoggerInto(context.Background(), log), now) }) //nolint:contextcheck // as it says
	broker.Await(ctx, func() {
		select {
		case answer = <-answers:
		case <-ctx.Done():
			answer.Err = ctx.Err()
		}
	})
	yes, _ := answer.Val.(bool)
	return yes, answer.Err
}

// askFor asks for all who wait.
func (q *Question) askFor(ctx context.Context, now time.Time) (bool, error) {
	if yes, known := q.recent(now); known { // another one has asked meanwhile
		return yes, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
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
