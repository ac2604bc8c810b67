package resilience

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBreaker_WorksWithAnyConfiguration(t *testing.T) {
	for _, c := range []BreakerConfig{
		{},
		{FailurePercent: -1, SlowAfter: -1, SlowPercent: -1, MinimumCalls: -1, Window: -1, OpenFor: -1, MaxOpenFor: -1, Concurrency: -1},
		{FailurePercent: 101, SlowAfter: 1 << 62, SlowPercent: 101, MinimumCalls: 1, Window: 1 << 62, OpenFor: 1 << 62, MaxOpenFor: 1 << 62, Concurrency: 1 << 40},
	} {
		w := watch(t, c, seeded())
		now := noon
		for range 5 {
			permit, _, ok := w.Admit(now, 1<<62)
			if !ok {
				t.Fatalf("%+v: denied in %s", c, w.State(now))
			}
			permit.Done(now, time.Second, Failure)
			if until := w.openUntil(now); until.Before(now) || w.State(now) != Open {
				t.Fatalf("%+v: %s until %s", c, w.State(now), until)
			}
			now = w.openUntil(now)
			w.want(now, Probing, 1)
		}
	}
}

// inOrder says whether a change may follow the state before.
func inOrder(from, to State) bool {
	return slices.Contains(map[State][]State{
		Closed: {Open}, Open: {Probing}, Probing: {Open, Ramping, Closed}, Ramping: {Open, Closed},
	}[from], to)
}

// Whatever is called, in whatever order, with the clock set back and forward: an open breaker admits nothing, a probing one a
// single call, a ramping one no more than it says; and when the partner works again, it closes.
func TestBreaker_NeverAdmitsTooManyAndNeverLocksUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := BreakerConfig{
			FailurePercent: rapid.IntRange(1, 100).Draw(t, "failurePercent"),
			SlowAfter:      rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "slowAfter"),
			SlowPercent:    rapid.IntRange(1, 100).Draw(t, "slowPercent"),
			MinimumCalls:   rapid.IntRange(1, 5).Draw(t, "minimumCalls"),
			Window:         10 * time.Second, OpenFor: time.Second, MaxOpenFor: 8 * time.Second,
			Concurrency: rapid.IntRange(1, 9).Draw(t, "concurrency"),
		}
		state := Closed
		b := NewBreaker(c, seeded(), func(from, to State, why string) {
			if from != state || !inOrder(from, to) || why == "" || strings.Contains(why, "!") {
				t.Fatalf("%s > %s (%s) while %s", from, to, why, state)
			}
			state = to
		})
		type flight struct {
			Permit
			deadline int64
		}
		clock, seen, steps := aClock{now: noon}, clock{}, rapid.Bool().Draw(t, "steps")
		var inFlight []flight
		for range rapid.IntRange(1, 200).Draw(t, "n") {
			clock.run(t, 2*time.Second, steps)
			now := seen.at(clock.now)
			if n := len(inFlight); n > 0 && rapid.Bool().Draw(t, "done") {
				i := rapid.IntRange(0, n-1).Draw(t, "which")
				took := time.Duration(rapid.Int64Range(0, int64(1100*time.Millisecond)).Draw(t, "took"))
				inFlight[i].Done(clock.now, took, rapid.SampledFrom([]Outcome{Success, Failure, Neither}).Draw(t, "outcome"))
				inFlight = slices.Delete(inFlight, i, i+1)
				continue
			}
			allowed := b.Allowed(clock.now)
			permit, wait, ok := b.Admit(clock.now, 3*time.Second)
			if ok {
				inFlight = append(inFlight, flight{permit, now + int64(3*time.Second)})
			}
			if ok != (wait == 0) || !ok && (wait < 10*time.Millisecond || wait > 2*c.MaxOpenFor) {
				t.Fatalf("admitted %t, wait %s", ok, wait)
			}
			live := 0
			for _, f := range inFlight {
				if f.era == b.era && f.deadline > now {
					live++
				}
			}
			if ok && allowed == 0 || state != Closed && live > allowed {
				t.Fatalf("%d in flight while %s, %d allowed", live, state, allowed)
			}
			if until := b.openUntil(clock.now); !until.IsZero() && until.Sub(clock.now) > c.MaxOpenFor {
				t.Fatalf("open for another %s", until.Sub(clock.now))
			}
		}
		// The longest pause, the deadline of all permits and the window are over.
		works := clock.now.Add(12 * time.Second)
		for range 1 + 2 + 4 + 8 {
			permit, _, ok := b.Admit(works, time.Second)
			if !ok {
				t.Fatalf("denied while %s", b.State(works))
			}
			permit.Done(works, 0, Success)
		}
		if b.State(works) == Open || b.State(works) == Probing {
			t.Fatalf("still %s after 15 successes", b.State(works))
		}
	})
}

