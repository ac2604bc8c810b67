package retry

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"redrive.dev/redrive/api/v1alpha1"
)

// anyBackoff draws a backoff from all that the API accepts.
func anyBackoff(t *rapid.T) *backoff {
	delay := rapid.Map(rapid.Int64Range(100, (720*time.Hour).Milliseconds()), func(ms int64) v1alpha1.Duration {
		return *v1alpha1.NewDuration(time.Duration(ms) * time.Millisecond)
	})
	spec := &v1alpha1.Backoff{Type: rapid.SampledFrom([]v1alpha1.BackoffType{
		v1alpha1.BackoffConstant, v1alpha1.BackoffLinear, v1alpha1.BackoffExponential, v1alpha1.BackoffExplicit,
	}).Draw(t, "type")}
	jitters := []v1alpha1.JitterType{v1alpha1.JitterNone, v1alpha1.JitterProportional, v1alpha1.JitterFull, v1alpha1.JitterEqual}
	switch spec.Type {
	case v1alpha1.BackoffConstant:
	case v1alpha1.BackoffExplicit:
		spec.Delays = rapid.SliceOfN(delay, 1, 32).Draw(t, "delays")
	case v1alpha1.BackoffLinear:
		spec.Step = new(delay.Draw(t, "step"))
	case v1alpha1.BackoffExponential:
		spec.Multiplier = new(rapid.StringMatching(`[1-9][0-9]?(\.[0-9]{1,3})?`).Draw(t, "multiplier"))
	}
	if spec.Type != v1alpha1.BackoffExplicit {
		jitters = append(jitters, v1alpha1.JitterDecorrelated)
		spec.Delay = new(delay.Draw(t, "delay"))
		if rapid.Bool().Draw(t, "bounded") && spec.Type != v1alpha1.BackoffConstant {
			spec.MaxDelay = v1alpha1.NewDuration(max(spec.Delay.Duration.Duration, delay.Draw(t, "maxDelay").Duration.Duration))
		}
	}
	spec.Jitter = &v1alpha1.Jitter{Type: rapid.SampledFrom(jitters).Draw(t, "jitter")}
	if spec.Jitter.Type == v1alpha1.JitterProportional {
		spec.Jitter.Percent = new(rapid.Int32Range(1, 100).Draw(t, "percent"))
	}
	b, err := compileBackoff(spec)
	if err != nil {
		t.Fatalf("compileBackoff: %v", err)
	}
	return &b
}

// anyCount draws a number of earlier retries, small ones as often as huge ones.
func anyCount() *rapid.Generator[int64] {
	return rapid.OneOf(rapid.Int64Range(0, 200), rapid.Int64Range(0, math.MaxInt64), rapid.Just[int64](math.MaxInt64))
}

func TestBackoff_IsNeverNegativeNorOverItsBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBackoff(t)
		n := anyCount().Draw(t, "n")
		if d := b.at(n); d < 0 || d > b.maxDelay {
			t.Fatalf("delay %d is %s, bound %s", n, d, b.maxDelay)
		}
		last := time.Duration(rapid.Int64Range(0, int64(longest)).Draw(t, "last"))
		w := b.window(n, last)
		if w.min < 0 || w.min > w.max || w.max > b.maxDelay {
			t.Fatalf("window %d is %+v, bound %s", n, w, b.maxDelay)
		}
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for _, r := range []Rand{rnd, edge(false), edge(true)} {
			if d := w.draw(r); d < w.min || d > w.max {
				t.Fatalf("drew %s from %+v", d, w)
			}
		}
	})
}

func TestBackoff_IsMonotoneWithoutJitter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBackoff(t)
		if b.kind == v1alpha1.BackoffExplicit {
			return // Explicit delays may fall.
		}
		n, m := anyCount().Draw(t, "n"), anyCount().Draw(t, "m")
		if a, z := b.at(min(n, m)), b.at(max(n, m)); a > z {
			t.Fatalf("delay %d is %s, delay %d is %s", min(n, m), a, max(n, m), z)
		}
	})
}

func TestBackoff_SteadyDelaysRepeatForEver(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := anyBackoff(t)
		n := anyCount().Draw(t, "n")
		w := b.window(n, longest)
		if !b.steady(n, w.max) {
			return
		}
		if m := max(n, anyCount().Draw(t, "m")); b.window(m, w.max) != w {
			t.Fatalf("window %d is %+v, window %d is %+v", n, w, m, b.window(m, w.max))
		}
	})
}

