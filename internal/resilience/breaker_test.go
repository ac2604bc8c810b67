package resilience

import (
	"slices"
	"testing"
	"time"
)

func aBreaker() BreakerConfig {
	return BreakerConfig{
		FailurePercent: 50, SlowAfter: 5 * time.Second, SlowPercent: 80, MinimumCalls: 10, Window: 30 * time.Second,
		OpenFor: 10 * time.Second, MaxOpenFor: time.Minute, Concurrency: 10,
	}
}

// watched is a breaker with the changes that it told.
type watched struct {
	*Breaker
	t       testing.TB
	changes []string
}

func watch(t testing.TB, c BreakerConfig, rnd Random) *watched {
	t.Helper()
	w := &watched{t: t}
	w.Breaker = NewBreaker(c, rnd, func(from, to State, why string) {
		w.changes = append(w.changes, from.String()+" > "+to.String()+": "+why)
	})
	return w
}

const timeout = 30 * time.Second

// openUntil is when an open breaker begins to probe; the zero time where it is not open.
func (b *Breaker) openUntil(now time.Time) time.Time {
	b.mu.Lock()
	defer b.unlock()
	if t := b.roll(now); b.state == Open {
		return now.Add(time.Duration(b.until - t))
	}
	return time.Time{}
}

// call makes a call that takes no time but says that it did.
func (w *watched) call(now time.Time, took time.Duration, outcome Outcome) {
	w.t.Helper()
	permit, wait, ok := w.Admit(now, timeout)
	if !ok || wait != 0 {
		w.t.Fatalf("denied in state %s, %s", w.State(now), wait)
	}
	permit.Done(now, took, outcome)
}

func (w *watched) calls(now time.Time, n int, outcome Outcome) {
	w.t.Helper()
	for range n {
		w.call(now, 0, outcome)
	}
}

// lose makes a call of which nothing is heard again.
func (w *watched) lose(now time.Time, timeout time.Duration) {
	w.t.Helper()
	if _, _, ok := w.Admit(now, timeout); !ok {
		w.t.Fatalf("denied in state %s", w.State(now))
	}
}

func (w *watched) want(now time.Time, state State, allowed int) {
	w.t.Helper()
	if s, a := w.State(now), w.Allowed(now); s != state || a != allowed {
		w.t.Fatalf("%s, %d at a time; want %s, %d; changes %q", s, a, state, allowed, w.changes)
	}
}

// probing is a breaker that begins to probe after 10 s.
func probing(t testing.TB, c BreakerConfig) (*watched, time.Time) {
	t.Helper()
	w := watch(t, c, middle{})
	w.calls(noon, c.MinimumCalls, Failure)
	w.want(noon, Open, 0)
	now := noon.Add(c.OpenFor)
	w.want(now, Probing, 1)
	return w, now
}

// After a long outage it is open for MaxOpenFor, and those who were denied came back over as long again after it had closed.
func TestBreaker_DeniedCallsComeBackSoonAfterALongOutage(t *testing.T) {
	c := aBreaker()
	w, now := probing(t, c)
	for range 5 {
		w.call(now, 0, Failure)
		now = w.openUntil(now)
	}
	w.call(now, 0, Failure)
	left := w.openUntil(now).Sub(now)
	if left < c.MaxOpenFor*8/10 {
		t.Fatalf("it is open for %s, want about %s", left, c.MaxOpenFor)
	}
	w.rnd = seeded()
	var longest time.Duration
	for range 1000 {
		_, wait, ok := w.Admit(now, time.Second)
		if ok || wait < left {
			t.Fatalf("admitted %t, or to ask again in %s, while it is open for %s", ok, wait, left)
		}
		longest = max(longest, wait)
	}
	if late := longest - left; late > c.OpenFor || late < c.OpenFor/2 {
		t.Errorf("the last comes back %s after the first probe, want up to %s", late, c.OpenFor)
	}
}

// middle draws the middle of each range.
type middle struct{}