func TestBreaker_StepOfTheClockKeepsItOpenNoLonger(t *testing.T) {
	for _, step := range []float64{-3600, 3600} {
		w := watch(t, aBreaker(), middle{})
		w.calls(noon, 10, Failure)
		w.want(after(4), Open, 0)
		now := after(4 + step)
		if left := w.openUntil(now).Sub(now); step < 0 && left != 6*time.Second {
			t.Errorf("clock set by %v s: open for another %s", step, left)
		}
		w.want(after(10+step), Probing, 1)
	}
}

// The callback may use the breaker, and hears of what it brings about itself after it has returned.
func TestBreaker_TellsChangesInOrderAndOutsideOfItsLock(t *testing.T) {
	var b *Breaker
	var told []State
	deep := 0
	b = NewBreaker(aBreaker(), middle{}, func(_, to State, _ string) {
		if deep++; deep > 1 {
			t.Error("told of a change while it was told of another")
		}
		told = append(told, to)
		now := b.openUntil(noon)
		if to == Open {
			b.Allowed(now) // It begins to probe.
		}
		if to == Probing {
			permit, _, _ := b.Admit(after(10), timeout)
			permit.Done(after(10), 0, Success)
		}
		deep--
	})
	for range 10 {
		permit, _, _ := b.Admit(noon, timeout)
		permit.Done(noon, 0, Failure)
	}
	if want := []State{Open, Probing, Ramping}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

func TestBreaker_MayBeUsedByManyAtOnce(t *testing.T) {
	c := aBreaker()
	c.Concurrency, c.OpenFor, c.MaxOpenFor = 4, 10*time.Millisecond, 10*time.Millisecond
	state, changes, telling := Closed, 0, atomic.Bool{}
	b := NewBreaker(c, least{}, func(from, to State, _ string) {
		if !telling.CompareAndSwap(false, true) {
			t.Error("told of two changes at once")
		}
		if from != state || !inOrder(from, to) {
			t.Errorf("%s > %s while %s", from, to, state)
		}
		state = to
		changes++
		telling.Store(false)
	})
	var wg sync.WaitGroup
	var ms atomic.Int64
	for i := range 4 {
		wg.Go(func() {
			for range 1000 {
				now := noon.Add(time.Duration(ms.Add(1)) * time.Millisecond)
				if permit, _, ok := b.Admit(now, time.Millisecond); ok {
					permit.Done(now, 0, Outcome(i%2))
				}
				b.State(now)
			}
		})
	}
	wg.Wait()
	if changes == 0 {
		t.Error("nothing changed")
	}
}

func TestBreaker_PausesForAsLongAsAPartnerAsks(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	b := watch(t, aBreaker(), least{})
	b.call(now, 0, Success)
	b.Pause(now, 20*time.Second, "it asks")
	if until := b.openUntil(now); !until.Equal(now.Add(20 * time.Second)) {
		t.Errorf("open until %s", until.Sub(now))
	}
	b.Pause(now, 5*time.Second, "it asks for less")
	if until := b.openUntil(now); !until.Equal(now.Add(20 * time.Second)) {
		t.Errorf("less: open until %s", until.Sub(now))
	}
	b.Pause(now, time.Hour, "it asks for more")
	if until := b.openUntil(now); !until.Equal(now.Add(time.Minute)) {
		t.Errorf("more than maxOpenFor: open until %s", until.Sub(now))
	}
	now = now.Add(time.Minute)
	if state := b.State(now); state != Probing {
		t.Errorf("then %s", state)
	}
	if want := []string{"Closed > Open: it asks", "Open > Probing: it was open for 1m0s"}; !slices.Equal(b.changes, want) {
		t.Errorf("told %q", b.changes)
	}
	b.End("over")
	b.Pause(now, time.Minute, "it asks again")
	if state := b.State(now); state != Closed {
		t.Errorf("one that has ended is %s", state)
	}
}

func TestPermit_StandsUntilAChangeOrTheLossOfItsPlace(t *testing.T) {
	w := watch(t, aBreaker(), seeded())
	early, _, _ := w.Admit(noon, timeout)
	stands := func(what string, p Permit, now time.Time, want bool) {
		t.Helper()
		if got := p.Stands(now); got != want {
			t.Errorf("%s: stands %t, want %t", what, got, want)
		}
	}
	stands("none", Permit{}, noon, true)
	stands("while closed", early, noon, true)
	w.calls(noon, 10, Failure)
	stands("once open", early, noon, false)

	w, now := probing(t, aBreaker())
	probe, _, _ := w.Admit(now, timeout)
	stands("while probing", probe, now, true)
	if _, _, ok := w.Admit(now.Add(2*timeout), timeout); !ok {
		t.Fatal("the place is not given to another")
	}
	stands("once another has its place", probe, now.Add(2*timeout), false)
}
