package resilience

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// noon is when the tests begin. It has no monotonic reading, so that steps of the clock show.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func seeded() Random { return rand.New(rand.NewPCG(1, 2)) }

// least and most draw the ends of each range.
type least struct{}

func (least) Int64N(int64) int64 { return 0 }

type most struct{}

func (most) Int64N(n int64) int64 { return n - 1 }

// seconds after noon.
func after(seconds float64) time.Time {
	return noon.Add(time.Duration(math.Round(seconds * float64(time.Second))))
}

// aClock is a clock of a property test: it runs, stands still, and where steps is true is set back and forward by an hour.
type aClock struct {
	now time.Time
	// real is the time that has really passed.
	real time.Duration
}

func (c *aClock) run(t *rapid.T, most time.Duration, steps bool) {
	passed := time.Duration(rapid.Int64Range(0, int64(most)).Draw(t, "passed"))
	c.now, c.real = c.now.Add(passed), c.real+passed
	if steps {
		c.now = c.now.Add(rapid.SampledFrom([]time.Duration{0, 0, 0, 0, 0, 0, -time.Hour, time.Hour}).Draw(t, "step"))
	}
}

func TestClock_NeverRunsBack(t *testing.T) {
	cases := map[string]struct {
		step time.Duration
		want time.Duration
	}{
		"a second later":                           {time.Second, time.Second},
		"the same time":                            {0, 0},
		"two goroutines out of order":              {-time.Millisecond, 0},
		"set back an hour":                         {-time.Hour, 0},
		"set forward an hour":                      {time.Hour, time.Hour},
		"set forward a century is taken as a year": {100 * 366 * 24 * time.Hour, time.Duration(longest)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var clock clock
			start := clock.at(noon)
			if got := time.Duration(clock.at(noon.Add(c.step)) - start); got != c.want {
				t.Errorf("passed %s, want %s", got, c.want)
			}
		})
	}
}

func TestClock_GoesOnFromWhereItWasWhenSetBack(t *testing.T) {
	var clock clock
	start := clock.at(noon)
	clock.at(after(10))
	clock.at(after(10 - 3600))
	if got := time.Duration(clock.at(after(15-3600)) - start); got != 15*time.Second {
		t.Errorf("15 s after the start the clock shows %s", got)
	}
}

// Were every small step back made up for, a busy process would see its clock run ahead.
func TestClock_DoesNotRunAheadByTimesOutOfOrder(t *testing.T) {
	var clock clock
	start := clock.at(noon)
	for i := range 1000 {
		clock.at(after(float64(i) / 100))
		clock.at(after(float64(i)/100 - 0.005))
	}
	if got := time.Duration(clock.at(after(10)) - start); got != 10*time.Second {
		t.Errorf("10 s after the start the clock shows %s", got)
	}
}

func TestClock_ZeroTimeDoesNotStopIt(t *testing.T) {
	var clock clock
	clock.at(time.Time{})
	before := clock.at(noon)
	if got := time.Duration(clock.at(after(1)) - before); got != time.Second {
		t.Errorf("a second takes %s", got)
	}
}

func TestInterval_IsWithinItsBoundsForAnyRate(t *testing.T) {
	cases := map[float64]time.Duration{
		1: time.Second, 4: 250 * time.Millisecond, 0.001: 1000 * time.Second,
		3: 333333334 * time.Nanosecond, // Rounded up, so that the rate is never exceeded.
		0: 1e15, -1: 1e15, math.Inf(-1): 1e15, math.NaN(): 1e15, 1e-9: 1e15,
		1e9: 1, 1e12: 1, math.Inf(1): 1,
	}
	for perSecond, want := range cases {
		if got := time.Duration(interval(perSecond)); got != want {
			t.Errorf("interval at %v a second is %s, want %s", perSecond, got, want)
		}
	}
}
