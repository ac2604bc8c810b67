package resilience

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestLimiter_TokenBucketGivesItsBurstAndThenItsRate(t *testing.T) {
	l := NewLimiter(LimiterConfig{PerSecond: 10, Burst: 5}, 0, seeded())
	for _, c := range []struct {
		at   float64
		want int
	}{{0, 5}, {0.099, 0}, {0.1, 1}, {0.25, 1}, {0.3, 1}, {10, 5}, {10, 0}, {11, 5}} {
		if got := grants(l, "", after(c.at), 20); got != c.want {
			t.Errorf("%d turns after %v s, want %d", got, c.at, c.want)
		}
	}
}

// grants is how many of n are given a turn at once.
func grants(l *Limiter, key string, now time.Time, n int) int {
	given := 0
	for range n {
		if turn := l.Take(key, now); turn.OK && turn.Wait == 0 {
			given++
		}
	}
	return given
}

func TestLimiter_LeakyBucketSpacesTurnsAndHoldsItsBurst(t *testing.T) {
	l := NewLimiter(LimiterConfig{Smooth: true, PerSecond: 10, Burst: 3}, time.Minute, seeded())
	want := []Turn{
		{OK: true},
		{OK: true, Wait: 100 * time.Millisecond},
		{OK: true, Wait: 200 * time.Millisecond},
		{OK: true, Wait: 300 * time.Millisecond},
		{Wait: 400 * time.Millisecond},
		{Wait: 500 * time.Millisecond},
	}
	for i, w := range want {
		if got := answer(l.Take("", noon)); got != w {
			t.Errorf("message %d: %+v, want %+v", i, got, w)
		}
	}
	// One has gone: there is room for one.
	if got := answer(l.Take("", after(0.1))); got != (Turn{OK: true, Wait: 300 * time.Millisecond}) {
		t.Errorf("0.1 s later: %+v", got)
	}
	if got := l.Take("", after(0.1)); got.OK {
		t.Errorf("one too many waits for %s", got.Wait)
	}
}

// answer is a turn as its caller sees it.
func answer(turn Turn) Turn { return Turn{OK: turn.OK, Wait: turn.Wait} }

func TestLimiter_LetsNoTurnWaitLongerThanAsked(t *testing.T) {
	for _, smooth := range []bool{false, true} {
		for _, maxWait := range []time.Duration{-1, 0, 99 * time.Millisecond, 100 * time.Millisecond, time.Second, 2 * time.Hour} {
			l := NewLimiter(LimiterConfig{Smooth: smooth, PerSecond: 10, Burst: 100_000}, maxWait, seeded())
			bound, longest := min(max(maxWait, 0), time.Hour), time.Duration(0)
			for range 200_000 {
				turn := l.Take("", noon)
				if !turn.OK {
					break
				}
				longest = max(longest, turn.Wait)
			}
			if longest > bound || longest < bound-100*time.Millisecond {
				t.Errorf("smooth %t, at most %s: somebody waits %s", smooth, maxWait, longest)
			}
		}
	}
}

func TestLimiter_KeysDoNotDisturbEachOther(t *testing.T) {
	l := NewLimiter(LimiterConfig{PerSecond: 1, Burst: 2}, 0, seeded())
	for _, key := range []string{"", "acme", "globex"} {
		if got := grants(l, key, noon, 100); got != 2 {
			t.Errorf("key %q is given %d turns", key, got)
		}
	}
}

func TestLimiter_BoundOnKeysBoundsTheTurns(t *testing.T) {
	l := NewLimiter(LimiterConfig{PerSecond: 0.001, Burst: 1}, 0, seeded())
	given := 0
	for i := range 3 * maxKeys {
		given += grants(l, "key"+strconv.Itoa(i), noon, 1)
	}
	if given != maxKeys+1 {
		t.Errorf("%d turns at once for %d keys", given, 3*maxKeys)
	}
	// Their buckets are full again: others may have their places.
	given = 0
	for i := range 3 * maxKeys {
		given += grants(l, "other"+strconv.Itoa(i), after(1000), 1)
	}
	if given != maxKeys+1 {
		t.Errorf("%d turns at once for %d further keys", given, 3*maxKeys)
	}
}

