// Package resilience holds what protects a handler from its own callers: rate limits, a retry budget and a circuit breaker.
//
// It is pure: the clock and the randomness are arguments, it starts no goroutine and no timer, and it knows neither messages
// nor brokers. All of it may be used by many goroutines at once, and no configuration makes it fail: a value out of its range
// counts as the nearest one within.
//
// Nothing here makes its caller wait. Who is turned away is told after how long to ask again: never at once, and not all of
// them at the same moment.
//
// A clock that is set back or forward does no harm. Set back, time goes on from the latest that was seen, so nothing lasts
// longer than it is configured to. Set forward, it is time that passes: pauses end early, and a limit gives one burst more.
// Times that carry a monotonic reading, as those of time.Now do, show neither.
package resilience

import (
	"math"
	"time"
)

// Random is where randomness comes from, such as a *rand.Rand. One that several guards share must be safe for concurrent use.
type Random interface {
	// Int64N is a number from 0 up to, not including, n, which is above 0.
	Int64N(n int64) int64
}

const (
	// shortest is the least that anybody is told to wait before asking again, so that nobody spins.
	shortest = int64(10 * time.Millisecond)
	// longest bounds every duration of a configuration, so that no sum of them overflows.
	longest = int64(366 * 24 * time.Hour)
)

// clock turns the times that callers give into nanoseconds that never run back.
type clock struct {
	last time.Time
	now  int64
}

// reordered is by how much a time may lie before the last one because two goroutines read the clock in one order and came
// here in the other. More than that is a clock that was set back.
const reordered = -time.Second

// at is the present in nanoseconds. A clock that was set back goes on from where it was; one that was set forward by years,
// which is what the zero time looks like, jumps by one at the most.
func (c *clock) at(now time.Time) int64 {
	passed := now.Sub(c.last)
	if passed >= 0 || passed < reordered {
		c.last = now
		c.now += min(max(int64(passed), 0), longest)
	}
	return c.now
}

// interval is the time between two of so many a second, rounded up so that a limit is never exceeded: 1 ns to 11 days.
func interval(perSecond float64) int64 {
	if !(perSecond > 1e-6) {
		perSecond = 1e-6
	}
	return max(1, int64(math.Ceil(float64(time.Second)/perSecond)))
}
