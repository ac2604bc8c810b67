package worker_test

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

// waiter is a handler with which messages wait before their attempts begin, as they do for a process. Each value of free lets one
// begin, and once it is closed all may.
type waiter struct {
	*program

	free    chan struct{}
	waiting atomic.Int64

	mu    sync.Mutex
	begun []time.Time
}

func newWaiter(handle func(context.Context, handler.Request) *retry.Failure) *waiter {
	w := &waiter{program: newProgram(), free: make(chan struct{})}
	w.handle = handle
	return w
}

func (w *waiter) started(r *rig) {
	r.t.Helper()
	r.stop()
	r.handlers = func(v1alpha1.Handler, int) (handler.Handler, error) { return w, nil }
	r.start(nil)
}

func (w *waiter) Drain() {}

func (w *waiter) Handle(ctx context.Context, request handler.Request) *retry.Failure {
	w.waiting.Add(1)
	defer w.waiting.Add(-1)
	select {
	case <-w.free:
	case <-ctx.Done():
		return handler.NotBegun("none was free")
	}
	if !request.Begin(ctx) {
		return handler.NotBegun("it may not begin any more")
	}
	w.mu.Lock()
	w.begun = append(w.begun, time.Now())
	w.mu.Unlock()
	return w.program.Handle(ctx, request)
}

// times are those at which attempts began.
func (w *waiter) times() []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]time.Time(nil), w.begun...)
}

func failing503(context.Context, handler.Request) *retry.Failure {
	return &retry.Failure{Source: retry.SourceHandler, Status: 503}
}

// A process died and took some seconds to start: all whose turns had come meanwhile were given to it at once.
func TestRateLimit_SpacesCallsThatWaitedForAProcess(t *testing.T) {
	const messages, perSecond = 20, 10
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].Concurrency = new(int32(messages))
		limitedTo(v1alpha1.RateLimit{Name: "all", Type: v1alpha1.RateLimitLeakyBucket, PerSecond: intstr.FromInt32(perSecond)})(tr)
	})
	w := newWaiter(nil)
	w.started(r)
	r.publish(numbered(messages, "a", "b")...)
	testtransport.Eventually(t, "all wait for a process", func() bool { return w.waiting.Load() == messages })
	freed := time.Now()
	close(w.free)
	testtransport.Eventually(t, "all handled", func() bool { return r.handled() == messages })
	// On a busy machine a call begins after its time, and several that are late begin together; none begins before its time, which is an interval
	// after that of the call before, and all are an interval sooner: the limiter's slack.
	const interval = time.Second / perSecond
	for i, at := range w.times() {
		if after, due := at.Sub(freed), time.Duration(i-1)*interval; after < due {
			t.Fatalf("call %d of %d begins %s after there is a process, and is due after %s", i+1, messages, after, due)
		}
	}
}

// Those that wait for their calls to be spaced may be past their deadline when it is their turn.
func TestRateLimit_HandsOverNoMessageThatExpiresMeanwhile(t *testing.T) {
	const messages, perSecond, expires = 20, 5, 6 * time.Second
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].Concurrency = new(int32(messages))
		limitedTo(v1alpha1.RateLimit{Name: "all", Type: v1alpha1.RateLimitLeakyBucket, PerSecond: intstr.FromInt32(perSecond)})(tr)
	})
	w := newWaiter(nil)
	w.started(r)
	all := numbered(messages, "a", "b")
	for i := range all {
		all[i].Expiration = strconv.FormatInt(expires.Milliseconds(), 10)
	}
	published := time.Now()
	r.publish(all...)
	testtransport.Eventually(t, "all wait for a process", func() bool { return w.waiting.Load() == messages })
	received := time.Now()
	close(w.free)
	testtransport.Eventually(t, "all handled or expired", func() bool { return r.handled()+r.Ready("async.failed") == messages })
	if waited := received.Sub(published); waited > expires-time.Second {
		t.Skipf("they came within %s only", waited)
	}
	begun := w.times()
	if failed := r.Ready("async.failed"); failed == 0 || failed+len(begun) != messages {
		t.Errorf("%d were handed over and %d failed, of %d", len(begun), failed, messages)
	}
	for _, at := range begun {
		if late := at.Sub(received.Add(expires)); late > 0 {
			t.Errorf("one was handed over %s after its deadline", late)
		}
	}
}