func TestLimiter_KeepsAKeyWithPromises(t *testing.T) {
	l := NewLimiter(LimiterConfig{PerSecond: 1, Burst: 1}, 0, seeded())
	for range 21 {
		l.Take("busy", noon)
	}
	for i := range maxKeys {
		l.Take(strconv.Itoa(i), noon)
	}
	at := after(1.5) // All buckets are full.
	for i := range 2 * maxKeys {
		l.Take("new"+strconv.Itoa(i), at)
	}
	l.Take("busy", at)
	if turn := l.Take("busy", at); turn.OK || turn.Wait != 19500*time.Millisecond {
		t.Errorf("the next is told %+v, want the turn after the promised ones", turn)
	}
}

func TestLimiter_GivesACanceledTurnToTheNext(t *testing.T) {
	for _, smooth := range []bool{false, true} {
		l := NewLimiter(LimiterConfig{Smooth: smooth, PerSecond: 1, Burst: 1}, time.Minute, seeded())
		first := l.Take("k", noon)
		second := l.Take("k", noon)
		if second.Wait != time.Second || !second.OK {
			t.Fatalf("second: %+v", second)
		}
		l.Cancel(first) // Somebody waits behind it: its place stays empty.
		if got := l.Take("k", noon); got.OK && got.Wait < 2*time.Second || !smooth && !got.OK {
			t.Errorf("smooth %t: a place in the middle was given again: %+v", smooth, got)
		} else {
			l.Cancel(got)
		}
		l.Cancel(second)
		if got := answer(l.Take("k", noon)); got != (Turn{OK: true, Wait: time.Second}) {
			t.Errorf("smooth %t: the last place was not given again: %+v", smooth, got)
		}
	}
}

// The messages of a session that ends give their turns back together, in any order. Whoever came after them waited behind turns that nobody had.
func TestLimiter_GivesTurnsAgainThatAreCanceledTogether(t *testing.T) {
	const turns = 20
	for _, smooth := range []bool{false, true} {
		l := NewLimiter(LimiterConfig{Smooth: smooth, PerSecond: 1, Burst: turns}, time.Hour, seeded())
		if !smooth {
			grants(l, "k", noon, turns) // it is empty
		}
		var waiting []Turn
		for range turns {
			if turn := l.Take("k", noon); turn.Wait > 0 {
				waiting = append(waiting, turn)
			}
		}
		now := noon.Add(1500 * time.Millisecond) // the first of them has come
		l.Take("other", now)
		for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(waiting)) {
			l.Cancel(waiting[i])
		}
		for n := range turns {
			want := time.Duration(n)*time.Second + time.Second/2
			if got := answer(l.Take("k", now)); got != (Turn{OK: true, Wait: want}) {
				t.Fatalf("smooth %t: turn %d after those were given back: %+v, want a wait of %s", smooth, n, got, want)
			}
		}
		if left := len(l.returned); left > 0 {
			t.Errorf("smooth %t: %d turns are kept", smooth, left)
		}
	}
}

// A worker that stood still for long finds that all turns have come, and that the session of their messages has ended. Nobody waits behind them.
func TestLimiter_UnusedTurnsHoldUpNoOthers(t *testing.T) {
	const turns = 20
	for _, smooth := range []bool{false, true} {
		l := NewLimiter(LimiterConfig{Smooth: smooth, PerSecond: 1, Burst: turns}, time.Hour, seeded())
		var waiting []Turn
		for range 2 * turns {
			if turn := l.Take("k", noon); turn.OK && turn.Wait > 0 {
				waiting = append(waiting, turn)
			}
		}
		now := noon.Add(time.Hour)
		for range turns { // which a bucket admits at once
			l.Use(l.Take("k", now), now)
		}
		for _, turn := range waiting {
			l.Use(turn, now)
		}
		for range turns {
			l.Used(waiting[0], true, now)
		}
		for _, turn := range waiting {
			l.Used(turn, false, now)
			l.Cancel(turn)
		}
		for n := range 3 {
			now := now.Add(time.Duration(n) * time.Second)
			if wait := l.Use(l.Take("k", now), now); wait > time.Second {
				t.Errorf("smooth %t: call %d after those waits for %s", smooth, n, wait)
			}
		}
	}
}

