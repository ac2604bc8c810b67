package worker_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

func TestNotBegun_BringsAMessageBackWithNothingCounted(t *testing.T) {
	t.Parallel()
	queues := map[string]func(*v1alpha1.Transport){"an ordinary queue": nil, "a strict one": strict(v1alpha1.OnFailureContinue)}
	for name, change := range queues {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(), change)
			p := newProgram()
			var mu sync.Mutex
			turnedAway := 0
			p.handle = func(_ context.Context, request handler.Request) *retry.Failure {
				mu.Lock()
				defer mu.Unlock()
				if request.ID != "a" || turnedAway == 2 {
					return nil
				}
				turnedAway++
				return &retry.Failure{Source: retry.SourceTimeout, Class: handler.ClassNotBegun, Message: "no process was free"}
			}
			p.started(r)
			r.publish(letters("a", "b")...)
			testtransport.Eventually(t, "both handled", func() bool { return outcomes(r, "succeeded") == 2 })
			calls := p.called()
			if change == nil {
				slices.Sort(calls) // b need not wait for a
			}
			if want := []string{"a1", "a1", "a1", "b1"}; !slices.Equal(calls, want) {
				t.Errorf("calls %v, want %v", calls, want)
			}
			p.check(t)
		})
	}
}

func TestNotBegun_ExpiresAMessageWhoseDeadlinePasses(t *testing.T) {
	t.Parallel()
	queues := map[string]func(*v1alpha1.Transport){"an ordinary queue": nil, "a strict one": strict(v1alpha1.OnFailureBlock)}
	for name, change := range queues {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(), change)
			p := newProgram()
			p.handle = func(_ context.Context, request handler.Request) *retry.Failure {
				if request.Deadline.IsZero() {
					return nil
				}
				time.Sleep(time.Until(request.Deadline))
				return &retry.Failure{Source: retry.SourceTimeout, Class: handler.ClassNotBegun, Message: "no process was free"}
			}
			p.started(r)
			r.publish(amqp091.Publishing{MessageId: "a", Expiration: "1500"}, amqp091.Publishing{MessageId: "b"})
			failed := r.Take("async.failed")
			if failed.MessageId != "a" || text(t, failed.Headers, "redrive-reason") != "Expired" || failed.Headers["redrive-attempts"] != nil {
				t.Errorf("failed: %s with %v", failed.MessageId, failed.Headers)
			}
			testtransport.Eventually(t, "the other", func() bool { return outcomes(r, "succeeded") == 1 })
			calls := p.called()
			slices.Sort(calls)
			if want := []string{"a1", "b1"}; !slices.Equal(calls, want) {
				t.Errorf("calls %v, want %v", calls, want)
			}
		})
	}
}

func TestNotBegun_CannotBeClaimedByAProgram(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(), nil)
	p := newProgram()
	p.handle = func(context.Context, handler.Request) *retry.Failure {
		return &retry.Failure{Source: retry.SourceHandler, Class: handler.ClassNotBegun, Message: "says the program"}
	}
	p.started(r)
	r.publish(letters("a")...)
	if failed := r.Take("async.failed"); text(t, failed.Headers, "redrive-error-class") != handler.ClassNotBegun {
		t.Errorf("failed: %v", failed.Headers)
	}
}

func TestExtended_StaysWithinTheTimeAMessageMayBeHeld(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(), func(transport *v1alpha1.Transport) {
		transport.Spec.Workers[0].Timeout = v1alpha1.NewDuration(time.Second)
		transport.Spec.Broker.ConsumerTimeout = v1alpha1.NewDuration(time.Minute)
	})
	p := newProgram()
	limits := make(chan time.Duration, 2)
	p.handle = func(ctx context.Context, _ handler.Request) *retry.Failure {
		for _, by := range []time.Duration{0, time.Hour} {
			extended, cancel := handler.Extended(ctx, by)
			deadline, _ := extended.Deadline()
			limits <- time.Until(deadline)
			cancel()
		}
		return nil
	}
	p.started(r)
	r.publish(letters("a")...)
	if got := <-limits; got > time.Second || got <= 0 {
		t.Errorf("extended by %s, not by its timeout of 1s", got)
	}
	if got := <-limits; got > 30*time.Second || got < time.Second {
		t.Errorf("extended by %s, and not up to half of the consumer timeout", got)
	}
	testtransport.Eventually(t, "it is handled", func() bool { return outcomes(r, "succeeded") == 1 })
}