// The breaker opened, and went on being told of failures: of messages that had its leave, and began when a process was free for each.
func TestBreaker_HoldsBackMessagesThatWaitForAProcess(t *testing.T) {
	const messages, calls = 40, 5
	for name, key := range map[string]*string{"one for all": nil, "one for each key": new("message.headers.a")} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Hour), func(tr *v1alpha1.Transport) {
				tr.Spec.Workers[0].Concurrency = new(int32(messages))
				withBreaker(v1alpha1.CircuitBreaker{MinimumCalls: new(int32(calls)), OpenFor: v1alpha1.NewDuration(time.Hour), Key: key})(tr)
			})
			w := newWaiter(failing503)
			w.started(r)
			r.publish(numbered(messages, "a", "b")...)
			testtransport.Eventually(t, "many wait for a process", func() bool { return w.waiting.Load() >= messages/2 })
			for range calls {
				w.free <- struct{}{}
			}
			testtransport.Eventually(t, "the breaker to open", func() bool { return len(r.worker.Status().Troubles) > 0 })
			close(w.free)
			testtransport.Eventually(t, "nobody waits for a process", func() bool { return w.waiting.Load() == 0 })
			// An attempt is counted when its message is in its lane.
			testtransport.Eventually(t, "the attempts to be counted", func() bool { return outcomes(r, "retried") >= calls })
			if began := len(w.times()); began != calls {
				t.Errorf("%d attempts began, want %d", began, calls)
			}
			if attempts := outcomes(r, "retried"); attempts != calls {
				t.Errorf("%d attempts were counted, want %d", attempts, calls)
			}
		})
	}
}

// A process was replaced, and its program took its time to load. The calls that waited for it counted as slow ones: the breaker opened, and nothing was
// consumed although each call took milliseconds.
func TestBreaker_TakesNoWaitForAProcessForASlowCall(t *testing.T) {
	const messages, slow = 10, 500 * time.Millisecond
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].Concurrency = new(int32(messages))
		withBreaker(v1alpha1.CircuitBreaker{
			MinimumCalls: new(int32(messages)), SlowAfter: v1alpha1.NewDuration(slow), OpenFor: v1alpha1.NewDuration(time.Hour),
		})(tr)
	})
	w := newWaiter(func(context.Context, handler.Request) *retry.Failure { return nil })
	w.started(r)
	r.publish(numbered(messages, "a", "b")...)
	testtransport.Eventually(t, "all wait for a process", func() bool { return w.waiting.Load() == messages })
	time.Sleep(2 * slow) // in which the program loads
	close(w.free)
	testtransport.Eventually(t, "all handled", func() bool { return r.handled() == messages })
	if troubles := r.worker.Status().Troubles; len(troubles) > 0 {
		t.Errorf("the worker has troubles: %v", troubles)
	}
	if seconds := r.counted("redrive_handler_duration_seconds"); seconds > slow.Seconds() {
		t.Errorf("the calls took %v s together, want next to nothing", seconds)
	}
}

// Each time that a message was turned away, because no process was free in time, it counted as a first attempt: after enough of them all
// retries were within the budget.
func TestRetryBudget_CountsNoFirstAttemptThatWasNotBegun(t *testing.T) {
	const messages, vain = 100, 30
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(100*time.Millisecond), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].RetryBudget = &v1alpha1.RetryBudget{Percent: 20, Window: v1alpha1.NewDuration(30 * time.Second), MinPerSecond: new(int32(1))}
	})
	var mu sync.Mutex
	tries, firsts, retries := map[string]int{}, 0, 0
	p := newProgram()
	p.handle = func(_ context.Context, request handler.Request) *retry.Failure {
		mu.Lock()
		defer mu.Unlock()
		if request.Attempt > 1 {
			retries++
			return nil
		}
		if tries[request.ID]++; tries[request.ID] <= vain {
			return handler.NotBegun("no process was free")
		}
		firsts++
		return &retry.Failure{Source: retry.SourceHandler, Status: 503}
	}
	p.started(r)
	r.publish(numbered(messages, "a", "b")...)
	testtransport.Eventually(t, "all failed once", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return firsts == messages
	})
	time.Sleep(2 * time.Second) // in which all would come back
	mu.Lock()
	defer mu.Unlock()
	if most := messages/5 + 10; retries > most {
		t.Errorf("%d retries of %d first attempts, want %d at most", retries, messages, most)
	}
}