func (middle) Int64N(n int64) int64 { return n / 2 }

func TestBreaker_OpensWhereEnoughCallsFailOrAreSlow(t *testing.T) {
	type calls struct {
		at      float64
		n       int
		took    time.Duration
		outcome Outcome
	}
	const slow = 5 * time.Second
	cases := map[string]struct {
		calls []calls
		why   string // Empty where it stays closed.
	}{
		"all fail": {[]calls{{0, 10, 0, Failure}}, "10 of 10 calls failed (100 %), limit 50 %"},
		"half fail": {
			[]calls{{0, 5, 0, Failure}, {1, 5, 0, Success}}, "5 of 10 calls failed (50 %), limit 50 %",
		},
		"less than half fail":       {[]calls{{0, 7, 0, Success}, {0, 6, 0, Failure}}, ""},
		"too few to judge":          {[]calls{{0, 9, 0, Failure}}, ""},
		"the limit comes late":      {[]calls{{0, 9, 0, Success}, {0, 9, 0, Failure}}, "9 of 18 calls failed (50 %), limit 50 %"},
		"not all in one window":     {[]calls{{0, 9, 0, Failure}, {33, 9, 0, Failure}}, ""},
		"all still in the window":   {[]calls{{0, 9, 0, Failure}, {30, 1, 0, Failure}}, "10 of 10 calls failed (100 %), limit 50 %"},
		"nothing of health":         {[]calls{{0, 100, slow, Neither}, {0, 9, 0, Failure}}, ""},
		"most are slow":             {[]calls{{0, 2, 0, Success}, {0, 8, slow, Success}}, "8 of 10 calls took 5s or longer (80 %), limit 80 %"},
		"too few are slow":          {[]calls{{0, 3, 0, Success}, {0, 11, slow, Success}}, ""},
		"all are almost slow":       {[]calls{{0, 100, slow - 1, Success}}, ""},
		"slow failures count twice": {[]calls{{0, 10, slow, Failure}}, "10 of 10 calls failed (100 %), limit 50 %"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := watch(t, aBreaker(), seeded())
			for _, call := range c.calls {
				for range call.n {
					w.call(after(call.at), call.took, call.outcome)
				}
			}
			var want []string
			state, allowed := Closed, 10
			if c.why != "" {
				want, state, allowed = []string{"Closed > Open: " + c.why}, Open, 0
			}
			w.want(after(c.calls[len(c.calls)-1].at), state, allowed)
			if !slices.Equal(w.changes, want) {
				t.Errorf("changes %q, want %q", w.changes, want)
			}
		})
	}
}

func TestBreaker_IgnoresSlowCallsWithoutSlowAfter(t *testing.T) {
	c := aBreaker()
	c.SlowAfter = 0
	w := watch(t, c, seeded())
	for range 100 {
		w.call(noon, time.Hour, Success)
	}
	w.want(noon, Closed, 10)
}

func TestBreaker_AdmitsNothingUntilItsTimeIsOver(t *testing.T) {
	cases := map[string]struct {
		rnd  Random
		want time.Duration
	}{
		"shortest draw": {least{}, 9 * time.Second},
		"middle":        {middle{}, 10 * time.Second},
		"longest draw":  {most{}, 11 * time.Second},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := watch(t, aBreaker(), c.rnd)
			w.calls(noon, 10, Failure)
			until := w.openUntil(after(1))
			if got := until.Sub(noon); got != c.want {
				t.Fatalf("open for %s, want %s", got, c.want)
			}
			last := until.Add(-1)
			if _, wait, ok := w.Admit(last, timeout); ok || wait < 10*time.Millisecond || wait > 11*time.Second {
				t.Errorf("admitted %t, told to wait %s", ok, wait)
			}
			w.want(last, Open, 0)
			w.want(until, Probing, 1)
			if !w.openUntil(until).IsZero() {
				t.Errorf("probing until %s", w.openUntil(until))
			}
		})
	}
}