func TestBackoff_StaysWithinItsBoundForAHugeAttempt(t *testing.T) {
	tests := []struct {
		name string
		spec v1alpha1.Backoff
		want time.Duration
	}{
		{"exponential is at its bound", v1alpha1.Backoff{Type: v1alpha1.BackoffExponential}, time.Minute},
		{"exponential by 1 stays where it is", v1alpha1.Backoff{Type: v1alpha1.BackoffExponential, Multiplier: new("1")}, time.Second},
		{"linear is at its bound", v1alpha1.Backoff{Type: v1alpha1.BackoffLinear}, time.Minute},
		{"linear by 0 stays where it is", v1alpha1.Backoff{Type: v1alpha1.BackoffLinear, Step: v1alpha1.NewDuration(0)}, time.Second},
		{"constant", v1alpha1.Backoff{Type: v1alpha1.BackoffConstant}, time.Second},
		{"exponential from 0 stays 0", v1alpha1.Backoff{Type: v1alpha1.BackoffExponential, Delay: v1alpha1.NewDuration(0)}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, err := compileBackoff(&tt.spec)
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int64{1e9, math.MaxInt64} {
				if got := b.at(n); got != tt.want {
					t.Errorf("delay %d = %s, want %s", n, got, tt.want)
				}
			}
		})
	}
}

func TestJitter_MakesTheWindowOfItsType(t *testing.T) {
	tests := []struct {
		name, backoff string
		n             int64
		last          time.Duration
		want          window
	}{
		{"none", `{type: Constant, delay: 10s}`, 0, 0, window{10 * time.Second, 10 * time.Second}},
		{"proportional", `{type: Constant, delay: 10s, jitter: {type: Proportional, percent: 10}}`, 0, 0, window{9 * time.Second, 11 * time.Second}},
		{"proportional, all of it", `{type: Constant, delay: 10s, jitter: {type: Proportional, percent: 100}}`, 0, 0, window{0, 20 * time.Second}},
		{"proportional, cut at the bound", `{type: Exponential, delay: 10s, maxDelay: 40s, jitter: {type: Proportional, percent: 10}}`, 9, 0, window{36 * time.Second, 40 * time.Second}},
		{"full", `{type: Constant, delay: 10s, jitter: {type: Full}}`, 0, 0, window{0, 10 * time.Second}},
		{"equal", `{type: Linear, delay: 10s, jitter: {type: Equal}}`, 1, 0, window{10 * time.Second, 20 * time.Second}},
		{"decorrelated, first", `{type: Exponential, delay: 10s, jitter: {type: Decorrelated}}`, 0, time.Hour, window{10 * time.Second, 30 * time.Second}},
		{"decorrelated, from the last one", `{type: Exponential, delay: 10s, jitter: {type: Decorrelated}}`, 1, 15 * time.Second, window{10 * time.Second, 45 * time.Second}},
		{"decorrelated, cut at the bound", `{type: Exponential, delay: 10s, jitter: {type: Decorrelated}}`, 1, 25 * time.Second, window{10 * time.Second, 60 * time.Second}},
		{"decorrelated, last one too short", `{type: Exponential, delay: 10s, jitter: {type: Decorrelated}}`, 1, time.Second, window{10 * time.Second, 30 * time.Second}},
		{"decorrelated, last one too long", `{type: Exponential, delay: 10s, jitter: {type: Decorrelated}}`, 1, longest, window{10 * time.Second, 60 * time.Second}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := compile(t, "backoff: "+tt.backoff)
			if got := p.backoff.window(tt.n, tt.last); got != tt.want {
				t.Errorf("window = %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestDraw_ReachesBothEndsAndIsUniform(t *testing.T) {
	w := window{min: 5, max: 8}
	rnd := rand.New(rand.NewPCG(1, 2))
	count := map[time.Duration]int{}
	for range 4000 {
		count[w.draw(rnd)]++
	}
	for d := w.min; d <= w.max; d++ {
		if count[d] < 900 || count[d] > 1100 {
			t.Errorf("%d was drawn %d times of 4000", d, count[d])
		}
	}
	if got := (window{max: longest}).draw(edge(true)); got != longest {
		t.Errorf("the widest window ends at %s", got)
	}
}
