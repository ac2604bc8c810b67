package retry

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"redrive.dev/redrive/api/v1alpha1"
)

// ladderKeys are the lanes for open-ended delays.
const ladderKeys = "1s 2s 5s 10s 30s 1m 2m 5m 10m 30m 1h"

func keys(lanes Lanes) string {
	names := make([]string, len(lanes))
	for i, lane := range lanes {
		names[i] = LaneKey(lane)
	}
	return strings.Join(names, " ")
}

// planning is a plan of lanes for policies as users write them.
type planning struct {
	name     string
	policies []string
	limit    int
	want     string
	merged   int
}

// check plans for policies that do not follow advice.
func (p planning) check(t *testing.T) { p.checkWith(t, false) }

func (p planning) checkWith(t *testing.T, advice bool) {
	var policies []*Policy
	for _, s := range p.policies {
		policy := compile(t, s)
		policy.followsAdvice = policy.followsAdvice && advice
		policies = append(policies, policy)
	}
	lanes, merged := PlanLanes(policies, p.limit, false)
	if got := keys(lanes); got != p.want || merged != p.merged {
		t.Errorf("lanes = %s, merged %d\n want = %s, merged %d", got, merged, p.want, p.merged)
	}
}

func TestPlanLanes_HasALaneForEachDelay(t *testing.T) {
	tests := []planning{
		{"the defaults", []string{`{}`}, 24, "1s 2s 4s", 0},
		{"no policies", nil, 24, "", 0},
		{"no retries at all", []string{`maxRetries: 0`}, 24, "", 0},
		{"no retries but an unlimited strategy", []string{`{maxRetries: 0, strategies: [{name: s, when: "true", unlimited: true, backoff: {type: Constant, delay: 5m}}]}`}, 24, "5m", 0},
		{"no retries, and a strategy that has no limit of its own", []string{`{maxRetries: 0, strategies: [{name: s, when: "true", delayFrom: error.retryAfter}]}`}, 24, "", 0},
		{"a strategy without retries", []string{`{maxRetries: 1, strategies: [{name: s, when: "true", maxRetries: 0, delayFrom: error.retryAfter}]}`}, 24, "1s", 0},
		{"strategies that do not retry", []string{`{maxRetries: 1, strategies: [{name: s, when: "true", action: Fail}, {name: t, when: "true", action: Drop}]}`}, 24, "1s", 0},
		{"several policies share their lanes", []string{`{}`, `{backoff: {type: Constant, delay: 2s}}`, `{backoff: {type: Explicit, delays: [4s, 1m]}}`}, 24, "1s 2s 4s 1m", 0},
		{"as far as maxRetries reaches", []string{`{maxRetries: 1000000}`}, 24, "1s 2s 4s 8s 16s 32s 1m", 0},
		{"as far as maxAge reaches", []string{`{maxRetries: 1000, maxAge: 14s}`}, 24, "1s 2s 4s", 0},
		{"as far as a strategy's own limit reaches", []string{`{maxRetries: 1, strategies: [{name: s, when: "true", maxRetries: 4}]}`}, 24, "1s 2s 4s 8s", 0},
		{"an unlimited strategy goes to the bound of the policy's backoff", []string{`{maxRetries: 1, strategies: [{name: s, when: "true", unlimited: true}]}`}, 24, "1s 2s 4s 8s 16s 32s 1m", 0},
		{"a strategy's backoff", []string{`{maxRetries: 2, strategies: [{name: s, when: "true", backoff: {type: Linear, delay: 3s}}]}`}, 24, "1s 2s 3s 6s", 0},
		{"delays of an expression take the ladder", []string{`{strategies: [{name: s, when: "true", delayFrom: error.retryAfter}]}`}, 24, "1s 2s 4s 5s 10s 30s 1m 2m 5m 10m 30m 1h", 0},
		{"full jitter takes the ladder", []string{`{backoff: {type: Exponential, jitter: {type: Full}}}`}, 24, ladderKeys, 0},
		{"decorrelated jitter takes the ladder", []string{`{backoff: {type: Exponential, jitter: {type: Decorrelated}}}`}, 24, ladderKeys, 0},
		{
			"jitter takes eight lanes a step",
			[]string{`{maxRetries: 2, backoff: {type: Exponential, jitter: {type: Proportional, percent: 10}}}`},
			24,
			"925ms 950ms 975ms 1s 1025ms 1050ms 1075ms 1100ms 1850ms 1900ms 1950ms 2s 2050ms 2100ms 2150ms 2200ms", 0,
		},
		{
			"jitter's lanes are rounded up to a readable grid",
			[]string{`{maxRetries: 1, backoff: {type: Constant, delay: 7777ms, jitter: {type: Proportional, percent: 10}}}`},
			24,
			"7200ms 7390ms 7590ms 7780ms 7980ms 8170ms 8370ms 8555ms", 0,
		},
		{"a narrow window has fewer lanes", []string{`{maxRetries: 1, backoff: {type: Constant, delay: 101ms, jitter: {type: Proportional, percent: 1}}}`}, 24, "101ms 102ms 103ms", 0},
		{"nothing is under 100ms", []string{`{maxRetries: 1, backoff: {type: Constant, delay: 100ms, jitter: {type: Equal}}}`}, 24, "100ms", 0},
		{"parts of a millisecond are rounded up", []string{`{maxRetries: 1, backoff: {type: Constant, delay: 100.001ms}}`}, 24, "101ms", 0},
		{"nothing is over 720h", []string{`{maxRetries: 1, maxAge: 8760h, backoff: {type: Constant, delay: 720h, jitter: {type: Proportional, percent: 100}}}`}, 2, "360h 720h", 6},
	}
	for _, tt := range tests {
		t.Run(tt.name, tt.check)
	}
}