func TestLimiter_MakesNoTurnOfACanceledDenial(t *testing.T) {
	l := NewLimiter(LimiterConfig{PerSecond: 1, Burst: 1}, 0, seeded())
	l.Take("", noon)
	l.Cancel(l.Take("", noon))
	if got := l.Take("", noon); got.OK {
		t.Error("a turn was made of a denial")
	}
}

// In any interval t at most burst + rate x t turns are due; of a leaky bucket, they are never closer than 1 / rate. It holds
// with turns given back, and with a clock that steps back and forward (where a step forward counts as time).
func TestLimiter_IsNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := LimiterConfig{
			Smooth:    rapid.Bool().Draw(t, "smooth"),
			PerSecond: rapid.Float64Range(0.01, 10_000).Draw(t, "perSecond"),
			Burst:     rapid.IntRange(1, 20).Draw(t, "burst"),
		}
		step := time.Duration(interval(c.PerSecond))
		l := NewLimiter(c, rapid.SampledFrom([]time.Duration{0, step, 7 * step, time.Minute}).Draw(t, "maxWait"), seeded())
		clock, seen := aClock{now: noon}, clock{}
		steps := rapid.Bool().Draw(t, "steps")
		var due []int64
		waiting := map[int64]Turn{} // by when they are due
		for range rapid.IntRange(1, 200).Draw(t, "n") {
			clock.run(t, 2*step, steps)
			now := seen.at(clock.now)
			turn := l.Take("k", clock.now)
			if turn.OK && rapid.IntRange(0, 9).Draw(t, "cancel") == 0 {
				l.Cancel(turn)
			} else if turn.OK {
				due = append(due, now+int64(turn.Wait))
				waiting[now+int64(turn.Wait)] = turn
			}
			for at, turn := range waiting { // some that were given before, in any order
				if at > now && rapid.IntRange(0, 9).Draw(t, "cancel another") == 0 {
					l.Cancel(turn)
					due = slices.DeleteFunc(due, func(d int64) bool { return d == at })
				}
				if at <= now || !slices.Contains(due, at) {
					delete(waiting, at)
				}
			}
		}
		slices.Sort(due)
		burst := int64(c.Burst)
		if c.Smooth {
			burst = 1
		}
		for i := range due {
			for j := i; j < len(due); j++ {
				if n := int64(j - i + 1); (n-burst)*int64(step) > due[j]-due[i] {
					t.Fatalf("%d turns within %s at %+v", n, time.Duration(due[j]-due[i]), c)
				}
			}
		}
	})
}

// A step of the clock never locks a limiter up: who comes as soon as the next turn is due gets it.
func TestLimiter_StepOfTheClockCostsNoMoreThanATurn(t *testing.T) {
	for _, smooth := range []bool{false, true} {
		for _, step := range []float64{-3600, 3600} {
			l := NewLimiter(LimiterConfig{Smooth: smooth, PerSecond: 10, Burst: 5}, 0, seeded())
			grants(l, "", noon, 20)
			l.Take("", after(step))
			if got := grants(l, "", after(step+0.1), 20); got < 1 || got > 5 {
				t.Errorf("smooth %t, clock set by %v s: %d turns 0.1 s later", smooth, step, got)
			}
		}
	}
}

// sleeper is a message that was told to ask again.
type sleeper struct {
	at   time.Duration
	asks int
}

type sleepers []sleeper

func (s *sleepers) Len() int           { return len(*s) }
func (s *sleepers) Less(i, j int) bool { return (*s)[i].at < (*s)[j].at }
func (s *sleepers) Swap(i, j int)      { (*s)[i], (*s)[j] = (*s)[j], (*s)[i] }
func (s *sleepers) Push(x any)         { *s = append(*s, x.(sleeper)) }
func (s *sleepers) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

