package resilience

import (
	"math"
	"sync"
	"time"
)

// BudgetConfig says how many retries a Budget allows.
type BudgetConfig struct {
	// Percent of the first attempts within the window that may be made again, from 1; over 100 is allowed.
	Percent int
	// Window over which attempts are counted, 10 ms to a year.
	Window time.Duration
	// MinPerSecond is the number of retries a second that are always allowed, from 0.000001.
	MinPerSecond float64
}

// Budget bounds retries to a share of the first attempts, so that a partner in trouble never gets a multiple of its load. The
// idea and the words are those of Finagle's RetryBudget, Linkerd's retryBudget and Envoy's retry_budget.
//
// A retry is allowed where, with it, the retries within the window are at most
//
//	Percent / 100 x the first attempts within the window            the share, or
//	MinPerSecond x the window, rounded up                           the floor
//
// whichever is larger (Finagle and Linkerd add the two; here the larger counts, so that Percent means what it says under
// load). The window is divided into ten slots and slides by one: it covers the present slot and the ten before it, so it is up to
// a tenth longer than configured, and that is all the slack there is.
//
// The floor would allow a whole window's worth at once after a pause. So it goes through a token bucket that fills at
// MinPerSecond and holds a tenth of the window's worth, at least one. What the share allows is not smoothed: it follows the load.
type Budget struct {
	rnd Random

	mu     sync.Mutex
	clock  clock
	config BudgetConfig
	window window
	// floor is the token bucket of the floor, as a Limiter's.
	floor pace
	tat   int64
	// promises to those who were refused.
	promises promises
	// exhausted is until when the budget counts as exhausted.
	exhausted int64
}

// What the window of a Budget counts.
const (
	firsts = iota
	retries
)

// NewBudget returns a budget that has counted nothing yet.
func NewBudget(c BudgetConfig, rnd Random) *Budget {
	b := &Budget{rnd: rnd}
	b.configure(c)
	return b
}

func (b *Budget) configure(c BudgetConfig) {
	c.Percent = min(max(1, c.Percent), 1_000_000)
	c.Window = min(max(c.Window, time.Duration(shortest)), time.Duration(longest))
	if b.config.Window != c.Window {
		b.window = newWindow(int64(c.Window))
	}
	b.config = c
	step := interval(c.MinPerSecond)
	b.floor = pace{interval: step, depth: max(step, int64(c.Window)/slots)}
}

// First counts a first attempt that was handled, whatever came of it.
func (b *Budget) First(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.window.roll(b.clock.at(now))
	b.window.add(firsts)
}

// Leave is the answer of a Budget.
type Leave struct {
	// OK is true where the retry is allowed.
	OK bool
	// Wait is, where it is not, after how long to ask again: 10 ms to 1 h.
	Wait time.Duration

	given time.Time
	// step is by how much the promises took it for used, and floor what it took of the floor's bucket; 0 where the share allows it.
	step, floor int64
}

// Retry asks leave for one retry, and counts it where it is given. Where it is not, each is told to wait longer than the one before by as much as
// retries are apart at the present rate.
func (b *Budget) Retry(now time.Time) Leave {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.clock.at(now)
	b.window.roll(t)
	if floor, ok := b.allow(t); ok {
		b.window.add(retries)
		step := b.step()
		b.promises.taken(t, step)
		return Leave{OK: true, given: now, step: step, floor: floor}
	}
	b.exhausted = t + max(int64(time.Second), b.window.length)
	return Leave{Wait: b.promises.next(t, t+b.step(), b.step(), b.rnd)}
}

// allow is the decision; it takes a token of the floor where that is what allows the retry.
func (b *Budget) allow(now int64) (floor int64, ok bool) {
	after := int64(b.window.sum[retries]) + 1
	if after*100 <= b.share() {
		return 0, true
	}
	next := max(b.tat, now) + b.floor.interval
	if next-b.floor.depth > now || after > (b.window.covered(now)+b.floor.interval-1)/b.floor.interval {
		return 0, false
	}
	b.tat = next
	return b.floor.interval, true
}

// share is a hundred times the number of retries that the first attempts allow.
func (b *Budget) share() int64 {
	return int64(b.config.Percent) * int64(b.window.sum[firsts])
}

// step is the time between two retries at the rate that the budget allows at present.
func (b *Budget) step() int64 {
	share := float64(b.share()) / 100
	return int64(math.Ceil(min(float64(b.floor.interval), float64(b.config.Window)/share)))
}

// Cancel gives back, once, a leave that is not used, because something else holds the message back: the next one that asks gets it. Of a refusal
// there is nothing to give back.
func (b *Budget) Cancel(leave Leave, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !leave.OK {
		return
	}
	t := b.clock.at(now)
	b.window.roll(t)
	b.window.remove(retries, t-int64(now.Sub(leave.given)))
	b.tat -= leave.floor
	b.promises.used -= leave.step
}

// Exhausted is true from a refusal on, for a tenth of the window, at least a second.
func (b *Budget) Exhausted(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.clock.at(now) < b.exhausted
}

// Reconfigure changes the budget. What was counted stays, unless the window is another.
func (b *Budget) Reconfigure(c BudgetConfig, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := b.step()
	b.configure(c)
	b.promises.drawn(b.clock.at(now), before, b.step())
	b.tat = min(b.tat, b.clock.at(now)+b.floor.depth)
}
