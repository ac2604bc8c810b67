package worker_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
)

func numbered(n int, header, value string) []amqp091.Publishing {
	all := make([]amqp091.Publishing, n)
	for i := range all {
		all[i] = amqp091.Publishing{MessageId: value + strconv.Itoa(i), Headers: amqp091.Table{header: value}}
	}
	return all
}

func limitedTo(limits ...v1alpha1.RateLimit) func(*v1alpha1.Transport) {
	return func(t *v1alpha1.Transport) { t.Spec.Workers[0].RateLimits = limits }
}

func TestRateLimit_OfAKeyHoldsBackNoOtherAndCountsNoAttempt(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), limitedTo(v1alpha1.RateLimit{
		Name: "partner", PerSecond: intstr.FromInt32(2), Burst: new(int32(1)), Key: new("message.headers.partner"),
	}))
	r.publish(numbered(8, "partner", "slow")...)
	r.publish(numbered(1, "partner", "other")...)
	testtransport.Eventually(t, "the other partner's message", func() bool {
		for _, got := range p.got() {
			if got.header.Get("Redrive-Header-Partner") == "other" {
				return true
			}
		}
		return false
	})
	if n := len(p.got()); n == 9 {
		t.Error("all messages of the limited partner came before the other's")
	}
	testtransport.Eventually(t, "all handled", func() bool { return len(p.got()) == 9 })
	got := p.got()
	if span := got[8].at.Sub(got[0].at); span < 3*time.Second {
		t.Errorf("8 messages within %s, want 2 a second at most", span)
	}
	for _, request := range got {
		if request.header.Get("Redrive-Attempt") != "1" {
			t.Errorf("a message was attempted %s times", request.header.Get("Redrive-Attempt"))
		}
	}
	if r.counted("redrive_rate_limited_total") == 0 {
		t.Error("nothing was counted as turned away")
	}
}

// Messages that a slow limit for all refuses left their queue for lanes as fast as they came.
func TestRateLimit_ForAllLeavesTheBacklogInItsQueue(t *testing.T) {
	const backlog = 60
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), limitedTo(v1alpha1.RateLimit{
		Name: "all", PerSecond: intstr.FromString("0.01"), Burst: new(int32(1)),
	}))
	r.publish(numbered(backlog, "a", "b")...)
	testtransport.Eventually(t, "five to be refused", func() bool { return r.counted("redrive_rate_limited_total") >= 5 })
	r.stop()
	if n := len(p.got()); n != 1 || r.Ready(testtransport.Queue) != backlog-1 {
		t.Errorf("%d handled and %d left in the queue", n, r.Ready(testtransport.Queue))
	}
}

// Messages that waited for their turn at a limit slept on where it was taken away, and kept all places at the handler.
func TestRateLimit_HoldsNothingBackOnceItIsNotConfigured(t *testing.T) {
	slow := v1alpha1.RateLimit{Name: "all", PerSecond: intstr.FromString("0.001"), Burst: new(int32(1))}
	keyed := slow
	keyed.Key = new("message.headers.a")
	for name, c := range map[string]struct {
		limit  v1alpha1.RateLimit
		change func(*v1alpha1.Transport)
		after  func(*compile.RateLimit)
	}{
		"made fast": {limit: slow, after: func(l *compile.RateLimit) { l.PerSecond, l.Burst = 10000, 10000 }},
		"renamed":   {limit: slow, after: func(l *compile.RateLimit) { l.Name, l.PerSecond, l.Burst = "other", 10000, 10000 }},
		"taken out": {limit: slow}, "of a queue in order": {limit: slow, change: strict(v1alpha1.OnFailureContinue)},
		"with a key, of a queue in order": {limit: keyed, change: strict(v1alpha1.OnFailureContinue)},
	} {
		t.Run(name, func(t *testing.T) {
			const backlog = 30
			p := newPartner(t, always(200))
			r := newRig(t, p, testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
				limitedTo(c.limit)(tr)
				if c.change != nil {
					c.change(tr)
				}
			})
			r.publish(numbered(backlog, "a", "b")...)
			testtransport.Eventually(t, "one to be refused", func() bool { return r.counted("redrive_rate_limited_total") > 0 })
			config := r.config
			config.RateLimits = slices.Clone(config.RateLimits)
			if c.after == nil {
				config.RateLimits = nil
			} else {
				c.after(&config.RateLimits[0])
			}
			if err := r.worker.Reload(config); err != nil {
				t.Fatal(err)
			}
			testtransport.Eventually(t, "all handled", func() bool { return r.handled() == backlog })
		})
	}
}