// flood is a queue of messages that all come at once, and then whenever they were told to, some of them late.
type flood struct {
	// done is when the last one had its turn, asks how often they asked in all, and busiest how often in the worst second
	// after the first.
	done          time.Duration
	asks, busiest int
	// most that one message had to ask.
	most int
}

func (f *flood) run(messages int, ask func(now time.Time) (time.Duration, bool)) {
	rnd, asked := seeded(), map[int64]int{}
	queue := make(sleepers, messages)
	for queue.Len() > 0 {
		s := heap.Pop(&queue).(sleeper)
		s.asks++
		f.asks++
		asked[int64(s.at/time.Second)]++
		wait, ok := ask(noon.Add(s.at))
		if ok {
			f.done, f.most = s.at, max(f.most, s.asks)
			continue
		}
		late := time.Duration(rnd.Int64N(int64(min(wait/10, 2*time.Second)) + 1))
		heap.Push(&queue, sleeper{at: s.at + wait + late, asks: s.asks})
	}
	for at, n := range asked {
		if at > 0 {
			f.busiest = max(f.busiest, n)
		}
	}
}

func TestLimiter_DeniedCallsNeitherReturnTogetherNorSpin(t *testing.T) {
	cases := []struct {
		messages int
		config   LimiterConfig
		maxWait  time.Duration
		// asks for each message on average, those of the busiest second after the first, and the time until all are done as
		// a multiple of messages / perSecond: at most.
		asks    float64
		busiest int
		done    float64
	}{
		{messages: 2000, config: LimiterConfig{PerSecond: 10, Burst: 10}, asks: 2.2, busiest: 20, done: 1.02},
		// Who comes late finds the one place that there is taken: the price of no burst and no waiting.
		{messages: 2000, config: LimiterConfig{PerSecond: 10, Burst: 1}, asks: 4, busiest: 40, done: 1.8},
		{messages: 2000, config: LimiterConfig{PerSecond: 10, Burst: 1}, maxWait: time.Second, asks: 2.2, busiest: 20, done: 1.02},
		{messages: 2000, config: LimiterConfig{Smooth: true, PerSecond: 10, Burst: 10}, maxWait: time.Second, asks: 2.2, busiest: 20, done: 1.02},
		// Most of them come from beyond the horizon.
		{messages: 10_000, config: LimiterConfig{PerSecond: 1, Burst: 5}, maxWait: time.Second, asks: 4, busiest: 20, done: 1.02},
		{messages: 10_000, config: LimiterConfig{PerSecond: 1000, Burst: 1000}, asks: 2.2, busiest: 1200, done: 1.02},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			l := NewLimiter(c.config, c.maxWait, seeded())
			var f flood
			f.run(c.messages, func(now time.Time) (time.Duration, bool) {
				turn := l.Take("k", now)
				return turn.Wait, turn.OK
			})
			ideal := time.Duration(float64(c.messages) / c.config.PerSecond * float64(time.Second))
			t.Logf("done after %s (ideal %s), %.2f asks for each, %d at the most, %d in the busiest second",
				f.done, ideal, float64(f.asks)/float64(c.messages), f.most, f.busiest)
			if average := float64(f.asks) / float64(c.messages); average > c.asks {
				t.Errorf("each message asks %.1f times", average)
			}
			if f.busiest > c.busiest {
				t.Errorf("%d ask in one second", f.busiest)
			}
			if limit := time.Duration(c.done * float64(ideal)); f.done > limit {
				t.Errorf("all are done after %s, want %s at the most", f.done, limit)
			}
		})
	}
}