func TestBreaker_StaysOpenTwiceAsLongAfterEachFailedProbe(t *testing.T) {
	w, now := probing(t, aBreaker())
	for _, want := range []float64{20, 40, 60, 60} {
		w.call(now, 0, Failure)
		w.want(now, Open, 0)
		got := w.openUntil(now).Sub(now).Seconds()
		if want == 60 { // No draw makes it longer than the longest.
			want = 57
		}
		if got != want {
			t.Errorf("open for %v s, want %v", got, want)
		}
		now = w.openUntil(now)
	}
	w.calls(now, 1+2+4+8, Success)
	w.want(now, Closed, 10)
	w.calls(now, 10, Failure)
	if got := w.openUntil(now).Sub(now); got != 10*time.Second {
		t.Errorf("open for %s after it was closed, want 10s", got)
	}
}

func TestBreaker_ProbesWithOneCallAtATime(t *testing.T) {
	w, now := probing(t, aBreaker())
	for range 3 {
		permit, _, ok := w.Admit(now, timeout)
		if !ok {
			t.Fatal("the probe is denied")
		}
		for range 10 {
			if _, wait, ok := w.Admit(now, timeout); ok || wait < time.Second || wait > 10*time.Second {
				t.Fatalf("a second probe: %t, wait %s", ok, wait)
			}
		}
		permit.Done(now, 0, Neither)
		w.want(now, Probing, 1)
	}
	if want := []string{"Closed > Open: 10 of 10 calls failed (100 %), limit 50 %", "Open > Probing: it was open for 10s"}; !slices.Equal(w.changes, want) {
		t.Errorf("changes %q, want %q", w.changes, want)
	}
}

func TestBreaker_ProbeDecidesTheNextState(t *testing.T) {
	cases := map[string]struct {
		took        time.Duration
		outcome     Outcome
		concurrency int
		state       State
		allowed     int
		why         string
	}{
		"it succeeds":                       {0, Success, 10, Ramping, 2, "Probing > Ramping: the probe succeeded"},
		"it fails":                          {0, Failure, 10, Open, 0, "Probing > Open: the probe failed"},
		"it is slow":                        {6 * time.Second, Success, 10, Open, 0, "Probing > Open: the probe took 6s, slow from 5s"},
		"it succeeds and two are all":       {0, Success, 2, Closed, 2, "Probing > Closed: the probe succeeded"},
		"it succeeds and one is all":        {0, Success, 1, Closed, 1, "Probing > Closed: the probe succeeded"},
		"it says nothing, and one is all":   {0, Neither, 1, Probing, 1, "Open > Probing: it was open for 10s"},
		"it is abandoned after a long time": {time.Hour, Neither, 10, Probing, 1, "Open > Probing: it was open for 10s"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			config := aBreaker()
			config.Concurrency = c.concurrency
			w, now := probing(t, config)
			w.call(now, c.took, c.outcome)
			w.want(now, c.state, c.allowed)
			if last := w.changes[len(w.changes)-1]; last != c.why {
				t.Errorf("%q, want %q", last, c.why)
			}
		})
	}
}

func TestBreaker_RampDoublesUntilItCloses(t *testing.T) {
	w, now := probing(t, aBreaker())
	w.calls(now, 1, Success)
	for _, step := range []int{2, 4, 8} {
		w.want(now, Ramping, step)
		var permits []Permit
		for range step {
			permit, _, ok := w.Admit(now, timeout)
			if !ok {
				t.Fatalf("denied with %d of %d in flight", len(permits), step)
			}
			permits = append(permits, permit)
		}
		if _, wait, ok := w.Admit(now, timeout); ok || wait < time.Second {
			t.Fatalf("one more than %d is admitted; wait %s", step, wait)
		}
		for i, permit := range permits {
			w.want(now, Ramping, step)
			permit.Done(now, 0, Neither)
			w.calls(now, 1, Success)
			if i < step-1 {
				w.want(now, Ramping, step)
			}
		}
	}
	w.want(now, Closed, 10)
	if last := w.changes[len(w.changes)-1]; last != "Ramping > Closed: ramped up to 10 calls at a time" {
		t.Errorf("%q", last)
	}
	// The window is empty: nine failures are too few to judge.
	w.calls(now, 9, Failure)
	w.want(now, Closed, 10)
}

