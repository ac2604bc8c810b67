package resilience

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

const second = int64(time.Second)

func TestPromises_FollowOneAnother(t *testing.T) {
	var p promises
	for n := range int64(100) {
		if got, want := p.next(0, 3*second, second, seeded()), time.Duration((3+n)*second); got != want {
			t.Fatalf("promise %d is %s, want %s", n, got, want)
		}
	}
}

func TestPromises_RunOffAsTimePasses(t *testing.T) {
	var p promises
	for range 10 {
		p.next(0, second, second, seeded())
	}
	p.used = 4 * second // Turns were used meanwhile.
	if got := p.next(4*second, 5*second, second, seeded()); got != 7*time.Second {
		t.Errorf("4 s later the eleventh is promised %s, want 7s", got)
	}
	if got := p.next(60*second, 61*second, second, seeded()); got != time.Second {
		t.Errorf("a minute later the next is promised %s, want 1s", got)
	}
}

func TestPromises_AreTenMillisecondsAheadAtLeast(t *testing.T) {
	var p promises
	if got := p.next(0, 1, 1, seeded()); got != 10*time.Millisecond {
		t.Errorf("promised %s", got)
	}
}

func TestPromises_BeyondTheHorizonAreSpreadOverItsHalf(t *testing.T) {
	var p promises
	for range 3600 {
		p.next(0, second, second, seeded())
	}
	rnd, minutes := seeded(), [60]int{}
	for range 3000 {
		wait := p.next(0, second, second, rnd)
		if wait < time.Hour/2 || wait >= time.Hour {
			t.Fatalf("promised %s", wait)
		}
		minutes[int(wait.Minutes())]++
	}
	for m, n := range minutes[30:] {
		if n < 50 || n > 150 {
			t.Errorf("%d of 3000 come in minute %d, want about 100", n, 30+m)
		}
	}
}

func TestPromises_LapseWhenTurnsGoUnused(t *testing.T) {
	cases := map[string]struct {
		// every is how often a turn is used, for two minutes, and then no more for silence.
		every   int64
		silence int64
		step    int64
		want    time.Duration
	}{
		"every turn is used":                        {every: second, step: second, want: 1881 * time.Second},
		"half of the turns are used":                {every: 2 * second, step: second, want: time.Second},
		"nobody comes for half a minute":            {every: second, silence: 30 * second, step: second, want: 1851 * time.Second},
		"nobody comes for a minute":                 {every: second, silence: 61 * second, step: second, want: time.Second},
		"fast turns, and a gap of more than ten":    {every: second / 10, silence: 5 * second, step: second / 10, want: 75100 * time.Millisecond},
		"slow turns: a minute is not even two":      {every: 40 * second, silence: 80 * second, step: 40 * second, want: 3400 * time.Second},
		"fast turns, and nobody comes for a minute": {every: second / 10, silence: 61 * second, step: second / 10, want: time.Second / 10},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var p promises
			for range min(2000, 3600*second/c.step) {
				p.next(0, 1+c.step, c.step, least{})
			}
			var now int64
			for now < 120*second {
				now += c.every
				p.taken(now, c.step)
			}
			now += c.silence
			if got := p.next(now, now+c.step, c.step, least{}).Round(time.Second / 10); got != c.want {
				t.Errorf("promised %s, want %s", got, c.want)
			}
		})
	}
}

func TestPromises_AreNeverTooSoonNorTooLateNorTwoAtOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p promises
		now, step := int64(0), rapid.Int64Range(1, 2*horizon).Draw(t, "step")
		rnd := seeded()
		last := int64(-1)
		for range rapid.IntRange(1, 100).Draw(t, "n") {
			now += rapid.Int64Range(0, 2*step).Draw(t, "passed")
			if rapid.Bool().Draw(t, "taken") {
				p.taken(now, step)
				continue
			}
			lapsed, earliest := p.lapsed(now, step), now+rapid.Int64Range(1, 2*step).Draw(t, "earliest")
			wait := p.next(now, earliest, step, rnd)
			if wait < 10*time.Millisecond || wait > time.Hour {
				t.Fatalf("promised %s", wait)
			}
			at := now + int64(wait)
			if p.tail != at+step {
				continue // Beyond the horizon nothing is promised.
			}
			if at < earliest || !lapsed && at < last+step {
				t.Fatalf("promised %d, earliest %d, the one before %d, step %d", at, earliest, last, step)
			}
			last = at
		}
	})
}
