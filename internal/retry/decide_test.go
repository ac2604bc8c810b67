package retry

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"redrive.dev/redrive/api/v1alpha1"
)

// edge draws always the smallest or the largest number.
type edge bool

func (e edge) Int64N(n int64) int64 {
	if e {
		return n - 1
	}
	return 0
}

func start() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// fail lets a message fail once after another, each time when its delay is over, until it is no longer retried.
func fail(t *testing.T, p *Policy, f Failure) (delays []time.Duration, last Verdict) {
	t.Helper()
	var h History
	now := start()
	for range 1000 {
		last = p.Decide(f, Message{}, h, now, edge(true))
		if last.Action != v1alpha1.ActionRetry {
			return delays, last
		}
		delays = append(delays, last.Delay)
		h, now = last.History, now.Add(last.Delay)
	}
	t.Fatal("1000 retries without an end")
	return nil, last
}

func seconds(s ...float64) []time.Duration {
	delays := make([]time.Duration, len(s))
	for i := range s {
		delays[i] = time.Duration(math.Round(s[i] * float64(time.Second)))
	}
	return delays
}

// ending is a message that fails with status 422 for ever: the delays of its retries, and why there are no more.
type ending struct {
	name, spec  string
	delays      []time.Duration
	reason      Reason
	explanation string
}

func (e ending) check(t *testing.T) {
	delays, last := fail(t, compile(t, e.spec), Failure{Status: 422})
	if !slices.Equal(delays, e.delays) {
		t.Errorf("delays = %v, want %v", delays, e.delays)
	}
	if last.Reason != e.reason || last.Explanation != e.explanation {
		t.Errorf("end = %s, %q; want %s, %q", last.Reason, last.Explanation, e.reason, e.explanation)
	}
	if want := int64(len(e.delays) + 1); last.History.Attempts != want {
		t.Errorf("attempts = %d, want %d", last.History.Attempts, want)
	}
	if last.Delay != 0 || len(last.Problems) != 0 {
		t.Errorf("delay %s, problems %v at the end", last.Delay, last.Problems)
	}
}

func TestDecide_FollowsTheScheduleToItsEnd(t *testing.T) {
	tests := []ending{
		{
			"the defaults are 1s, 2s, 4s and then failed", `{}`,
			seconds(1, 2, 4), ReasonMaxRetries, "3 of 3 retries used",
		},
		{
			"no retries: the first failure is final", `maxRetries: 0`,
			nil, ReasonMaxRetries, "maxRetries is 0: the first failure is final",
		},
		{
			"constant", `backoff: {type: Constant, delay: 5s}`,
			seconds(5, 5, 5), ReasonMaxRetries, "3 of 3 retries used",
		},
		{
			"linear with a step of its own", `{maxRetries: 5, backoff: {type: Linear, delay: 1s, step: 500ms, maxDelay: 2s}}`,
			seconds(1, 1.5, 2, 2, 2), ReasonMaxRetries, "5 of 5 retries used",
		},
		{
			"exponential with a decimal multiplier", `{maxRetries: 4, backoff: {type: Exponential, delay: 1s, multiplier: "1.1"}}`,
			seconds(1, 1.1, 1.21, 1.331), ReasonMaxRetries, "4 of 4 retries used",
		},
		{
			"exponential up to its bound", `{maxRetries: 8, backoff: {type: Exponential}}`,
			seconds(1, 2, 4, 8, 16, 32, 60, 60), ReasonMaxRetries, "8 of 8 retries used",
		},
		{
			"explicit, the last one repeats", `{maxRetries: 4, backoff: {type: Explicit, delays: [5s, 1m, 10m]}}`,
			seconds(5, 60, 600, 600), ReasonMaxRetries, "4 of 4 retries used",
		},
		{
			"maxAge ends it first", `{maxRetries: 100, maxAge: 10s, backoff: {type: Constant, delay: 3s}}`,
			seconds(3, 3, 3), ReasonMaxAge, "the next retry, in 3s, would be later than maxAge 10s after the first failure",
		},
		{
			"a retry at maxAge exactly is not too late", `{maxRetries: 100, maxAge: 9s, backoff: {type: Constant, delay: 3s}}`,
			seconds(3, 3, 3), ReasonMaxAge, "the next retry, in 3s, would be later than maxAge 9s after the first failure",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, tt.check)
	}
}