// Each time that a message was turned away it took leave for another retry: those that could begin waited for a window in which none was made.
func TestRetryBudget_CountsNoRetryThatWasNotBegun(t *testing.T) {
	const messages, vain = 20, 10
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(100*time.Millisecond), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].RetryBudget = &v1alpha1.RetryBudget{Percent: 100, Window: v1alpha1.NewDuration(time.Minute), MinPerSecond: new(int32(1))}
	})
	var mu sync.Mutex
	tries, retries := map[string]int{}, 0
	p := newProgram()
	p.handle = func(_ context.Context, request handler.Request) *retry.Failure {
		mu.Lock()
		defer mu.Unlock()
		if request.Attempt == 1 {
			return &retry.Failure{Source: retry.SourceHandler, Status: 503}
		}
		if tries[request.ID]++; tries[request.ID] <= vain {
			return handler.NotBegun("no process was free")
		}
		retries++
		return nil
	}
	p.started(r)
	r.publish(numbered(messages, "a", "b")...)
	testtransport.EventuallyWithin(t, time.Minute, "all messages to be retried", func() bool { // without that it takes 200 s
		mu.Lock()
		defer mu.Unlock()
		return retries == messages
	})
}

// Each time that it was not begun it went back to its place, with the broker's count of its deliveries raised. The next worker took them for
// attempts, and for crashes, and gave the message up.
func TestStrict_KeepsAMessageThatIsNotBegunInItsPlace(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), strict(v1alpha1.OnFailureContinue))
	var turnedAway atomic.Int64
	busy := newProgram()
	busy.handle = func(context.Context, handler.Request) *retry.Failure {
		turnedAway.Add(1)
		return handler.NotBegun("no process was free")
	}
	busy.started(r)
	r.publish(letters("a", "b")...)
	testtransport.Eventually(t, "it was turned away often", func() bool { return turnedAway.Load() >= 20 })
	next := newProgram()
	next.started(r)
	testtransport.Eventually(t, "both handled", func() bool { return len(next.called()) == 2 })
	// One delivery more: the worker before has ended with it.
	if calls := next.called(); calls[0] != "a2" || calls[1] != "b1" {
		t.Errorf("calls %v", calls)
	}
	if failed := r.Ready("async.failed"); failed != 0 {
		t.Errorf("%d messages failed", failed)
	}
}

// few is a handler that begins two calls at a time, as a pool of two processes does.
type few struct{ *program }

func (few) Capacity() int { return 2 }

// With fewer processes than its concurrency a worker let messages wait at the pool, in the order in which they came: slow ones of one queue left others 3 %
// of their share.
func TestHandler_GetsNoMoreCallsThanItsCapacity(t *testing.T) {
	const messages = 12
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].Concurrency = new(int32(messages))
	})
	var now, most atomic.Int64
	p := newProgram()
	p.handle = func(context.Context, handler.Request) *retry.Failure {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		time.Sleep(20 * time.Millisecond)
		return nil
	}
	r.stop()
	r.handlers = func(v1alpha1.Handler, int) (handler.Handler, error) { return few{p}, nil }
	r.start(nil)
	r.publish(numbered(messages, "a", "b")...)
	testtransport.Eventually(t, "all handled", func() bool { return r.handled() == messages })
	if most.Load() != 2 {
		t.Errorf("%d calls at a time, want 2", most.Load())
	}
}
