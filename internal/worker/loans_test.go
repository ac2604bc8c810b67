package worker

import (
	"fmt"
	"testing"
	"time"

	"redrive.dev/redrive/internal/scheduler"
)

func TestInflight_SamplesHowLongItWasFullAndTheSizes(t *testing.T) {
	l, now := &queueInflight{enough: 10 << 20}, time.Now()
	l.allow(2, now)
	at := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	if l.begin(1000, at(0)) || l.begin(3000, at(1)) {
		t.Error("two small messages are no reason to look")
	}
	found := l.sample(at(5))
	if found.Full != 4*time.Second || found.Peak != 2 || found.Arrived != 2 || found.OnLoan != 2 || found.Bytes != 4000 {
		t.Errorf("%+v: want full for 4 s", found)
	}
	if found.Size != 2000 || found.Largest != 3000 || found.Seen != 2 {
		t.Errorf("%+v: want a mean of 2000", found)
	}
	l.allow(3, at(6)) // full until then
	if found = l.sample(at(9)); found.Full != time.Second || found.Arrived != 0 || found.Peak != 2 {
		t.Errorf("%+v: want full for 1 s", found)
	}
	l.allow(1, at(10)) // more than full
	if found = l.sample(at(12)); found.Full != 2*time.Second {
		t.Errorf("%+v: want full for 2 s", found)
	}
	l.end(1000, 40*time.Millisecond, at(12))
	l.end(3000, 0, at(12))
	if found = l.sample(at(13)); found.OnLoan != 0 || found.Bytes != 0 || found.Mean != 20*time.Millisecond {
		t.Errorf("%+v: want nothing on loan", found)
	}
	for range 5 {
		l.begin(10, at(14))
	}
	if !l.begin(10, at(14)) {
		t.Error("the eighth message is a reason to look: the size is known")
	}
	if !l.begin(11<<20, at(14)) {
		t.Error("more than enough bytes are a reason to look")
	}
	// What was large long ago is forgotten.
	l.sample(at(1000))
	if found = l.sample(at(2000)); found.Largest != 0 {
		t.Errorf("largest %d", found.Largest)
	}
}

func TestInflight_LetsHalfOfThePrefetchWaitAside(t *testing.T) {
	l := &queueInflight{}
	l.allow(5, time.Now())
	aside := 0
	for range 5 {
		if l.tryYieldSlot() {
			aside++
		}
	}
	if aside != 2 {
		t.Errorf("%d of five aside, want two", aside)
	}
	l.stepBack()
	if !l.tryYieldSlot() {
		t.Error("one has come back")
	}
}

func TestInflight_GrowsThePrefetchByWhatIsHeld(t *testing.T) {
	l := &queueInflight{size: 1000}
	const prefetch, room = 20, 1 << 20
	for _, step := range []struct {
		more, want int
		room       int64
	}{
		{0, 0, room},
		{10, 0, room},         // half of it is left
		{1, 0, 1000},          // there is no memory for more
		{0, 16, room},         //
		{10, 16, room},        // 15 are left
		{9, 32, room},         // 6 would be
		{-20, 32, room},       // a change takes another consumer
		{-3, 8, room},         //
		{-7, 0, room},         //
		{5000, 1024, 1 << 30}, // it has a bound
	} {
		l.hold(step.more)
		if got := l.replace(prefetch, step.room); got != step.want {
			t.Errorf("%d held: %d more, want %d", l.held, got, step.want)
		}
	}
}

// A message that is held takes 20 KB however small it is: ten thousand of ten queues ended a worker of 256 MiB.
func TestInflight_KeepsWhatAllQueuesHoldWithinTheMemory(t *testing.T) {
	for queues, want := range map[int]int{1: 1024, 2: 1280, 16: 1360} {
		s := newLoans(64 << 20)
		s.decided = map[string]int{}
		found := map[string]scheduler.Load{}
		for i := range queues {
			name := fmt.Sprint("q", i)
			s.decided[name], found[name] = 20, scheduler.Load{}
			s.of(name).size = 1000
		}
		granted := func() (sum int) {
			for range 3 { // looks
				s.grant(found)
			}
			for name, prefetch := range s.granted {
				sum += prefetch - s.decided[name]
			}
			return sum
		}
		for _, held := range []int{100, 900, 4000} {
			for name := range s.decided {
				s.of(name).hold(held)
			}
			granted()
		}
		if got := granted(); got > want || got < want/2 {
			t.Errorf("%d queues get %d messages more, want at most %d in 32 MiB", queues, got, want)
		}
		for name := range s.decided {
			s.of(name).hold(-5000)
		}
		if got := granted(); got != 0 {
			t.Errorf("%d queues get %d messages more, and none is held", queues, got)
		}
	}
}

func TestLoanBytes_AreAQuarterOfTheMemory(t *testing.T) {
	if got := loanBytes(1 << 30); got != 256<<20 {
		t.Errorf("%d of 1 GiB", got)
	}
	want := MemoryLimit() / 4
	if want == 0 {
		want = unlimitedLoans
	}
	if got := loanBytes(0); got != want {
		t.Errorf("%d by the process's own limit, want %d", got, want)
	}
}