func TestDecide_FollowsTheStrategyToItsEnd(t *testing.T) {
	tests := []ending{
		{
			"unlimited ends with maxAge", `{maxRetries: 0, maxAge: 1h, strategies: [{name: s, when: "true", unlimited: true, backoff: {type: Constant, delay: 20m}}]}`,
			seconds(1200, 1200, 1200), ReasonMaxAge, "the next retry, in 20m0s, would be later than maxAge 1h0m0s after the first failure",
		},
		{
			"unlimited without a backoff takes the policy's", `{maxRetries: 1, maxAge: 20s, strategies: [{name: s, when: "true", unlimited: true}]}`,
			seconds(1, 2, 4, 8), ReasonMaxAge, "the next retry, in 16s, would be later than maxAge 20s after the first failure",
		},
		{
			"a strategy's limit replaces the policy's", `{strategies: [{name: s, when: "true", maxRetries: 5}]}`,
			seconds(1, 2, 4, 8, 16), ReasonMaxRetries, "5 of 5 retries used",
		},
		{
			"a strategy's limit of 0", `{strategies: [{name: s, when: "true", maxRetries: 0}]}`,
			nil, ReasonMaxRetries, "maxRetries is 0: the first failure is final",
		},
		{
			"a strategy's backoff replaces the policy's whole", `{strategies: [{name: s, when: "true", backoff: {type: Linear}}]}`,
			seconds(1, 2, 3), ReasonMaxRetries, "3 of 3 retries used",
		},
		{
			"a strategy that fails", `{strategies: [{name: s, when: 'error.status in [400, 422]', action: Fail}]}`,
			nil, ReasonStrategy, `strategy "s" decided Fail`,
		},
		{
			"a strategy that drops", `{strategies: [{name: s, when: error.status == 422, action: Drop}]}`,
			nil, ReasonStrategy, `strategy "s" decided Drop`,
		},
		{
			"a strategy that does not match", `{strategies: [{name: s, when: error.status == 410, action: Drop}]}`,
			seconds(1, 2, 4), ReasonMaxRetries, "3 of 3 retries used",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, tt.check)
	}
}

const counted = `
maxRetries: 3
maxAge: 24h
backoff: {type: Exponential, delay: 1s, maxDelay: 10m}
strategies:
- {name: unlimited-own, when: error.status == 1, unlimited: true, backoff: {type: Linear, delay: 10s}}
- {name: unlimited, when: error.status == 2, unlimited: true}
- {name: limited, when: error.status == 3, maxRetries: 2}
- {name: limited-own, when: error.status == 4, maxRetries: 2, backoff: {type: Linear, delay: 20s}}
- {name: own, when: error.status == 5, backoff: {type: Linear, delay: 20s}}
- {name: plain, when: error.status == 6}
- {name: never, when: error.status == 7, action: Fail}
- {name: asks, when: error.status == 8, delayFrom: error.retryAfter, maxDelay: 90s}
- {name: asks-unlimited, when: error.status == 9, delayFrom: error.retryAfter, unlimited: true}
`

// never is the delay of a message that is failed.
const never = time.Duration(-1)

// counting is a failure of the policy `counted`: the delay of the next retry, and the history before and after.
type counting struct {
	name    string
	failure Failure
	before  History
	delay   time.Duration
	after   History
}

func (c counting) check(t *testing.T, p *Policy) {
	v := p.Decide(c.failure, Message{}, c.before, start(), edge(true))
	got, delay := v.History, v.Delay
	got.FirstFailure, got.LastDelay = time.Time{}, 0
	if v.Action != v1alpha1.ActionRetry {
		delay = never
	}
	if delay != c.delay || v.Strategy != c.after.Strategy || got != c.after {
		t.Errorf("got %s in %s by %q, %+v; want %s, %+v", v.Action, v.Delay, v.Strategy, got, c.delay, c.after)
	}
	if len(v.Problems) != 0 {
		t.Errorf("problems: %v", v.Problems)
	}
}

