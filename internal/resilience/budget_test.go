package resilience

import (
	"container/heap"
	"math"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// retriesAt asks for n retries and says how many were allowed.
func retriesAt(b *Budget, now time.Time, n int) int {
	allowed := 0
	for range n {
		if b.Retry(now).OK {
			allowed++
		}
	}
	return allowed
}

func firstsAt(b *Budget, now time.Time, n int) {
	for range n {
		b.First(now)
	}
}

func TestBudget_AllowsAShareOfFirstAttempts(t *testing.T) {
	cases := map[string]struct{ percent, firsts, want int }{
		"a fifth":                      {20, 1000, 200},
		"a hundredth":                  {1, 10_000, 100},
		"as many":                      {100, 150, 150},
		"three for each":               {300, 50, 150},
		"one short of a whole retry":   {20, 999, 199},
		"no first attempts, the floor": {20, 0, 6},
		// The larger one is 60, and 6 of it may come at once.
		"the floor is larger": {20, 10, 2 + 6},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			// The floor is 60 in the window, 6 at once.
			b := NewBudget(BudgetConfig{Percent: c.percent, Window: time.Minute, MinPerSecond: 1}, seeded())
			firstsAt(b, noon, c.firsts)
			if got := retriesAt(b, noon, 1000); got != c.want {
				t.Errorf("%d retries of %d, want %d", got, c.firsts, c.want)
			}
		})
	}
}

func TestBudget_ForgetsWhatLeavesTheWindow(t *testing.T) {
	b := NewBudget(BudgetConfig{Percent: 10, Window: 10 * time.Second, MinPerSecond: 1}, seeded())
	firstsAt(b, noon, 1000)
	for _, c := range []struct {
		at     float64
		firsts int
		want   int
	}{
		{0, 0, 100},
		{5, 0, 0},
		{5, 100, 10},
		{9.9, 0, 0},
		{12, 0, 0}, // The share of 100 is used, and it is as large as the floor, 10 in the window.
		{17, 0, 1}, // The floor, 1 at once.
		{20, 0, 1},
		{30, 500, 49},
	} {
		firstsAt(b, after(c.at), c.firsts)
		if got := retriesAt(b, after(c.at), 200); got != c.want {
			t.Errorf("%d retries after %v s, want %d", got, c.at, c.want)
		}
	}
}

func TestBudget_DoesNotSpendItsFloorAtOnceAfterAPause(t *testing.T) {
	b := NewBudget(BudgetConfig{Percent: 10, Window: time.Minute, MinPerSecond: 2}, seeded())
	if got := retriesAt(b, after(3600), 1000); got != 12 {
		t.Errorf("%d retries at once, want a tenth of the window's 120", got)
	}
	allowed := 0
	for i := range 600 {
		allowed += retriesAt(b, after(3600+float64(i)/10), 5)
	}
	if allowed < 105 || allowed > 120 {
		t.Errorf("%d retries in the minute after, want about 2 a second", allowed)
	}
}

// Over any window at most as many retries as the larger of the share and the floor, where the window of the share is up to a
// tenth longer; and those that the share does not allow come at the floor's rate.
func TestBudget_IsNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := BudgetConfig{
			Percent:      rapid.IntRange(1, 300).Draw(t, "percent"),
			Window:       time.Duration(rapid.Int64Range(1000, 60_000).Draw(t, "window")) * time.Millisecond,
			MinPerSecond: rapid.Float64Range(0.01, 100).Draw(t, "minPerSecond"),
		}
		b := NewBudget(c, seeded())
		clock, seen := aClock{now: noon}, clock{}
		steps := rapid.Bool().Draw(t, "steps")
		var firsts, retries []int64
		longer := int64(c.Window) + int64(c.Window)/slots
		floor := math.Ceil(c.MinPerSecond * float64(longer) / 1e9)
		for range rapid.IntRange(1, 100).Draw(t, "n") {
			clock.run(t, c.Window/5, steps)
			now := seen.at(clock.now)
			b.Exhausted(clock.now) // The budget sees every step of the clock.
			for range rapid.IntRange(0, 20).Draw(t, "firsts") {
				b.First(clock.now)
				firsts = append(firsts, now)
			}
			for range rapid.IntRange(0, 20).Draw(t, "retries") {
				leave := b.Retry(clock.now)
				if wait := leave.Wait; !leave.OK {
					if wait < 10*time.Millisecond || wait > time.Hour || !b.Exhausted(clock.now) {
						t.Fatalf("told to wait %s; exhausted: %t", wait, b.Exhausted(clock.now))
					}
					continue
				}
				if rapid.IntRange(0, 3).Draw(t, "unused") == 0 {
					b.Cancel(leave, clock.now)
					continue
				}
				retries = append(retries, now)
				share := float64(c.Percent*since(firsts, now-longer)) / 100
				if n := float64(since(retries, now-int64(c.Window))); n > math.Max(share, floor) {
					t.Fatalf("%v retries in a window, share %v, floor %v, %+v", n, share, floor, c)
				}
			}
		}
	})
}