// An autoscaler takes all pods but one away: that had turns at a thousandth of the rate for the next minutes, and went on by them.
func TestRateLimit_IsWholeAtOnceForThePodThatIsLeft(t *testing.T) {
	const backlog, pods, turnsAhead = 30, 1000, 225 * time.Second
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), limitedTo(v1alpha1.RateLimit{Name: "all", PerSecond: intstr.FromInt32(20), Burst: new(int32(1))}))
	scaled := r.config
	scaled.Replicas = pods
	if err := r.worker.Reload(scaled); err != nil {
		t.Fatal(err)
	}
	r.publish(numbered(backlog, "a", "b")...)
	testtransport.Eventually(t, "one to be refused", func() bool { return r.counted("redrive_rate_limited_total") > 0 })
	scaled.Replicas = 1
	if err := r.worker.Reload(scaled); err != nil {
		t.Fatal(err)
	}
	testtransport.EventuallyWithin(t, turnsAhead/2, "all handled", func() bool { return r.handled() == backlog })
}

// A message that expired while it waited for its turn used that up, and later ones expired behind it: the handler got none.
func TestRateLimit_GivesNoTurnToMessagesThatExpire(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), limitedTo(v1alpha1.RateLimit{
		Name: "all", PerSecond: intstr.FromString("0.2"), Burst: new(int32(1)),
	}))
	live := func(n int, expiration string) {
		messages := numbered(n, "a", "b")
		for i := range messages {
			messages[i].Expiration = expiration
		}
		r.publish(messages...)
	}
	live(5, "2000")
	testtransport.Eventually(t, "four to expire", func() bool { return r.Ready("async.failed") == 4 })
	live(1, "20000") // its turn would be the fifth, after 25 s
	testtransport.Eventually(t, "the last one handled", func() bool { return r.handled() == 2 })
}

func TestRateLimit_LeakyBucketSpreadsTheCalls(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), limitedTo(v1alpha1.RateLimit{
		Name: "all", Type: v1alpha1.RateLimitLeakyBucket, PerSecond: intstr.FromString("10"),
	}))
	r.publish(numbered(10, "a", "b")...)
	testtransport.Eventually(t, "all handled", func() bool { return len(p.got()) == 10 })
	got := p.got()
	for i := range got {
		if after, due := got[i].at.Sub(got[0].at), time.Duration(i)*100*time.Millisecond; after < due-100*time.Millisecond {
			t.Errorf("call %d comes %s after the first, and is due after %s: a burst", i+1, after, due)
		}
	}
	if r.counted("redrive_rate_limited_total") != 0 {
		t.Error("a message was turned away although it could wait")
	}
}