func TestBreaker_RampOpensAgainWhereCallsFailOrAreSlow(t *testing.T) {
	const slow = 5 * time.Second
	type calls struct {
		n       int
		took    time.Duration
		outcome Outcome
	}
	cases := map[string]struct {
		percent int
		calls   []calls
		why     string // Empty where it goes on.
		allowed int
	}{
		"one of the first two fails":      {50, []calls{{1, 0, Failure}}, "1 of 1 calls failed (100 %), limit 50 %, at 2 at a time", 0},
		"one of two, where all must":      {100, []calls{{1, 0, Failure}}, "", 2},
		"both, where all must":            {100, []calls{{2, 0, Failure}}, "2 of 2 calls failed (100 %), limit 100 %, at 2 at a time", 0},
		"one in three, limit above":       {51, []calls{{1, 0, Failure}, {2, 0, Success}}, "", 4},
		"two of three, limit below":       {60, []calls{{1, 0, Failure}, {1, 0, Success}, {1, 0, Failure}}, "2 of 3 calls failed (66 %), limit 60 %, at 2 at a time", 0},
		"one of the next four":            {50, []calls{{2, 0, Success}, {1, 0, Failure}}, "", 4},
		"two of the next four":            {50, []calls{{2, 0, Success}, {1, 0, Failure}, {1, 0, Success}, {1, 0, Failure}}, "2 of 3 calls failed (66 %), limit 50 %, at 4 at a time", 0},
		"earlier steps do not count":      {50, []calls{{2, 0, Success}, {1, 0, Failure}, {4, 0, Success}, {3, 0, Failure}}, "", 8},
		"both slow":                       {50, []calls{{2, slow, Success}}, "2 of 2 calls took 5s or longer (100 %), limit 80 %, at 2 at a time", 0},
		"one of two slow":                 {50, []calls{{1, slow, Success}, {1, 0, Success}}, "", 4},
		"what says nothing does nothing":  {50, []calls{{100, slow, Neither}}, "", 2},
		"it does not count as a success":  {50, []calls{{1, 0, Success}, {50, 0, Neither}}, "", 2},
		"nor does a failure":              {100, []calls{{1, 0, Success}, {1, 0, Failure}}, "", 2},
		"but a slow success is a success": {50, []calls{{1, 0, Success}, {1, slow, Success}}, "", 4},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			config := aBreaker()
			config.FailurePercent = c.percent
			w, now := probing(t, config)
			w.calls(now, 1, Success)
			for _, call := range c.calls {
				for range call.n {
					w.call(now, call.took, call.outcome)
				}
			}
			last := w.changes[len(w.changes)-1]
			if c.why == "" {
				w.want(now, Ramping, c.allowed)
				return
			}
			w.want(now, Open, 0)
			if last != "Ramping > Open: "+c.why {
				t.Errorf("%q, want %q", last, c.why)
			}
			if got := w.openUntil(now).Sub(now); got != 20*time.Second {
				t.Errorf("open for %s, want 20s", got)
			}
		})
	}
}