func TestLimiter_DropsPromisesAfterAMinuteOfSilence(t *testing.T) {
	l := NewLimiter(LimiterConfig{PerSecond: 1, Burst: 1}, 0, seeded())
	for range 3000 {
		l.Take("k", noon)
	}
	if turn := l.Take("k", after(30)); !turn.OK {
		t.Fatalf("after half a minute: %+v", turn)
	}
	if turn := l.Take("k", after(30)); turn.Wait < 45*time.Minute {
		t.Errorf("after half a minute the promises are kept, but the next is told %s", turn.Wait)
	}
	l.Take("k", after(95))
	if turn := l.Take("k", after(95)); turn.OK || turn.Wait != time.Second {
		t.Errorf("after a minute of silence: %+v, want 1s", turn)
	}
}

func TestLimiter_KeepsBucketsAsFullWhenReconfigured(t *testing.T) {
	cases := map[string]struct {
		before, after LimiterConfig
		taken         int
		want          int
	}{
		"full stays full, smaller":    {LimiterConfig{PerSecond: 1, Burst: 10}, LimiterConfig{PerSecond: 0.5, Burst: 5}, 0, 5},
		"full stays full, larger":     {LimiterConfig{PerSecond: 1, Burst: 5}, LimiterConfig{PerSecond: 2, Burst: 10}, 0, 10},
		"empty stays empty, smaller":  {LimiterConfig{PerSecond: 1, Burst: 10}, LimiterConfig{PerSecond: 0.5, Burst: 5}, 10, 0},
		"empty stays empty, larger":   {LimiterConfig{PerSecond: 1, Burst: 5}, LimiterConfig{PerSecond: 2, Burst: 10}, 5, 0},
		"half stays half, smaller":    {LimiterConfig{PerSecond: 1, Burst: 8}, LimiterConfig{PerSecond: 0.25, Burst: 4}, 4, 2},
		"half stays half, larger":     {LimiterConfig{PerSecond: 1, Burst: 4}, LimiterConfig{PerSecond: 4, Burst: 8}, 2, 4},
		"the same is as if it wasn't": {LimiterConfig{PerSecond: 4, Burst: 4}, LimiterConfig{PerSecond: 4, Burst: 4}, 1, 3},
		"smooth stays empty":          {LimiterConfig{PerSecond: 1, Burst: 4}, LimiterConfig{Smooth: true, PerSecond: 1, Burst: 4}, 4, 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l := NewLimiter(c.before, 0, seeded())
			for _, key := range []string{"", "k"} {
				if got := grants(l, key, noon, c.taken); got != c.taken {
					t.Fatalf("%d turns, want %d", got, c.taken)
				}
			}
			l.Reconfigure(c.after, 0, noon)
			for _, key := range []string{"", "k"} {
				if got := grants(l, key, noon, 20); got != c.want {
					t.Errorf("key %q: %d turns are left, want %d", key, got, c.want)
				}
			}
			next := time.Duration(float64(time.Second) / c.after.PerSecond)
			if got := grants(l, "k", noon.Add(next), 20); got != 1 {
				t.Errorf("%d turns at the next due time, want 1", got)
			}
		})
	}
}

// After scaling in, the pods that were left went on at their former share for as long as they had given turns ahead: up to 225 s.
func TestLimiter_TakesTurnsBackThatAreStillToComeWhenTheRateChanges(t *testing.T) {
	for _, smooth := range []bool{false, true} {
		for _, perSecond := range []float64{1, 4} {
			l := NewLimiter(LimiterConfig{Smooth: smooth, PerSecond: 2, Burst: 2}, 10*time.Second, seeded())
			var before []Turn
			for range 3 {
				before = append(before, l.Take("", noon))
			}
			l.Cancel(before[1])
			l.Reconfigure(LimiterConfig{Smooth: smooth, PerSecond: perSecond, Burst: 8}, 10*time.Second, noon)
			step := time.Duration(float64(time.Second) / perSecond)
			for n := range 3 {
				want := time.Duration(n+1) * step
				if got := l.Take("", noon); !got.OK || got.Wait != want {
					t.Errorf("smooth %t, %g a second: turn %d comes in %s, want %s", smooth, perSecond, n, got.Wait, want)
				}
				l.Cancel(before[2]) // which gives nothing back
			}
		}
	}
}

