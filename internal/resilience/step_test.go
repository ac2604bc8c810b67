package resilience

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"redrive.dev/redrive/internal/testclock"
)

// guarded are a guard of each kind, for one side of a comparison.
type guarded struct {
	limiters []*Limiter
	budget   *Budget
	breaker  *Breaker
}

func newGuarded() *guarded {
	return &guarded{
		limiters: []*Limiter{
			NewLimiter(LimiterConfig{PerSecond: 5, Burst: 3}, 0, seeded()),
			NewLimiter(LimiterConfig{PerSecond: 2, Burst: 10, Smooth: true}, time.Second, seeded()),
		},
		budget:  NewBudget(BudgetConfig{Percent: 20, Window: 10 * time.Second, MinPerSecond: 1}, seeded()),
		breaker: NewBreaker(aBreaker(), seeded(), nil),
	}
}

// said is all that they say at a time to a message that comes then, and whose call has that outcome.
type said struct {
	turns            [2]Turn
	retryIn, admitIn time.Duration
	retry, admitted  bool
	exhausted        bool
	state            State
	allowed          int
}

func (g *guarded) ask(now time.Time, key string, outcome Outcome) (s said) {
	for i, limiter := range g.limiters {
		s.turns[i] = limiter.Take(key, now)
	}
	if outcome == Success {
		g.budget.First(now)
	}
	leave := g.budget.Retry(now)
	s.retryIn, s.retry = leave.Wait, leave.OK
	s.exhausted = g.budget.Exhausted(now)
	var permit Permit
	permit, s.admitIn, s.admitted = g.breaker.Admit(now, timeout)
	permit.Done(now, time.Millisecond, outcome)
	s.state, s.allowed = g.breaker.State(now), g.breaker.Allowed(now)
	return s
}

// The clock of the system steps an hour forward and back as often as it likes: limits neither stand still nor let more through, the budget
// keeps its window, and an open breaker closes in its time. All is as on a system whose clock is left alone.
func TestGuards_WallClockThatIsSetChangesNothing(t *testing.T) {
	start := time.Now()
	rapid.Check(t, func(t *rapid.T) {
		steady, shaken := newGuarded(), newGuarded()
		now, off := start, time.Duration(0)
		for range rapid.IntRange(1, 60).Draw(t, "messages") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(3*time.Second)).Draw(t, "passed")))
			off += rapid.SampledFrom([]time.Duration{0, 0, time.Hour, -time.Hour}).Draw(t, "step")
			key := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "key")
			outcome := rapid.SampledFrom([]Outcome{Success, Failure, Failure}).Draw(t, "outcome")
			want, got := steady.ask(now, key, outcome), shaken.ask(testclock.Set(now, off), key, outcome)
			if got != want {
				t.Fatalf("with the clock off by %s: %+v; without: %+v", off, got, want)
			}
		}
	})
}