// Messages of a key whose turns came while others had all places went to the handler at once, when there were some.
func TestRateLimit_SpacesCallsThatWaitedForAPlace(t *testing.T) {
	const perSecond, slow, fast = 4, 10, 6
	free := make(chan struct{})
	p := newPartner(t, func(r *http.Request, _ int) int {
		if strings.HasPrefix(r.Header.Get("Redrive-Header-Partner"), "slow") {
			<-free
		}
		return 200
	})
	r := newRig(t, p, testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].Concurrency = new(int32(slow))
		limitedTo(v1alpha1.RateLimit{
			Name: "partner", Type: v1alpha1.RateLimitLeakyBucket, PerSecond: intstr.FromInt32(perSecond), Key: new("message.headers.partner"),
		})(tr)
	})
	times := func(partner string) (times []time.Time) {
		for _, got := range p.got() {
			if strings.HasPrefix(got.header.Get("Redrive-Header-Partner"), partner) {
				times = append(times, got.at)
			}
		}
		return times
	}
	for i := range 300 {
		r.publish(numbered(1, "partner", strconv.Itoa(i))...)
	}
	testtransport.Eventually(t, "a prefetch that has grown", func() bool {
		return len(p.got()) == 300 && r.counted("redrive_prefetch") >= slow+fast
	})
	for i := range slow - 1 {
		r.publish(numbered(1, "partner", "slow"+strconv.Itoa(i))...)
	}
	testtransport.Eventually(t, "others have all places but one", func() bool { return len(times("slow")) == slow-1 })
	r.publish(numbered(fast, "partner", "fast")...)
	testtransport.Eventually(t, "a message at the handler", func() bool { return len(times("fast")) > 0 })
	r.publish(numbered(1, "partner", "slow and last")...)
	testtransport.Eventually(t, "others have all places", func() bool { return len(times("slow")) == slow })
	time.Sleep(fast * time.Second / perSecond) // until their turns have come
	freed := time.Now()
	close(free)
	testtransport.Eventually(t, "all handled", func() bool { return len(times("fast")) == fast && len(times("slow")) == slow })
	// The first was called before, one may go at once, and each of the others an interval after the one before, or later on a busy machine.
	for i, at := range times("fast")[1:] {
		if after, due := at.Sub(freed), time.Duration(i-1)*time.Second/perSecond; after < due {
			t.Errorf("call %d of %d comes %s after there was a place, and is due after %s", i+2, fast, after, due)
		}
	}
}

func TestRetryBudget_HoldsBackRetriesWithoutCountingAnAttempt(t *testing.T) {
	const messages = 40
	p := newPartner(t, func(_ *http.Request, attempt int) int {
		if attempt == 1 {
			return 502
		}
		return 200
	})
	r := newRig(t, p, testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].RetryBudget = &v1alpha1.RetryBudget{Percent: 10, Window: v1alpha1.NewDuration(2 * time.Second), MinPerSecond: new(int32(8))}
	})
	r.publish(numbered(messages, "a", "b")...)
	exhausted := false
	testtransport.Eventually(t, "all handled", func() bool {
		for _, trouble := range r.worker.Status().Troubles {
			exhausted = exhausted || trouble.Reason == v1alpha1.ReasonRetryBudgetExhausted
		}
		return len(p.got()) == 2*messages
	})
	r.empty()
	if !exhausted {
		t.Error("the worker never said that the budget is exhausted")
	}
	if failed := r.Ready("async.failed"); failed != 0 {
		t.Errorf("%d messages failed", failed)
	}
	got := p.got()
	if span := got[2*messages-1].at.Sub(got[0].at); span < 2*time.Second {
		t.Errorf("%d retries within %s, want 8 a second or so", messages, span)
	}
	testtransport.Eventually(t, "the end of the trouble", func() bool { return len(r.worker.Status().Troubles) == 0 })
}

// broken is a partner that fails while down is true.
func broken(t *testing.T, down *atomic.Bool) *partner {
	t.Helper()
	return newPartner(t, func(*http.Request, int) int {
		if down.Load() {
			return 503
		}
		return 200
	})
}

func withBreaker(breaker v1alpha1.CircuitBreaker) func(*v1alpha1.Transport) {
	return func(t *v1alpha1.Transport) { t.Spec.Workers[0].CircuitBreaker = &breaker }
}