func TestPermit_OfAnEarlierStateDecidesNothing(t *testing.T) {
	w := watch(t, aBreaker(), middle{})
	var old []Permit
	admit := func(now time.Time) Permit {
		permit, _, ok := w.Admit(now, time.Hour)
		if !ok {
			t.Fatalf("denied in %s", w.State(now))
		}
		return permit
	}
	finish := func(now time.Time, outcome Outcome) {
		for _, permit := range old {
			permit.Done(now, time.Hour, outcome)
		}
	}
	for range 50 {
		old = append(old, admit(noon))
	}
	w.calls(noon, 10, Failure)
	finish(noon, Success)
	w.want(noon, Open, 0)
	finish(after(10), Failure)
	w.want(after(10), Probing, 1)
	finish(after(10), Success)
	w.want(after(10), Probing, 1)

	probe := admit(after(10))
	finish(after(10), Neither) // They free no place.
	if _, _, ok := w.Admit(after(10), timeout); ok {
		t.Fatal("a second probe")
	}
	probe.Done(after(10), 0, Success)
	old = append(old, probe)
	w.want(after(10), Ramping, 2)
	finish(after(10), Failure)
	w.want(after(10), Ramping, 2)

	ramp := []Permit{admit(after(10)), admit(after(10))}
	w.mu.Lock()
	w.open(w.clock.now, "for the test")
	w.unlock()
	now := w.openUntil(after(10))
	w.want(now, Probing, 1)
	old = append(old, ramp...)
	finish(now, Success)
	w.want(now, Probing, 1)
	w.calls(now, 15, Success)
	w.want(now, Closed, 10)
	finish(now, Failure)
	w.want(now, Closed, 10)
}

func TestPermit_GivesItsPlaceFreeWhenItIsLost(t *testing.T) {
	w, now := probing(t, aBreaker())
	lost, _, _ := w.Admit(now, timeout)
	if _, _, ok := w.Admit(now.Add(timeout-1), timeout); ok {
		t.Fatal("a second probe before the deadline")
	}
	now = now.Add(timeout)
	probe, _, ok := w.Admit(now, timeout)
	if !ok {
		t.Fatal("no second probe after the deadline")
	}
	lost.Done(now, timeout, Failure) // Its place is another's.
	w.want(now, Probing, 1)
	if _, _, ok := w.Admit(now, timeout); ok {
		t.Fatal("a third probe")
	}
	probe.Done(now, 0, Success)
	w.want(now, Ramping, 2)

	w.lose(now, timeout)
	w.lose(now, 2*timeout)
	if _, _, ok := w.Admit(now, timeout); ok {
		t.Fatal("a third at a time")
	}
	now = now.Add(timeout)
	w.call(now, 0, Success)
	if _, _, ok := w.Admit(now, timeout); !ok {
		t.Error("the place of the lost one is not free")
	}
	if _, _, ok := w.Admit(now, timeout); ok {
		t.Error("the place of the other is free too early")
	}
}

func TestBreaker_CountsALateProbeThatWasNotReplaced(t *testing.T) {
	w, now := probing(t, aBreaker())
	probe, _, _ := w.Admit(now, timeout)
	probe.Done(now.Add(2*timeout), 2*timeout, Failure)
	w.want(now.Add(2*timeout), Open, 0)
}

func TestPermit_ZeroDoesNothing(*testing.T) {
	Permit{}.Done(noon, 0, Failure)
}

func TestBreaker_SpreadsDeniedCalls(t *testing.T) {
	w := watch(t, aBreaker(), seeded())
	w.calls(noon, 10, Failure)
	left := w.openUntil(noon).Sub(noon)
	check := func(now time.Time, from, to time.Duration) {
		t.Helper()
		tenths := [10]int{}
		for range 1000 {
			_, wait, ok := w.Admit(now, timeout)
			if ok || wait < from || wait >= to {
				t.Fatalf("admitted %t, told %s, want %s to %s", ok, wait, from, to)
			}
			tenths[(wait-from)*10/(to-from)]++
		}
		for i, n := range tenths {
			if n < 60 || n > 140 {
				t.Errorf("%d of 1000 come back in the tenth %d of %s to %s", n, i, from, to)
			}
		}
	}
	check(noon, left, left+10*time.Second)
	now := noon.Add(left)
	w.lose(now, timeout)
	check(now, time.Second, 10*time.Second)
}