// Each pod that came or went put off the next turn of all by a whole interval: with 30 pods, of which one came or went every 15 seconds, none came.
func TestLimiter_GivesTurnsAtARateThatChangesBeforeEachOfThem(t *testing.T) {
	const waiting, changes, every = 10, 75, 8 * time.Second
	l := NewLimiter(LimiterConfig{PerSecond: 0.1, Burst: 1}, 225*time.Second, seeded())
	used, now := 0, noon
	for n := range changes {
		var turns []Turn
		for range waiting {
			turns = append(turns, l.Take("", now))
		}
		for _, turn := range turns {
			if turn.OK && turn.Wait < every {
				used++
			}
		}
		now = now.Add(every)
		l.Reconfigure(LimiterConfig{PerSecond: 1 / float64(10+n%2), Burst: 1}, 225*time.Second, now)
	}
	if least, most := 50, 61; used < least || used > most {
		t.Errorf("%d turns in ten minutes of 0.09 to 0.1 a second, want %d to %d", used, least, most)
	}
}

// A slow limit with a key was made fast, and who was over the new rate for a moment was promised a turn behind those of the old rate: in an hour.
func TestLimiter_PromisesTurnsOfANewRateToWhoIsDenied(t *testing.T) {
	l := NewLimiter(LimiterConfig{PerSecond: 0.01, Burst: 1}, time.Second, seeded())
	for range 40 {
		l.Take("a", noon)
	}
	l.Reconfigure(LimiterConfig{PerSecond: 100, Burst: 100}, time.Second, noon.Add(time.Second))
	for range 500 { // what the new rate admits in five seconds
		if turn := l.Take("a", noon.Add(10*time.Second)); turn.Wait > time.Minute {
			t.Fatalf("one of 500 messages is put off for %s at a rate of 100 a second", turn.Wait)
		}
	}
}

func TestLimiter_UsesTurnsOfAFormerRateNoFasterThanTheNewOne(t *testing.T) {
	const turns = 100
	l := NewLimiter(LimiterConfig{PerSecond: turns, Burst: 1}, 10*time.Second, seeded())
	var before []Turn
	for range turns {
		before = append(before, l.Take("", noon))
	}
	l.Reconfigure(LimiterConfig{PerSecond: 1, Burst: 1}, 10*time.Second, noon)
	var last time.Duration
	for _, turn := range before {
		last = max(last, turn.Wait+l.Use(turn, noon.Add(turn.Wait)))
		l.Used(turn, true, noon.Add(last))
	}
	if least := (turns - 2) * time.Second; last < least {
		t.Errorf("%d turns are used within %s, want no less than %s", turns, last, least)
	}
}

func TestLimiter_ChangesTheLongestWaitWhenReconfigured(t *testing.T) {
	config := LimiterConfig{PerSecond: 1, Burst: 1}
	l := NewLimiter(config, 0, seeded())
	l.Take("", noon)
	if turn := l.Take("", noon); turn.OK {
		t.Errorf("%+v: want no turn that has to be waited for", turn)
	}
	l.Reconfigure(config, time.Minute, noon)
	if turn := l.Take("", noon); !turn.OK || turn.Wait != time.Second {
		t.Errorf("%+v: want one in a second", turn)
	}
	l.Reconfigure(config, time.Second, noon)
	if turn := l.Take("", noon); turn.OK {
		t.Errorf("%+v: want none in two seconds", turn)
	}
}

// Out of range counts as the nearest value, and nothing fails.
func TestLimiter_WorksWithAnyConfiguration(t *testing.T) {
	for _, c := range []LimiterConfig{
		{},
		{PerSecond: -1, Burst: -1},
		{PerSecond: 1e-9, Burst: 1 << 62},
		{PerSecond: 1e300, Burst: 1 << 62},
		{Smooth: true},
		{Smooth: true, PerSecond: 1e-9, Burst: 1 << 62},
		{Smooth: true, PerSecond: 1e300, Burst: 1 << 62},
	} {
		l := NewLimiter(c, 1<<62, seeded())
		for i := range 1000 {
			turn := l.Take("", after(float64(i*i)))
			if turn.Wait < 0 || turn.Wait > time.Hour || !turn.OK && turn.Wait < 10*time.Millisecond {
				t.Fatalf("%+v: %+v", c, turn)
			}
		}
		l.Reconfigure(LimiterConfig{PerSecond: 1, Burst: 1}, 1<<62, after(1e6))
		if turn := l.Take("", after(1e6+366*86400)); !turn.OK || turn.Wait != 0 {
			t.Errorf("%+v: after a year as a usual limiter: %+v", c, turn)
		}
	}
}

