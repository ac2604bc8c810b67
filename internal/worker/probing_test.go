package worker

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/resilience"
	"redrive.dev/redrive/internal/retry"
)

// probing is a worker whose breaker of one partner probes, beside a limit that all share, and makes jobs of that partner.
func probing(t *testing.T) (w *Worker, next func() *job) {
	t.Helper()
	now := time.Now()
	config := compile.Config{
		Concurrency: 4, Timeout: *v1alpha1.NewDuration(time.Second), ConsumerTimeout: *v1alpha1.NewDuration(time.Hour),
		RateLimits: []compile.RateLimit{{Name: "all", PerSecond: 1, Burst: 20}},
		CircuitBreaker: &compile.CircuitBreaker{
			FailurePercent: 50, SlowPercent: 100, MinimumCalls: 1, Window: *v1alpha1.NewDuration(time.Second), Key: "message.queue",
			OpenFor: *v1alpha1.NewDuration(time.Second), MaxOpenFor: *v1alpha1.NewDuration(time.Minute),
		},
	}
	protection, err := newProtection(&config, &protection{}, func(string, resilience.State, resilience.State, string) {}, now)
	if err != nil {
		t.Fatal(err)
	}
	w = &Worker{options: Options{Now: func() time.Time { return now }, Metrics: NewMetrics(prometheus.NewRegistry())}}
	p := &program{config: config, protection: protection}
	next = func() *job {
		j := &job{delivery: &amqp.Delivery{}, program: p, received: time.Now(), view: retry.Message{Queue: "partner"}}
		j.view.Budget = &j.budget
		return j
	}
	breaker := w.breakerOf(next())
	breaker.Pause(now, time.Second, "the partner asks for it")
	now = now.Add(2 * time.Second)
	if state := breaker.State(now); state != resilience.Probing {
		t.Fatalf("the breaker is %s", state)
	}
	return w, next
}

// through takes a job through the stages that protect the handler.
func (w *Worker) through(t *testing.T, j *job) (outcome, bool) {
	t.Helper()
	for _, decides := range []stage{breakerOpen, limited, breakerPermit} {
		if o, decided := decides(w, t.Context(), j); decided {
			return o, true
		}
	}
	return outcome{}, false
}

// While a partner that hangs was probed, its messages waited for turns of the limit that all share, and were sent away with them.
func TestBreaker_LetsNoMessageItKeepsOutTakeATurn(t *testing.T) {
	w, next := probing(t)
	probe := next()
	if _, decided := w.through(t, probe); decided || len(probe.permits.turns) != 1 {
		t.Fatal("nobody probes")
	}
	for i := range 10 {
		j := next()
		if o, decided := w.through(t, j); !decided || o.kind != deferred || len(j.permits.turns) != 0 {
			t.Errorf("message %d, while another one probes: decided %v, %v, with %d turns", i, decided, o.kind, len(j.permits.turns))
		}
	}
	probe.permits.giveBack(w.options.Now())
	if _, decided := w.through(t, next()); decided {
		t.Error("nobody probes when the probe is over")
	}
}

// All of them passed while the one that was to probe still waited for its turn.
func TestBreaker_KeepsThePlaceOfAProbeThatWaits(t *testing.T) {
	w, next := probing(t)
	probe := next()
	if _, decided := breakerOpen(w, t.Context(), probe); decided {
		t.Fatal("nobody probes")
	}
	if o, decided := breakerOpen(w, t.Context(), next()); !decided || o.kind != deferred {
		t.Errorf("another one has passed: %v", o.kind)
	}
	held := probe.permits.permit
	if _, decided := breakerPermit(w, t.Context(), probe); decided || held == (resilience.Permit{}) || probe.permits.permit != held {
		t.Error("it does not go on with the place that it has")
	}
	// One that is held back in its place, such as by the retry budget, lets others probe.
	probe.permits.leaveBreaker(w.options.Now())
	if _, decided := breakerOpen(w, t.Context(), next()); decided {
		t.Error("nobody may probe in the place that was left")
	}
}