func TestBreaker_LeavesABrokenPartnerAloneAndFailsNothing(t *testing.T) {
	const messages = 500
	var down atomic.Bool
	down.Store(true)
	p := broken(t, &down)
	r := newRig(t, p, testtransport.Explicit(200*time.Millisecond, 200*time.Millisecond), withBreaker(v1alpha1.CircuitBreaker{
		MinimumCalls: new(int32(10)), OpenFor: v1alpha1.NewDuration(time.Second), MaxOpenFor: v1alpha1.NewDuration(time.Second),
	}))
	r.publish(numbered(messages, "a", "b")...)
	open := func() bool {
		troubles := r.worker.Status().Troubles
		return len(troubles) == 1 && troubles[0].Reason == v1alpha1.ReasonCircuitOpen
	}
	testtransport.Eventually(t, "the breaker to open", open)
	testtransport.Eventually(t, "nothing on loan", func() bool { return r.Ready(testtransport.Queue)+r.Waiting() == messages })
	if err := r.worker.Ready(); err != nil {
		t.Errorf("not ready while the breaker is open: %v", err)
	}
	testtransport.Eventually(t, "a probe or two", func() bool { return r.counted("redrive_circuit_breaker_changes_total") >= 5 })
	if calls := len(p.got()); calls > 50 {
		t.Errorf("%d calls of a partner that is down", calls)
	}
	down.Store(false)
	testtransport.Eventually(t, "all handled", func() bool { return r.handled() == messages })
	if failed := r.Ready("async.failed"); failed != 0 {
		t.Errorf("%d messages failed", failed)
	}
	testtransport.Eventually(t, "the breaker to close", func() bool { return len(r.worker.Status().Troubles) == 0 })
}

func TestBreaker_OfAKeyHoldsBackItsMessagesAlone(t *testing.T) {
	const messages = 60
	var down atomic.Bool
	down.Store(true)
	p := newPartner(t, func(r *http.Request, _ int) int {
		if r.Header.Get("Redrive-Header-Partner") == "sick" && down.Load() {
			return 503
		}
		return 200
	})
	r := newRig(t, p, testtransport.Explicit(200*time.Millisecond, 200*time.Millisecond), withBreaker(v1alpha1.CircuitBreaker{
		MinimumCalls: new(int32(5)), OpenFor: v1alpha1.NewDuration(time.Second), MaxOpenFor: v1alpha1.NewDuration(time.Second),
		Key: new("message.headers.partner"),
	}))
	r.publish(numbered(messages, "partner", "sick")...)
	testtransport.Eventually(t, "the breaker to open", func() bool {
		troubles := r.worker.Status().Troubles
		return len(troubles) == 1 && troubles[0].Subject == "sick"
	})
	r.publish(numbered(messages, "partner", "well")...)
	testtransport.Eventually(t, "the other partner's messages", func() bool { return r.handled() == messages })
	down.Store(false)
	testtransport.Eventually(t, "all handled", func() bool { return r.handled() == 2*messages })
	if failed := r.Ready("async.failed"); failed != 0 {
		t.Errorf("%d messages failed", failed)
	}
}

// Its messages have failed, and none of them comes any more: the worker said until it ended that they wait.
func TestBreaker_OfAKeyWithoutFurtherMessagesCloses(t *testing.T) {
	r := newRig(t, newPartner(t, always(503)), testtransport.Explicit(), withBreaker(v1alpha1.CircuitBreaker{
		MinimumCalls: new(int32(1)), OpenFor: v1alpha1.NewDuration(time.Second), MaxOpenFor: v1alpha1.NewDuration(time.Second),
		Key: new("message.headers.partner"),
	}))
	r.publish(numbered(1, "partner", "sick")...)
	testtransport.Eventually(t, "the breaker to open", func() bool { return r.counted("redrive_circuit_breakers", "keyed", "true") == 1 })
	r.Take("async.failed")
	testtransport.Eventually(t, "the breaker to close", func() bool {
		return len(r.worker.Status().Troubles) == 0 && r.counted("redrive_circuit_breakers") == 0
	})
}