func TestBreaker_KeepsItsStateWhenReconfigured(t *testing.T) {
	changed := aBreaker()
	changed.Concurrency, changed.FailurePercent, changed.MaxOpenFor, changed.OpenFor = 4, 90, 4*time.Second, 2*time.Second

	w := watch(t, aBreaker(), middle{})
	w.calls(noon, 9, Failure)
	w.Reconfigure(changed, noon)
	w.calls(noon, 1, Failure)
	if w.State(noon) != Open {
		t.Error("what was counted is forgotten")
	}
	if got := w.openUntil(noon).Sub(noon); got != 2*time.Second {
		t.Errorf("open for %s, want 2s", got)
	}

	w = watch(t, aBreaker(), middle{})
	w.calls(noon, 10, Failure)
	w.Reconfigure(changed, noon)
	w.want(noon, Open, 0)
	w.want(after(4), Probing, 1)

	w, now := probing(t, aBreaker())
	w.calls(now, 3, Success)
	w.want(now, Ramping, 4)
	w.Reconfigure(changed, now)
	w.want(now, Closed, 4)

	w = watch(t, aBreaker(), middle{})
	w.calls(noon, 9, Failure)
	changed.Window = time.Minute
	w.Reconfigure(changed, noon)
	w.calls(noon, 9, Failure)
	w.want(noon, Closed, 4)
}

// A pod that stands by for a queue with a single active consumer gets no message: its breaker said for ever that the handler fails.
func TestBreaker_ClosesWhereNoCallIsAskedFor(t *testing.T) {
	c := aBreaker()
	const reason = ": no call was asked for in 1m0s"
	for name, begin := range map[string]func(*watched, time.Time) time.Time{
		"while it probes": func(_ *watched, now time.Time) time.Time { return now },
		"after a probe that says nothing": func(w *watched, now time.Time) time.Time {
			w.call(now, 0, Neither)
			return now
		},
		"while it ramps up": func(w *watched, now time.Time) time.Time {
			w.call(now, 0, Success)
			w.want(now, Ramping, 2)
			return now
		},
		"after a probe that never ended": func(w *watched, now time.Time) time.Time {
			w.lose(now, timeout)
			return now.Add(timeout)
		},
	} {
		w, now := probing(t, c)
		from := begin(w, now)
		was := w.State(from)
		w.want(from.Add(c.MaxOpenFor-1), was, w.Allowed(from))
		w.want(from.Add(c.MaxOpenFor), Closed, c.Concurrency)
		if last, want := w.changes[len(w.changes)-1], was.String()+" > Closed"+reason; last != want {
			t.Errorf("%s: told %q, want %q", name, last, want)
		}
	}
	w := watch(t, c, middle{})
	w.calls(noon, c.MinimumCalls, Failure)
	w.want(noon.Add(time.Hour), Probing, 1) // it begins to probe when it is looked at
}

// A key with a message now and then makes the calls of a ramp in days: it said so long that its calls fail, though none did.
func TestBreaker_ClosesWhereTheRampDeniesNoCall(t *testing.T) {
	c := aBreaker()
	c.Concurrency = 100
	w, now := probing(t, c)
	w.call(now, 0, Success)
	for range 3 {
		now = now.Add(c.MaxOpenFor / 4)
		w.call(now, 0, Success)
		if w.State(now) != Ramping {
			t.Fatalf("it is %s already", w.State(now))
		}
	}
	var held []Permit
	for { // as many as it admits, and one more
		permit, _, ok := w.Admit(now, timeout)
		if !ok {
			break
		}
		held = append(held, permit)
	}
	for _, permit := range held {
		permit.Done(now, 0, Neither)
	}
	for range 3 {
		now = now.Add(c.MaxOpenFor / 4)
		w.call(now, 0, Success)
		if w.State(now) != Ramping {
			t.Fatalf("it is %s, and has denied a call", w.State(now))
		}
	}
	w.want(now.Add(c.MaxOpenFor/4), Closed, c.Concurrency)
	if last, want := w.changes[len(w.changes)-1], "Ramping > Closed: no call was denied in 1m0s"; last != want {
		t.Errorf("told %q, want %q", last, want)
	}
}