// since is how many are later.
func since(events []int64, than int64) int {
	n := 0
	for _, at := range events {
		if at > than {
			n++
		}
	}
	return n
}

func TestBudget_KeepsTheFloorsRateWithoutFirstAttempts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := BudgetConfig{
			Percent: 20, Window: time.Duration(rapid.Int64Range(1, 60).Draw(t, "window")) * time.Second,
			MinPerSecond: rapid.Float64Range(0.05, 50).Draw(t, "minPerSecond"),
		}
		b := NewBudget(c, seeded())
		clock, seen := aClock{now: noon}, clock{}
		start, steps := seen.at(noon), rapid.Bool().Draw(t, "steps")
		allowed := 0
		var passed float64
		for range 100 {
			clock.run(t, c.Window/10, steps)
			passed = time.Duration(seen.at(clock.now) - start).Seconds()
			allowed += retriesAt(b, clock.now, 100)
			if most := max(1, c.MinPerSecond*c.Window.Seconds()/10) + c.MinPerSecond*passed + 1e-6; float64(allowed) > most {
				t.Fatalf("%d retries in %v s, %+v", allowed, passed, c)
			}
		}
	})
}

func TestBudget_IsUsedInFull(t *testing.T) {
	cases := map[string]struct {
		config BudgetConfig
		firsts int // A second.
		want   float64
	}{
		"the share of a steady load":   {BudgetConfig{Percent: 20, Window: 10 * time.Second, MinPerSecond: 1}, 100, 20},
		"the floor without a load":     {BudgetConfig{Percent: 20, Window: 10 * time.Second, MinPerSecond: 5}, 0, 5},
		"the floor where it is larger": {BudgetConfig{Percent: 10, Window: time.Minute, MinPerSecond: 5}, 10, 5},
		"less than one in a second":    {BudgetConfig{Percent: 10, Window: time.Minute, MinPerSecond: 0.1}, 0, 0.1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := NewBudget(c.config, seeded())
			allowed := 0
			const duration = 600
			for i := range duration * 10 {
				now := after(float64(i) / 10)
				firstsAt(b, now, c.firsts/10)
				allowed += retriesAt(b, now, 10)
			}
			if got := float64(allowed) / duration; got < 0.95*c.want || got > 1.05*c.want {
				t.Errorf("%.2f retries a second, want %v", got, c.want)
			}
		})
	}
}

func TestBudget_RefusedRetriesNeitherReturnTogetherNorSpin(t *testing.T) {
	b := NewBudget(BudgetConfig{Percent: 20, Window: time.Minute, MinPerSecond: 10}, seeded())
	var f flood
	f.run(2000, func(now time.Time) (time.Duration, bool) {
		leave := b.Retry(now)
		return leave.Wait, leave.OK
	})
	t.Logf("done after %s, %d asks, %d at the most, %d in the busiest second", f.done, f.asks, f.most, f.busiest)
	if f.asks > 3*2000 || f.busiest > 30 || f.done > 220*time.Second {
		t.Errorf("%d asks, %d in the busiest second, done after %s", f.asks, f.busiest, f.done)
	}
}

func TestBudget_IsExhaustedWhileItRefuses(t *testing.T) {
	b := NewBudget(BudgetConfig{Percent: 10, Window: time.Minute, MinPerSecond: 0.1}, seeded())
	check := func(at float64, want bool) {
		t.Helper()
		if got := b.Exhausted(after(at)); got != want {
			t.Errorf("after %v s exhausted is %t", at, got)
		}
	}
	check(0, false)
	retriesAt(b, noon, 1)
	check(0, false)
	retriesAt(b, after(1), 1)
	check(1, true)
	check(6.9, true)
	check(7, false)
	check(3600, false)
	retriesAt(b, after(3600), 2)
	check(3601, true)
	check(1, true) // The clock was set back: it lasts no longer than without.
	check(7, false)
}

func TestBudget_GivesCanceledLeaveAgain(t *testing.T) {
	b := NewBudget(BudgetConfig{Percent: 10, Window: time.Minute, MinPerSecond: 0.001}, seeded())
	firstsAt(b, noon, 50)
	for range 100 {
		leave := b.Retry(noon)
		if !leave.OK {
			t.Fatal("refused")
		}
		b.Cancel(leave, noon)
	}
	if got := retriesAt(b, noon, 10); got != 5 {
		t.Errorf("%d retries, want 5", got)
	}
}

func TestBudget_GivesATokenOfTheFloorAgain(t *testing.T) {
	b := NewBudget(BudgetConfig{Percent: 10, Window: time.Minute, MinPerSecond: 0.1}, seeded())
	for range 100 {
		leave := b.Retry(noon)
		if !leave.OK {
			t.Fatal("refused")
		}
		b.Cancel(leave, noon)
		b.Cancel(Leave{}, noon) // a refusal has nothing to give back
	}
	if got := retriesAt(b, noon, 10); got != 1 {
		t.Errorf("%d retries at once, want 1", got)
	}
}