func TestBreaker_OpensOnRetryAfterWhereThatIsAskedFor(t *testing.T) {
	var told atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if !told.Swap(true) {
			w.Header().Set("Retry-After", "600")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(server.Close)
	policy := testtransport.Explicit(200*time.Millisecond, 200*time.Millisecond)
	r := newRig(t, &partner{Server: server}, policy, withBreaker(v1alpha1.CircuitBreaker{
		OpenFor: v1alpha1.NewDuration(time.Second), MaxOpenFor: v1alpha1.NewDuration(3 * time.Second), OpenOnRetryAfter: new(true),
		Key: new("message.headers.partner"),
	}))
	r.publish(numbered(1, "partner", "sick")...)
	testtransport.Eventually(t, "the breaker to open after one failure", func() bool { return len(r.worker.Status().Troubles) == 1 })
	r.publish(numbered(2, "partner", "sick")...)
	r.publish(numbered(1, "partner", "well")...)
	testtransport.Eventually(t, "the other partner's message", func() bool { return r.handled() > 0 })
	if handled := r.handled(); handled != 1 || len(r.worker.Status().Troubles) != 1 {
		t.Errorf("%d handled, troubles %v: want the other partner's alone, while the breaker is open", handled, r.worker.Status().Troubles)
	}
	testtransport.Eventually(t, "all handled", func() bool { return r.handled() == 4 })
	if failed := r.counted("redrive_messages_handled_total", "outcome", "retried"); failed != 1 {
		t.Errorf("%v attempts failed", failed)
	}
	if opened := r.counted("redrive_circuit_breaker_changes_total", "state", "Open"); opened != 1 {
		t.Errorf("opened %v times", opened)
	}
}

func TestBreaker_BelievesNoAdviceThatThePolicyIgnores(t *testing.T) {
	for _, advice := range []string{"drop", "fail", "release"} {
		t.Run(advice, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Redrive-Advice", advice)
				w.WriteHeader(http.StatusServiceUnavailable)
			}))
			t.Cleanup(server.Close)
			policy := testtransport.Explicit(time.Second, time.Second)
			policy.HandlerAdvice = v1alpha1.HandlerAdviceIgnore
			r := newRig(t, &partner{Server: server}, policy, withBreaker(v1alpha1.CircuitBreaker{
				MinimumCalls: new(int32(3)), OpenFor: v1alpha1.NewDuration(time.Minute),
			}))
			r.publish(numbered(30, "a", "b")...)
			testtransport.Eventually(t, "the breaker to open", func() bool { return len(r.worker.Status().Troubles) == 1 })
			if failed := r.Ready("async.failed"); failed > 0 {
				t.Errorf("%d messages failed", failed)
			}
		})
	}
}

// handled is the number of messages that left the topology by success.
func (r *rig) handled() int {
	r.t.Helper()
	return int(r.counted("redrive_messages_handled_total", "outcome", "succeeded"))
}

// counted sums up a counter or gauge over its labels, or over those with one of a value.
func (r *rig) counted(name string, label ...string) float64 {
	r.t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	var sum float64
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			matches := len(label) == 0
			for _, pair := range metric.GetLabel() {
				matches = matches || pair.GetName() == label[0] && pair.GetValue() == label[1]
			}
			if matches {
				sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + metric.GetHistogram().GetSampleSum()
			}
		}
	}
	return sum
}