func TestPlanLanes_HasLanesForTheDelaysOfAdvice(t *testing.T) {
	const jittered = `{backoff: {type: Exponential, jitter: {type: Proportional, percent: 10}}}`
	tests := []planning{
		{"the defaults", []string{`{}`}, 24, "1s 2s 4s 10s 1m 10m", 0},
		{"no retries of its own", []string{`maxRetries: 0`}, 24, "1s 10s 1m 10m", 0},
		{"as far as maxAge reaches", []string{`maxAge: 30s`}, 24, "1s 2s 4s 10s", 0},
		{"the longest maxAge of those that follow", []string{`maxAge: 30s`, `{maxAge: 5m}`, `{handlerAdvice: Ignore}`}, 24, "1s 2s 4s 10s 1m", 0},
		{"none that follows", []string{`{handlerAdvice: Ignore}`}, 24, "1s 2s 4s", 0},
		{"the ladder has them", []string{`{backoff: {type: Exponential, jitter: {type: Full}}}`}, 24, ladderKeys, 0},
		{"they take the place of lanes of jitter", []string{jittered}, 24, "925ms 950ms 975ms 1s 1025ms 1050ms 1100ms 1850ms 1900ms 1950ms 2s " +
			"2050ms 2100ms 2200ms 3700ms 3800ms 3900ms 4s 4100ms 4200ms 4400ms 10s 1m 10m", 0},
		{"but of no exact delay", []string{`{backoff: {type: Exponential}}`}, 3, "1s 2s 4s", 0},
		{"the longest first", []string{`{backoff: {type: Exponential}}`}, 5, "1s 2s 4s 1m 10m", 0},
		{"what was merged without them is what is merged", []string{`{maxRetries: 9, backoff: {type: Exponential, maxDelay: 1h}}`}, 5, "1s 4s 16s 64s 256s", 4},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.checkWith(t, true) })
	}
}

// What a handler asks for is not known beforehand, so every such delay must be made of few hops.
func TestPlanLanes_MakesADelayOfAdviceOfFewHops(t *testing.T) {
	for _, spec := range []string{
		`{}`, `maxRetries: 0`, `{backoff: {type: Constant, delay: 5s}}`, `{backoff: {type: Exponential, jitter: {type: Proportional, percent: 10}}}`,
	} {
		lanes, _ := PlanLanes([]*Policy{compile(t, spec)}, LaneLimit(v1alpha1.LanesStandard), false)
		most, all := 0, 0
		for asked := time.Second; asked <= maxAdvisedDelay; asked += time.Second {
			hops := 0
			for remaining := asked; hops == 0 || !Due(start().Add(remaining), start(), asked); hops++ {
				lane, _ := lanes.Pick(remaining)
				remaining -= lane
			}
			most, all = max(most, hops), all+hops
		}
		t.Logf("%s: lanes %s: %d hops at most, %.1f on average", spec, keys(lanes), most, float64(all)/3600)
		if most > 13 {
			t.Errorf("%s: lanes %s: a delay takes %d hops", spec, keys(lanes), most)
		}
	}
}