func TestDecide_CountsRetriesUnlessAStrategyIsUnlimited(t *testing.T) {
	p := compile(t, counted)
	tests := []counting{
		{
			"no strategy: retries rise and index the backoff",
			Failure{},
			History{Attempts: 2, Retries: 2},
			4 * time.Second,
			History{Attempts: 3, Retries: 3},
		},
		{
			"no strategy: attempts are not what is limited",
			Failure{},
			History{Attempts: 50, Retries: 2},
			4 * time.Second,
			History{Attempts: 51, Retries: 3},
		},
		{
			"no strategy: a streak ends",
			Failure{},
			History{Attempts: 1, Retries: 0, Strategy: "unlimited", Streak: 1},
			time.Second,
			History{Attempts: 2, Retries: 1},
		},
		{
			"no strategy: the fourth failure is the last",
			Failure{},
			History{Attempts: 3, Retries: 3},
			never,
			History{Attempts: 4, Retries: 3},
		},
		{
			"unlimited with a backoff: indexed by the streak, retries stay",
			Failure{Status: 1},
			History{Attempts: 9, Retries: 3, Strategy: "unlimited-own", Streak: 2},
			30 * time.Second,
			History{Attempts: 10, Retries: 3, Strategy: "unlimited-own", Streak: 3},
		},
		{
			"unlimited without a backoff: the policy's, indexed by the streak",
			Failure{Status: 2},
			History{Attempts: 9, Retries: 3, Strategy: "unlimited", Streak: 4},
			16 * time.Second,
			History{Attempts: 10, Retries: 3, Strategy: "unlimited", Streak: 5},
		},
		{
			"unlimited: another strategy's streak does not count",
			Failure{Status: 2},
			History{Attempts: 9, Retries: 3, Strategy: "unlimited-own", Streak: 4},
			time.Second,
			History{Attempts: 10, Retries: 3, Strategy: "unlimited", Streak: 1},
		},
		{
			"nothing of its own: as without a strategy",
			Failure{Status: 6},
			History{Attempts: 1, Retries: 1},
			2 * time.Second,
			History{Attempts: 2, Retries: 2, Strategy: "plain", Streak: 1},
		},
		{
			"Fail: retries stay",
			Failure{Status: 7},
			History{Attempts: 1, Retries: 1},
			never,
			History{Attempts: 2, Retries: 1, Strategy: "never", Streak: 1},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.check(t, p) })
	}
}

func TestDecide_CountsTheStreakForAStrategysOwnLimit(t *testing.T) {
	p := compile(t, counted)
	tests := []counting{
		{
			"own limit: compared to the streak, not to the retries",
			Failure{Status: 3},
			History{Attempts: 5, Retries: 5},
			32 * time.Second,
			History{Attempts: 6, Retries: 6, Strategy: "limited", Streak: 1},
		},
		{
			"own limit: used up by the streak",
			Failure{Status: 3},
			History{Attempts: 2, Retries: 2, Strategy: "limited", Streak: 2},
			never,
			History{Attempts: 3, Retries: 2, Strategy: "limited", Streak: 3},
		},
		{
			"own limit and backoff: both by the streak",
			Failure{Status: 4},
			History{Attempts: 7, Retries: 7, Strategy: "limited-own", Streak: 1},
			40 * time.Second,
			History{Attempts: 8, Retries: 8, Strategy: "limited-own", Streak: 2},
		},
		{
			"own backoff: by the streak, the policy's limit by the retries",
			Failure{Status: 5},
			History{Attempts: 2, Retries: 2},
			20 * time.Second,
			History{Attempts: 3, Retries: 3, Strategy: "own", Streak: 1},
		},
		{
			"own backoff: the policy's limit holds",
			Failure{Status: 5},
			History{Attempts: 3, Retries: 3},
			never,
			History{Attempts: 4, Retries: 3, Strategy: "own", Streak: 1},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.check(t, p) })
	}
}

