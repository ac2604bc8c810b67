package worker_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

// adviser answers the first attempts of a message with a failure and advice, and later ones with success.
func adviser(t *testing.T, advice string, attempts int64, retryAfter string) (*partner, *atomic.Int64) {
	t.Helper()
	var calls atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		attempt, _ := strconv.ParseInt(r.Header.Get("Redrive-Attempt"), 10, 64)
		if attempt > attempts {
			return
		}
		w.Header().Set("Redrive-Advice", advice)
		w.Header().Set("Retry-After", retryAfter)
		w.WriteHeader(http.StatusConflict)
	}))
	t.Cleanup(server.Close)
	return &partner{Server: server}, &calls
}

// following is a policy without retries of its own, which follows advice.
func following() v1alpha1.RetryPolicySpec {
	return v1alpha1.RetryPolicySpec{MaxRetries: new(int32(0)), HandlerAdvice: v1alpha1.HandlerAdviceFollow}
}

func TestAdvice_FailsAMessageWithoutARetry(t *testing.T) {
	p, calls := adviser(t, "fail", 1, "")
	policy := following()
	policy.MaxRetries, policy.Immediate = new(int32(3)), new(int32(3))
	r := newRig(t, p, policy, nil)
	r.publish(amqp091.Publishing{MessageId: "m-1"})
	testtransport.Eventually(t, "the failure queue", func() bool { return r.Ready("async.failed") == 1 })
	failed := r.Take("async.failed")
	if reason, by := text(t, failed.Headers, "redrive-reason"), text(t, failed.Headers, "redrive-strategy"); reason != "Unrecoverable" || by != "(handler)" {
		t.Errorf("reason %s, by %s", reason, by)
	}
	if calls.Load() != 1 {
		t.Errorf("%d attempts", calls.Load())
	}
}

func TestAdvice_DropsAMessage(t *testing.T) {
	p, calls := adviser(t, "Drop", 1, "")
	r := newRig(t, p, following(), nil)
	r.publish(amqp091.Publishing{})
	testtransport.Eventually(t, "the attempt", func() bool { return calls.Load() == 1 })
	r.empty()
	r.stop()
	if left := r.Ready(testtransport.Queue) + r.Ready("async.failed"); left != 0 || calls.Load() != 1 {
		t.Errorf("%d messages left after %d attempts", left, calls.Load())
	}
}

func TestAdvice_RetriesAfterItsDelayThoughThePolicyHasNone(t *testing.T) {
	p, calls := adviser(t, "RETRY", 2, "1")
	r := newRig(t, p, following(), nil)
	began := time.Now()
	r.publish(amqp091.Publishing{})
	testtransport.Eventually(t, "three attempts", func() bool { return calls.Load() == 3 })
	if took := time.Since(began); took < 1500*time.Millisecond { // a message may be early by 250 ms
		t.Errorf("two delays of a second took %s", took)
	}
	r.empty()
	if failed := r.Ready("async.failed"); failed != 0 {
		t.Errorf("%d messages failed", failed)
	}
}

func TestAdvice_IsIgnoredWhereThePolicySaysSo(t *testing.T) {
	p, calls := adviser(t, "retry", 5, "1")
	policy := following()
	policy.HandlerAdvice = v1alpha1.HandlerAdviceIgnore
	r := newRig(t, p, policy, nil)
	r.publish(amqp091.Publishing{})
	testtransport.Eventually(t, "the failure queue", func() bool { return r.Ready("async.failed") == 1 })
	if reason := text(t, r.Take("async.failed").Headers, "redrive-reason"); reason != "MaxRetries" || calls.Load() != 1 {
		t.Errorf("reason %s after %d attempts", reason, calls.Load())
	}
}

func TestAdvice_DoesNotStopAStrictQueueWithRetries(t *testing.T) {
	p, calls := adviser(t, "retry", 1000, "1")
	policy := testtransport.Explicit(100 * time.Millisecond)
	policy.HandlerAdvice = v1alpha1.HandlerAdviceFollow
	r := newRig(t, p, policy, func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
	})
	r.publish(amqp091.Publishing{})
	testtransport.Eventually(t, "the failure queue", func() bool { return r.Ready("async.failed") == 1 })
	if reason := text(t, r.Take("async.failed").Headers, "redrive-reason"); reason != "MaxRetries" || calls.Load() != 2 {
		t.Errorf("reason %s after %d attempts", reason, calls.Load())
	}
}

func TestRelease_CountsNoAttempt(t *testing.T) {
	var calls atomic.Int64
	attempts := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		attempts <- r.Header.Get("Redrive-Attempt")
		if calls.Add(1) > 2 {
			return
		}
		w.Header().Set("Redrive-Advice", "release")
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusConflict)
	}))
	t.Cleanup(server.Close)
	r := newRig(t, &partner{Server: server}, following(), nil) // which has no retries
	r.publish(amqp091.Publishing{MessageId: "m-1"})
	testtransport.Eventually(t, "the message to be handled", func() bool { return r.handled() == 1 })
	for range 3 {
		if attempt := <-attempts; attempt != "1" {
			t.Errorf("attempt %s", attempt)
		}
	}
	if n := r.counted("redrive_messages_handled_total", "outcome", "deferred"); n != 2 {
		t.Errorf("%v messages were postponed", n)
	}
}

func TestRelease_EndsWithTheMaxAge(t *testing.T) {
	p, _ := adviser(t, "release", 1, "30")
	policy := following()
	policy.MaxAge = v1alpha1.NewDuration(10 * time.Second)
	r := newRig(t, p, policy, nil)
	r.publish(amqp091.Publishing{MessageId: "m-1"})
	testtransport.Eventually(t, "the failure queue", func() bool { return r.Ready("async.failed") == 1 })
	failed := r.Take("async.failed")
	if reason, by := text(t, failed.Headers, "redrive-reason"), text(t, failed.Headers, "redrive-strategy"); reason != "MaxAge" || by != "(handler)" {
		t.Errorf("reason %s, by %s", reason, by)
	}
}