// More lanes than are gathered exactly: none of them is early for that, and a plan is the same whatever comes first.
func TestPlanLanes_RoundsTensOfThousandsOfDelaysUp(t *testing.T) {
	var policies []*Policy
	longest := time.Duration(0)
	for i := range 300 {
		p := compile(t, `{maxRetries: 128, maxAge: 8760h, handlerAdvice: Ignore, backoff: {type: Linear, delay: 1s, maxDelay: 720h}}`)
		p.backoff.delay += time.Duration(i) * 37 * time.Millisecond
		p.backoff.step += time.Duration(i) * 41 * time.Millisecond
		if i%2 == 0 {
			p.backoff.jitter.kind = v1alpha1.JitterEqual
		}
		policies, longest = append(policies, p), max(longest, p.LongestDelay())
	}
	lanes, merged := PlanLanes(policies, 64, false)
	if last := lanes[len(lanes)-1]; len(lanes) != 64 || last < longest || last > longest+longest/100 || merged < manyLanes-64 {
		t.Errorf("lanes %s for delays of up to %s, merged %d", keys(lanes), longest, merged)
	}
	slices.Reverse(policies)
	if again, _ := PlanLanes(policies, 64, false); !slices.Equal(again, lanes) {
		t.Errorf("lanes %s, and in another order %s", keys(lanes), keys(again))
	}
	for d, want := range map[time.Duration]time.Duration{
		100 * time.Millisecond: 100 * time.Millisecond, 999 * time.Millisecond: 999 * time.Millisecond, 1001 * time.Millisecond: 1010 * time.Millisecond,
		12345 * time.Second: 12400 * time.Second, 9999 * time.Second: 10000 * time.Second, MaxLane: MaxLane,
	} {
		if got := toThreeDigits(d); got != want {
			t.Errorf("%s becomes %s, want %s", d, got, want)
		}
	}
}

func TestPlanLanes_ThinsOutWhatIsTooMuch(t *testing.T) {
	tests := []planning{
		{
			"too much jitter is thinned to four a step",
			[]string{`{maxRetries: 5, maxAge: 24h, backoff: {type: Explicit, delays: [1s, 10s, 1m, 10m, 1h], jitter: {type: Proportional, percent: 10}}}`},
			24,
			"950ms 1s 1050ms 1100ms 9500ms 10s 10500ms 11s 57s 1m 63s 66s 570s 10m 630s 11m 57m 1h 63m 66m", 20,
		},
		{
			"and to the ends of the windows",
			[]string{`{maxRetries: 5, maxAge: 24h, backoff: {type: Explicit, delays: [1s, 10s, 1m, 10m, 1h], jitter: {type: Proportional, percent: 10}}}`},
			5,
			"1100ms 11s 66s 11m 66m", 35,
		},
		{"too many exact delays are thinned in proportion", []string{`{maxRetries: 9, backoff: {type: Exponential, maxDelay: 1h}}`}, 5, "1s 4s 16s 64s 256s", 4},
		{
			"the ladder stays when others go",
			[]string{`{maxRetries: 16, strategies: [{name: s, when: "true", delayFrom: error.retryAfter}], backoff: {type: Linear, delay: 1100ms, step: 1100ms, maxDelay: 1h}}`},
			12,
			"1s 2s 5s 10s 17600ms 30s 1m 2m 5m 10m 30m 1h", 15,
		},
		{"the ladder itself is thinned last", []string{`{backoff: {type: Exponential, jitter: {type: Full}}}`}, 3, "1s 30s 1h", 8},
		{"a limit of one", []string{`{}`}, 1, "1s", 2},
		{"a limit of none is one", []string{`{}`}, 0, "1s", 2},
		{
			"a schedule longer than is followed takes the ladder",
			[]string{`{maxRetries: 1000, maxAge: 8760h, backoff: {type: Linear, delay: 1s, step: 1s, maxDelay: 720h}}`},
			12,
			"1s 2s 5s 10s 14s 30s 1m 2m 5m 10m 30m 1h", 120,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, tt.check)
	}
}