func TestDelayFrom_ReplacesTheBackoff(t *testing.T) {
	p := compile(t, counted)
	minute := time.Minute
	tests := []counting{
		{
			"delayFrom: not shortened by the backoff",
			Failure{Status: 8, RetryAfter: &minute},
			History{},
			time.Minute,
			History{Attempts: 1, Retries: 1, Strategy: "asks", Streak: 1},
		},
		{
			"delayFrom: shortened by the strategy's maxDelay",
			Failure{Status: 8, RetryAfter: new(time.Hour)},
			History{},
			90 * time.Second,
			History{Attempts: 1, Retries: 1, Strategy: "asks", Streak: 1},
		},
		{
			"delayFrom: at most 1h where the strategy says nothing",
			Failure{Status: 9, RetryAfter: new(290 * 365 * 24 * time.Hour)},
			History{},
			time.Hour,
			History{Attempts: 1, Strategy: "asks-unlimited", Streak: 1},
		},
		{
			"delayFrom: negative is at once",
			Failure{Status: 8, RetryAfter: new(-time.Hour)},
			History{},
			0,
			History{Attempts: 1, Retries: 1, Strategy: "asks", Streak: 1},
		},
		{
			"delayFrom: zero is at once",
			Failure{Status: 8, RetryAfter: new(time.Duration(0))},
			History{},
			0,
			History{Attempts: 1, Retries: 1, Strategy: "asks", Streak: 1},
		},
		{
			"delayFrom: absent is the backoff",
			Failure{Status: 8},
			History{Attempts: 1, Retries: 1},
			2 * time.Second,
			History{Attempts: 2, Retries: 2, Strategy: "asks", Streak: 1},
		},
		{
			"delayFrom: the limit holds",
			Failure{Status: 8, RetryAfter: &minute},
			History{Attempts: 3, Retries: 3},
			never,
			History{Attempts: 4, Retries: 3, Strategy: "asks", Streak: 1},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.check(t, p) })
	}
}

func TestDecide_KeepsTheTimeOfTheFirstFailure(t *testing.T) {
	now := start()
	tests := []struct {
		name          string
		before, after time.Time
	}{
		{"the first failure is now", time.Time{}, now},
		{"an earlier one stays", now.Add(-time.Hour), now.Add(-time.Hour)},
		{"one by a clock that is right, where this one is behind, stays", now.Add(time.Hour), now.Add(time.Hour)},
		{"one in the far future is now", time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), now},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := compile(t, `{}`).Decide(Failure{}, Message{}, History{FirstFailure: tt.before}, now, edge(true))
			if !v.History.FirstFailure.Equal(tt.after) {
				t.Errorf("first failure = %s, want %s", v.History.FirstFailure, tt.after)
			}
		})
	}
}

func TestDecide_ExplainsItsVerdict(t *testing.T) {
	p := compile(t, counted)
	tests := []struct {
		name    string
		failure Failure
		before  History
		want    string
	}{
		{"a retry", Failure{}, History{Attempts: 1, Retries: 1}, "retry 2 of 3 in 2s"},
		{"a retry of a strategy with its own limit", Failure{Status: 3}, History{Attempts: 1, Retries: 1}, "retry 1 of 2 in 2s"},
		{"an unlimited retry", Failure{Status: 1}, History{}, "retry in 10s, which does not count against maxRetries"},
		{"more retries than allowed", Failure{}, History{Retries: 7}, "7 retries used, maxRetries is 3"},
		{"too old already", Failure{}, History{FirstFailure: start().Add(-25 * time.Hour)}, "25h0m0s since the first failure, maxAge is 24h0m0s"},
		{
			"too old for the next retry",
			Failure{Status: 9, RetryAfter: new(time.Hour)},
			History{FirstFailure: start().Add(-23*time.Hour - time.Second)},
			"the next retry, in 1h0m0s, would be later than maxAge 24h0m0s after the first failure",
		},
		{"too old since the year 1", Failure{}, History{FirstFailure: time.Time{}.Add(time.Hour)}, "2562047h47m16.854s since the first failure, maxAge is 24h0m0s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := p.Decide(tt.failure, Message{}, tt.before, start(), edge(true)).Explanation; got != tt.want {
				t.Errorf("explanation = %q, want %q", got, tt.want)
			}
		})
	}
}

func TestDecide_RemembersTheDelayForDecorrelatedJitter(t *testing.T) {
	p := compile(t, `{maxRetries: 9, backoff: {type: Exponential, delay: 1s, maxDelay: 1m, jitter: {type: Decorrelated}},
		strategies: [{name: asks, when: error.status == 429, delayFrom: error.retryAfter}]}`)
	delays, _ := fail(t, p, Failure{})
	if want := seconds(3, 9, 27, 60, 60, 60, 60, 60, 60); !slices.Equal(delays, want) {
		t.Errorf("largest draws = %v, want %v", delays, want)
	}
	v := p.Decide(Failure{Status: 429, RetryAfter: new(time.Hour)}, Message{}, History{Retries: 1, LastDelay: 2 * time.Second}, start(), edge(true))
	if v.Delay != time.Hour || v.History.LastDelay != time.Hour {
		t.Errorf("delay %s from an expression leaves a last delay of %s", v.Delay, v.History.LastDelay)
	}
	v = p.Decide(Failure{}, Message{}, v.History, start(), edge(true))
	if v.Delay != time.Minute {
		t.Errorf("the delay after it is %s, over the bound", v.Delay)
	}
	v = p.Decide(Failure{}, Message{}, History{LastDelay: time.Hour}, start(), edge(true))
	if v.Delay != 3*time.Second {
		t.Errorf("the first delay builds on a delay that is not its own: %s", v.Delay)
	}
}

