package worker_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

func TestTriesAtOnce_ComeBeforeTheFirstLane(t *testing.T) {
	p := newPartner(t, func(_ *http.Request, attempt int) int {
		if attempt < 5 {
			return 502
		}
		return 200
	})
	policy := testtransport.Explicit(300*time.Millisecond, 300*time.Millisecond)
	policy.Immediate = new(int32(2))
	r := newRig(t, p, policy, nil)
	r.publish(amqp091.Publishing{MessageId: "m-1"})
	testtransport.Eventually(t, "five attempts", func() bool { return len(p.got()) == 5 })
	for i, want := range []string{"0", "0", "0", "1", "2"} {
		if got := p.got()[i]; got.header.Get("Redrive-Retries") != want {
			t.Errorf("attempt %d says %s retries, want %s", i+1, got.header.Get("Redrive-Retries"), want)
		}
	}
	if got := p.got(); got[3].at.Sub(got[2].at) < 300*time.Millisecond {
		t.Errorf("the fourth attempt came %s after the third: not by a lane", got[3].at.Sub(got[2].at))
	}
}

// Its tries at once were made anew after each lost connection.
func TestTriesAtOnce_AreNotRepeatedAfterAnInterruption(t *testing.T) {
	policy := testtransport.Explicit(100 * time.Millisecond)
	policy.Immediate = new(int32(5))
	r := newRig(t, newPartner(t, always(200)), policy, nil)
	p, calls := newProgram(), make(chan struct{}, 20)
	cut := make(chan struct{})
	p.handle = func(context.Context, handler.Request) *retry.Failure {
		calls <- struct{}{}
		if len(calls) == 3 {
			r.proxy.Cut()
			<-cut
		}
		return &retry.Failure{Source: retry.SourceHandler, Status: 503}
	}
	p.started(r)
	r.handleQuarantine()
	r.publish(amqp091.Publishing{MessageId: "a"})
	testtransport.Eventually(t, "the connection is cut in the third try", func() bool { return len(calls) == 3 })
	testtransport.Eventually(t, "it is called again", func() bool { return len(calls) > 3 })
	close(cut)
	testtransport.Eventually(t, "it fails", func() bool { return r.Ready("async.failed") == 1 })
	if got, want := p.called(), []string{"a1", "a2", "a3", "a1", "a2"}; !slices.Equal(got, want) {
		t.Errorf("calls %v, want %v: no try at once, and its one retry", got, want)
	}
}

func TestTriesAtOnce_LeaveAFailureToItsStrategy(t *testing.T) {
	p := newPartner(t, func(_ *http.Request, attempt int) int {
		if attempt == 1 {
			return 429
		}
		return 200
	})
	policy := testtransport.Explicit(100 * time.Millisecond)
	policy.Immediate = new(int32(5))
	policy.Strategies = []v1alpha1.Strategy{{
		Name: "throttled", When: "error.status == 429",
		Backoff: &v1alpha1.Backoff{Type: v1alpha1.BackoffConstant, Delay: v1alpha1.NewDuration(500 * time.Millisecond)},
	}}
	r := newRig(t, p, policy, nil)
	r.publish(amqp091.Publishing{})
	testtransport.Eventually(t, "two attempts", func() bool { return len(p.got()) == 2 })
	if got := p.got(); got[1].at.Sub(got[0].at) < 500*time.Millisecond {
		t.Errorf("tried again after %s", got[1].at.Sub(got[0].at))
	}
}

func TestWorker_FailsAtOnceWhatTheHandlerCannotDecode(t *testing.T) {
	p := newPartner(t, always(http.StatusUnsupportedMediaType))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.publish(amqp091.Publishing{})
	if reason := text(t, r.Take("async.failed").Headers, "redrive-reason"); reason != "Undecodable" || len(p.got()) != 1 {
		t.Errorf("reason %s after %d attempts, want Undecodable after one", reason, len(p.got()))
	}
}