func TestBreaker_CallsADownPartnerLessThanAHundredthAsOften(t *testing.T) {
	testtransport.Long(t)
	const messages, outage = 10_000, time.Minute
	var down atomic.Bool
	down.Store(true)
	p := broken(t, &down)
	delays := []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second}
	r := newRig(t, p, testtransport.Explicit(delays...), withBreaker(v1alpha1.CircuitBreaker{}))
	second := prometheus.NewRegistry()
	r.run(second, nil)
	r.publish(numbered(messages, "a", "b")...)
	testtransport.Eventually(t, "the first call", func() bool { return len(p.got()) > 0 })
	began := p.got()[0].at
	testtransport.Eventually(t, "the end of the outage", func() bool { return time.Since(began) > outage })
	calls := len(p.got())
	down.Store(false)
	// By its delays alone each message would have been tried once at the beginning and once after each delay.
	plain := messages
	var at time.Duration
	for _, delay := range delays {
		if at += delay; at < outage {
			plain += messages
		}
	}
	t.Logf("%d calls within %s, plain retries make %d: %.2f %%", calls, outage, plain, 100*float64(calls)/float64(plain))
	if calls*100 >= plain {
		t.Errorf("%d calls, want less than 1 %% of %d", calls, plain)
	}
	testtransport.Eventually(t, "all handled", func() bool { return r.Stored() == 0 && len(p.got()) >= calls+messages })
	r.stop()
	if failed := r.Ready("async.failed"); failed != 0 {
		t.Errorf("%d messages failed", failed)
	}
	handled := map[string]bool{}
	for _, got := range p.got()[calls:] {
		handled[got.header.Get("Redrive-Message-Id")] = true
	}
	if len(handled) != messages {
		t.Errorf("%d of %d messages handled", len(handled), messages)
	}
}

func TestBreaker_HoldsNothingBackOnceItIsNotConfigured(t *testing.T) {
	inOrder := strict(v1alpha1.OnFailureContinue)
	for name, c := range map[string]struct {
		backlog int
		change  func(*v1alpha1.Transport)
		key     *string
	}{
		"for all":                         {50, func(*v1alpha1.Transport) {}, nil},
		"of a queue in order":             {10, inOrder, nil},
		"with a key, of a queue in order": {10, inOrder, new("message.headers.a")},
	} {
		t.Run(name, func(t *testing.T) {
			var down atomic.Bool
			down.Store(true)
			r := newRig(t, broken(t, &down), testtransport.Explicit(slices.Repeat([]time.Duration{200 * time.Millisecond}, 6)...), func(tr *v1alpha1.Transport) {
				withBreaker(v1alpha1.CircuitBreaker{MinimumCalls: new(int32(5)), OpenFor: v1alpha1.NewDuration(time.Hour), Key: c.key})(tr)
				c.change(tr)
			})
			r.publish(numbered(c.backlog, "a", "b")...)
			testtransport.Eventually(t, "the breaker to open", func() bool { return len(r.worker.Status().Troubles) == 1 })
			down.Store(false)
			config := r.config
			config.CircuitBreaker = nil
			if err := r.worker.Reload(config); err != nil {
				t.Fatal(err)
			}
			testtransport.Eventually(t, "all handled", func() bool { return r.handled() == c.backlog })
			if troubles := r.worker.Status().Troubles; len(troubles) != 0 {
				t.Errorf("the worker still says %v", troubles)
			}
		})
	}
}

func TestBreaker_TakesNoTurnsOfALimitThatAllShare(t *testing.T) {
	var down atomic.Bool
	down.Store(true)
	p := newPartner(t, func(r *http.Request, _ int) int {
		if r.Header.Get("Redrive-Header-Partner") == "sick" && down.Load() {
			return 503
		}
		return 200
	})
	r := newRig(t, p, testtransport.Explicit(time.Hour), func(tr *v1alpha1.Transport) {
		withBreaker(v1alpha1.CircuitBreaker{
			MinimumCalls: new(int32(5)), OpenFor: v1alpha1.NewDuration(time.Minute), Key: new("message.headers.partner"),
		})(tr)
		limitedTo(v1alpha1.RateLimit{Name: "all", Type: v1alpha1.RateLimitLeakyBucket, PerSecond: intstr.FromInt32(10)})(tr)
	})
	r.publish(numbered(500, "partner", "sick")...)
	testtransport.Eventually(t, "the breaker to open", func() bool { return len(r.worker.Status().Troubles) == 1 })
	r.publish(numbered(20, "partner", "well")...)
	// At 10 a second these take 2 s; behind the turns of 500 others they would take 50.
	testtransport.Eventually(t, "the other partner's messages", func() bool { return r.handled() == 20 })
}