func TestLimiter_MayBeUsedByManyAtOnce(t *testing.T) {
	l := NewLimiter(LimiterConfig{PerSecond: 1, Burst: 100}, 0, seeded())
	var wg sync.WaitGroup
	given := make([]int, 4)
	for i := range given {
		wg.Go(func() {
			for range 200 {
				given[i] += grants(l, "k", noon, 1)
				l.Cancel(l.Take("other", noon))
				l.Reconfigure(LimiterConfig{PerSecond: 1, Burst: 100}, 0, noon)
			}
		})
	}
	wg.Wait()
	if sum := given[0] + given[1] + given[2] + given[3]; sum != 100 {
		t.Errorf("%d turns, want 100", sum)
	}
}

func TestLimiter_TurnIsLateOnceTheNextHasCome(t *testing.T) {
	for name, config := range map[string]LimiterConfig{
		"leaky": {Smooth: true, PerSecond: 10, Burst: 5}, "token": {PerSecond: 10, Burst: 1},
	} {
		limiter, now := NewLimiter(config, time.Second, nil), time.Now()
		limiter.Take("", now)
		turn := limiter.Take("", now)
		for _, after := range []time.Duration{0, 100 * time.Millisecond, 199 * time.Millisecond, 201 * time.Millisecond} {
			want := after > 200*time.Millisecond
			if got := limiter.IsLate(turn, now.Add(after)); got != want {
				t.Errorf("%s: a turn after 100 ms is late after %s: %t, want %t", name, after, got, want)
			}
		}
	}
}

func TestLimiter_WaitedTurnsAreUsedNoFasterThanGiven(t *testing.T) {
	const n = 20
	for name, c := range map[string]struct {
		config LimiterConfig
		// late is how long after the first they are used, and last when the last of them is to be.
		late, last time.Duration
	}{
		"leaky, as they come": {LimiterConfig{Smooth: true, PerSecond: 10, Burst: n}, 0, 0},
		"leaky, all at once":  {LimiterConfig{Smooth: true, PerSecond: 10, Burst: n}, 2 * time.Second, 1800 * time.Millisecond},
		"token, all at once":  {LimiterConfig{PerSecond: 10, Burst: 5}, 2 * time.Second, 1400 * time.Millisecond},
	} {
		limiter, now := NewLimiter(c.config, 3*time.Second, nil), time.Now()
		var turns []Turn
		for range n {
			turns = append(turns, limiter.Take("", now))
		}
		for i, turn := range turns {
			want := max(0, c.last-time.Duration(n-1-i)*100*time.Millisecond)
			if wait := limiter.Use(turn, now.Add(max(turn.Wait, c.late))); wait != want {
				t.Errorf("%s: turn %d of %d waits for %s, want %s", name, i+1, n, wait, want)
			}
		}
	}
}

func TestLimiter_SlowTurnsHoldUpNoneAtAFasterRate(t *testing.T) {
	limiter, now := NewLimiter(LimiterConfig{Smooth: true, PerSecond: 0.001, Burst: 10}, time.Hour, nil), time.Now()
	for range 3 {
		limiter.Use(limiter.Take("", now), now)
	}
	limiter.Reconfigure(LimiterConfig{Smooth: true, PerSecond: 10, Burst: 10}, time.Hour, now)
	if wait := limiter.Use(limiter.Take("", now), now); wait > 200*time.Millisecond {
		t.Errorf("it waits for %s", wait)
	}
}