func TestRetryPriority_AppliesInTheLaneAndKeepsTheProducers(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name      string
		policy    v1alpha1.RetryPriority
		producers uint8
		lane      string
		want      uint8
	}{
		{"higher", v1alpha1.RetryPriorityHigher, 3, "async.fallback.1h.high", 9},
		{"the same", v1alpha1.RetryPrioritySame, 3, "async.fallback.1h", 3},
		{"lower", v1alpha1.RetryPriorityLower, 3, "async.fallback.1h", 1},
		{"the same as far as one lane has one priority", v1alpha1.RetryPrioritySame, 8, "async.fallback.1h", 4},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := newPartner(t, always(502))
			policy := testtransport.Explicit(time.Hour, 100*time.Millisecond)
			policy.RetryPriority = c.policy
			policy.Strategies = []v1alpha1.Strategy{{Name: "last", When: fmt.Sprintf("message.priority == %d && attempt == 2", c.producers), Action: v1alpha1.ActionFail}}
			r := newRig(t, p, policy, nil)
			r.publish(amqp091.Publishing{MessageId: "m-1", Priority: c.producers})
			waiting := r.Take(c.lane)
			if waiting.Priority != c.want {
				t.Errorf("priority %d in the lane, want %d", waiting.Priority, c.want)
			}
			delete(waiting.Headers, "redrive-history") // it is not to wait
			waiting.Headers["redrive-attempts"] = int64(1)
			r.Publish("async.return", testtransport.Queue, amqp091.Publishing{MessageId: "m-1", Headers: waiting.Headers, Priority: waiting.Priority})
			failed := r.Take("async.failed")
			if failed.Priority != c.producers || text(t, failed.Headers, "redrive-strategy") != "last" {
				t.Errorf("priority %d in the failure queue, strategy %v; want the producer's %d in both", failed.Priority, failed.Headers["redrive-strategy"], c.producers)
			}
		})
	}
}

func TestRetryPriority_TakesAnOrdinaryLaneWithoutAHighOne(t *testing.T) {
	p := newPartner(t, func(_ *http.Request, attempt int) int {
		if attempt == 1 {
			return 502
		}
		return 200
	})
	policy := testtransport.Explicit(200 * time.Millisecond)
	policy.RetryPriority = v1alpha1.RetryPriorityHigher
	r := newRig(t, p, policy, nil)
	if _, err := r.Channel().QueueDelete("async.fallback.200ms.high", false, false, false); err != nil {
		t.Fatal(err)
	}
	r.publish(amqp091.Publishing{})
	testtransport.Eventually(t, "the second attempt", func() bool { return len(p.got()) == 2 })
}

// A call that hangs kept its place for all of its tries: with ten of them and a timeout of 30 s, all other queues stood still for minutes.
func TestTriesAtOnce_LetAnotherQueueHaveThePlaceBetweenThem(t *testing.T) {
	const tries = 5
	policy := testtransport.Explicit(time.Second)
	policy.Immediate = new(int32(tries))
	r := newRigAlone(t, newPartner(t, always(200)), policy, func(tr *v1alpha1.Transport) {
		withQueues(nil, "free")(tr)
		tr.Spec.Workers[0].Concurrency = new(int32(1))
	})
	p := newProgram()
	p.handle = func(ctx context.Context, request handler.Request) *retry.Failure {
		if request.ID == "b" {
			return nil
		}
		if len(p.called()) == 1 {
			r.Publish("async", "free", amqp091.Publishing{MessageId: "b"}) //nolint:contextcheck // with that of the test
			testtransport.Eventually(t, "the worker to have the other message", func() bool { return r.Ready("free") == 0 })
		}
		time.Sleep(50 * time.Millisecond) // until it asks for a place, within one of the tries
		return failing503(ctx, request)
	}
	p.started(r)
	r.publish(amqp091.Publishing{MessageId: "a"})
	testtransport.Eventually(t, "the tries to end", func() bool { return len(p.called()) >= tries+2 })
	calls := p.called()
	other, last := slices.Index(calls, "b1"), slices.Index(calls, fmt.Sprint("a", tries+1))
	if other < 0 || last < 0 || other > last {
		t.Errorf("calls %v, want b1 between those of a", calls)
	}
}