// Retries that their own limit turned away had used up the floor, and those of other partners waited for up to an hour and more.
func TestBudget_LosesNothingToRetriesThatALimitTurnsAway(t *testing.T) {
	const slow = 5000
	for _, perSecond := range []float64{0.01, 0.1} {
		b := NewBudget(BudgetConfig{Percent: 20, Window: time.Minute, MinPerSecond: 1}, seeded())
		limiter := NewLimiter(LimiterConfig{PerSecond: perSecond, Burst: 1}, time.Second, seeded())
		// due is when each comes first: the slow ones, as many of others as the floor allows in a minute and a half, and then few of others.
		var due []time.Duration
		var queue sleepers
		come := func(at time.Duration) {
			heap.Push(&queue, sleeper{at: at, asks: len(due)}) // by which it is known
			due = append(due, at)
		}
		for i := range slow {
			come(time.Duration(i) * 700 * time.Millisecond)
		}
		for range 90 {
			come(0)
		}
		for at := time.Duration(0); at < time.Hour; at += 5 * time.Second {
			come(at)
		}
		// ask is what a worker does for a retry that comes from a lane.
		ask := func(isSlow bool, now time.Time) (wait time.Duration) {
			leave := b.Retry(now)
			if !leave.OK || !isSlow {
				return leave.Wait
			}
			turn := limiter.Take("slow", now)
			if turn.OK {
				return 0
			}
			b.Cancel(leave, now)
			return turn.Wait
		}
		var longest time.Duration
		for queue.Len() > 0 {
			s := heap.Pop(&queue).(sleeper)
			wait := ask(s.asks < slow, noon.Add(s.at))
			switch {
			case wait > 0 && s.at < 3*time.Hour:
				s.at += max(wait, time.Second) // the shortest lane
				heap.Push(&queue, s)
			case s.asks >= slow:
				longest = max(longest, s.at-due[s.asks])
			}
		}
		if longest > 5*time.Minute {
			t.Errorf("%v a second: a retry of another partner waits for %s", perSecond, longest)
		}
	}
}

func TestBudget_KeepsItsCountsWhenReconfigured(t *testing.T) {
	b := NewBudget(BudgetConfig{Percent: 10, Window: time.Minute, MinPerSecond: 0.001}, seeded())
	firstsAt(b, noon, 100)
	if got := retriesAt(b, noon, 20); got != 10 {
		t.Fatalf("%d retries", got)
	}
	b.Reconfigure(BudgetConfig{Percent: 30, Window: time.Minute, MinPerSecond: 0.001}, noon)
	if got := retriesAt(b, noon, 100); got != 20 {
		t.Errorf("%d further retries at 30 %%, want 20", got)
	}
	b.Reconfigure(BudgetConfig{Percent: 30, Window: time.Second, MinPerSecond: 100}, noon)
	if got := retriesAt(b, noon, 100); got != 10 {
		t.Errorf("%d retries in a new window, want a tenth of its floor", got)
	}
}

func TestBudget_WorksWithAnyConfiguration(t *testing.T) {
	for _, c := range []BudgetConfig{
		{},
		{Percent: -1, Window: -1, MinPerSecond: -1},
		{Percent: 1 << 62, Window: 1 << 62, MinPerSecond: math.Inf(1)},
		{MinPerSecond: math.NaN()},
	} {
		b := NewBudget(c, seeded())
		for i := range 1000 {
			now := after(float64(i * i))
			b.First(now)
			leave := b.Retry(now)
			if wait := leave.Wait; !leave.OK && (wait < 10*time.Millisecond || wait > time.Hour) {
				t.Fatalf("%+v: told to wait %s", c, wait)
			}
			b.Cancel(leave, now)
			b.Exhausted(now)
		}
	}
}

func TestBudget_MayBeUsedByManyAtOnce(t *testing.T) {
	b := NewBudget(BudgetConfig{Percent: 10, Window: time.Minute, MinPerSecond: 0.001}, seeded())
	firstsAt(b, noon, 1000)
	var wg sync.WaitGroup
	allowed := make([]int, 4)
	for i := range allowed {
		wg.Go(func() {
			allowed[i] = retriesAt(b, noon, 100)
			b.Exhausted(noon)
		})
	}
	wg.Wait()
	if sum := allowed[0] + allowed[1] + allowed[2] + allowed[3]; sum != 100 {
		t.Errorf("%d retries, want 100", sum)
	}
}

func TestBudget_PromisesTurnsOfANewRateToWhoIsDenied(t *testing.T) {
	b := NewBudget(BudgetConfig{Percent: 1, Window: 10 * time.Second, MinPerSecond: 0.01}, seeded())
	for range 100 {
		b.Retry(noon)
	}
	b.Reconfigure(BudgetConfig{Percent: 1, Window: 10 * time.Second, MinPerSecond: 100}, noon.Add(time.Second))
	for range 500 {
		if leave := b.Retry(noon.Add(10 * time.Second)); leave.Wait > time.Minute {
			t.Fatalf("one of 500 retries is put off for %s at a rate of 100 a second", leave.Wait)
		}
	}
}