func TestPlanLanes_ThinsThousandsOfDelaysInProportion(t *testing.T) {
	var policies []*Policy
	for i := range 64 {
		p := compile(t, `{handlerAdvice: Ignore, maxRetries: 100, maxAge: 8760h, backoff: {type: Linear, delay: 1s, step: 10s, maxDelay: 720h}}`)
		p.backoff.delay += time.Duration(i) * 137 * time.Millisecond
		policies = append(policies, p)
	}
	lanes, merged := PlanLanes(policies, 24, false)
	if len(lanes) != 24 || len(lanes)+merged < 6000 {
		t.Errorf("%d lanes, merged %d", len(lanes), merged)
	}
	if first, last := lanes[0], lanes[len(lanes)-1]; first != time.Second || last != 999631*time.Millisecond {
		t.Errorf("lanes are from %s to %s", first, last)
	}
	for i := 1; i < len(lanes); i++ {
		if gap := float64(lanes[i]) / float64(lanes[i-1]); gap > 1.8 {
			t.Errorf("gap of %.2f below %s", gap, lanes[i])
		}
	}
}

func TestLaneLimit_GoesByTheDensity(t *testing.T) {
	if got := LaneLimit(v1alpha1.LanesStandard); got != 24 {
		t.Errorf("Standard allows %d", got)
	}
	if got := LaneLimit(v1alpha1.LanesFine); got != 64 {
		t.Errorf("Fine allows %d", got)
	}
	if got := LaneLimit(""); got != 24 {
		t.Errorf("left out, it allows %d", got)
	}
}

func anyPolicy(t *rapid.T) *Policy {
	p := &Policy{
		backoff:    *anyBackoff(t),
		maxRetries: rapid.Int64Range(0, 100).Draw(t, "maxRetries"),
		maxAge:     time.Duration(rapid.Int64Range(int64(time.Second), int64(8760*time.Hour)).Draw(t, "maxAge")),

		followsAdvice: rapid.Bool().Draw(t, "follows advice"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "strategies") {
		s := strategy{action: v1alpha1.ActionRetry, unlimited: rapid.Bool().Draw(t, "unlimited")}
		if rapid.Bool().Draw(t, "own") {
			s.backoff = anyBackoff(t)
		}
		p.strategies = append(p.strategies, s)
	}
	return p
}

func TestPlanLanes_IsSortedAndTheSameInAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policies := rapid.SliceOfN(rapid.Custom(anyPolicy), 0, 6).Draw(t, "policies")
		limit := rapid.SampledFrom([]int{1, 2, 24, 64}).Draw(t, "limit")
		lanes, merged := PlanLanes(policies, limit, false)
		if len(lanes) > limit || merged < 0 {
			t.Fatalf("%d lanes, merged %d, limit %d", len(lanes), merged, limit)
		}
		if err := lanes.validate(); err != nil {
			t.Fatal(err)
		}
		slices.Reverse(policies)
		if again, mergedAgain := PlanLanes(policies, limit, false); !slices.Equal(again, lanes) || mergedAgain != merged {
			t.Fatalf("in another order %v, merged %d, not %v, merged %d", again, mergedAgain, lanes, merged)
		}
	})
}

func TestPlanLanes_GivesEachLaneAnEqualShareOfDraws(t *testing.T) {
	p := compile(t, `{handlerAdvice: Ignore, maxRetries: 1, backoff: {type: Constant, delay: 7777ms, jitter: {type: Proportional, percent: 10}}}`)
	lanes, _ := PlanLanes([]*Policy{p}, 24, false)
	w := p.backoff.window(0, 0)
	below := w.min
	for _, lane := range lanes {
		share := float64(min(lane, w.max)-below) / float64(w.max-w.min)
		if share < 0.11 || share > 0.14 {
			t.Errorf("lane %s takes %.3f of the draws", LaneKey(lane), share)
		}
		below = lane
	}
	if lanes[len(lanes)-1] < w.max {
		t.Errorf("the last lane, %s, is shorter than the largest draw, %s", lanes[len(lanes)-1], w.max)
	}
}