func TestDecide_StandsGarbageInTheHistory(t *testing.T) {
	p := compile(t, counted)
	full := compile(t, `{maxRetries: 1000000, maxAge: 8760h, backoff: {type: Exponential, delay: 720h, multiplier: "99.999", maxDelay: 720h, jitter: {type: Decorrelated}},
		strategies: [{name: a, when: error.status == 1, unlimited: true, backoff: {type: Linear, delay: 720h, jitter: {type: Proportional, percent: 100}}}]}`)
	number := rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, -1, 0, 1, 3, 1e9, math.MaxInt64 - 1, math.MaxInt64}))
	rapid.Check(t, func(t *rapid.T) {
		h := History{
			Attempts:     number.Draw(t, "attempts"),
			Retries:      number.Draw(t, "retries"),
			Strategy:     rapid.SampledFrom([]string{"", "a", "unlimited", "own", "\x00nobody"}).Draw(t, "strategy"),
			Streak:       number.Draw(t, "streak"),
			FirstFailure: time.UnixMilli(number.Draw(t, "first failure")),
			LastDelay:    time.Duration(number.Draw(t, "last delay")),
		}
		f := Failure{Status: rapid.IntRange(0, 9).Draw(t, "status")}
		f.Advice = rapid.SampledFrom([]Advice{"", AdviseFail, AdviseDrop, AdviseRetry, "?"}).Draw(t, "advice")
		if rapid.Bool().Draw(t, "asked") {
			f.RetryAfter = new(time.Duration(number.Draw(t, "retry after")))
		}
		rnd := edge(rapid.Bool().Draw(t, "edge"))
		for _, p := range []*Policy{p, full} {
			v := p.Decide(f, Message{}, h, start(), rnd)
			after := v.History
			if after.Attempts < 1 || after.Retries < 0 || after.Streak < 0 || after.LastDelay < 0 || after.FirstFailure.After(start().Add(MaxAhead)) {
				t.Fatalf("history out of range: %+v", after)
			}
			if v.Delay < 0 || v.Delay > 720*time.Hour || len(v.Problems) > 0 || v.Explanation == "" {
				t.Fatalf("verdict out of range: %+v", v)
			}
			if v.Action == v1alpha1.ActionRetry && start().Add(v.Delay).After(after.FirstFailure.Add(p.MaxAge())) {
				t.Fatalf("a retry later than maxAge: %+v", v)
			}
			if v.Action == v1alpha1.ActionRetry != (v.Reason == ReasonRetry) {
				t.Fatalf("reason %s of %s", v.Reason, v.Action)
			}
		}
	})
}

func TestVerdict_TellsWhatItsDelayWasDrawnFrom(t *testing.T) {
	p := compile(t, `
backoff: {type: Exponential, delay: 10s, maxDelay: 11s, jitter: {type: Proportional, percent: 20}}
strategies:
- {name: asked, when: has(error.retryAfter), delayFrom: error.retryAfter, maxDelay: 1m}
- {name: never, when: error.status == 400, action: Fail}
`)
	tests := []struct {
		name    string
		failure Failure
		want    DelayRange
	}{
		{"jitter", Failure{}, DelayRange{Nominal: 10 * time.Second, Min: 8 * time.Second, Max: 11 * time.Second}},
		{"an expression", Failure{RetryAfter: new(time.Hour)}, DelayRange{Nominal: time.Minute, Min: time.Minute, Max: time.Minute}},
		{"no retry", Failure{Status: 400}, DelayRange{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := p.Decide(tt.failure, Message{}, History{}, start(), edge(true))
			if v.Range != tt.want || v.Delay != v.Range.Max {
				t.Errorf("%s of %+v, want %+v", v.Delay, v.Range, tt.want)
			}
		})
	}
}
