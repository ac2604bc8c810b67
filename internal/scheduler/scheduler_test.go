package scheduler

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// source is a queue of the simulation.
type source struct {
	name   string
	weight int
	// lasts is how long a turn of it takes.
	lasts func() time.Duration
	// loans is how many of its turns wait or run at a time, where there is no end of them: another one comes refill after one has
	// ended. Else arrivals says when they come.
	loans    int
	refill   time.Duration
	arrivals []time.Duration

	held time.Duration
	// longest is how long a turn waited at most since it was the first of its queue, with the others waiting all the time. bound
	// is that of the weights before.
	longest, bound time.Duration
	turns          int
}

// event is the end of a turn, or the arrival of one.
type event struct {
	at   time.Duration
	turn *Turn[*claim]
	from *source
}

type claim struct {
	of    *source
	asked time.Duration
	// heading is since when it was the first of its queue.
	heading, began time.Duration
}

// simulation runs a scheduler on a clock of its own.
type simulation struct {
	t         fataler
	scheduler *Scheduler[*claim]
	places    int
	sources   []*source
	events    []event
	now       time.Duration
	// polls is when Poll is called next.
	polls time.Duration
	held  int
	lines map[*source][]*claim
}

type fataler interface {
	Fatalf(format string, args ...any)
}

func simulate(t fataler, places int, sources ...*source) *simulation {
	s := &simulation{t: t, scheduler: NewScheduler[*claim](places, noon), places: places, sources: sources, lines: map[*source][]*claim{}}
	s.weigh()
	for _, source := range sources {
		s.scheduler.Backlog(source.name, source.loans > 0)
		for range source.loans {
			s.later(event{from: source})
		}
		for _, at := range source.arrivals {
			s.later(event{at: at, from: source})
		}
	}
	return s
}

func (s *simulation) weigh() {
	weights := map[string]int{}
	for _, source := range s.sources {
		weights[source.name] = source.weight
	}
	for _, turn := range s.scheduler.Configure(s.places, weights, s.clock()) {
		s.begin(turn)
	}
}

func (s *simulation) clock() time.Time { return noon.Add(s.now) }

// until runs up to a time, and checks that no place is free while somebody waits who may have it.
func (s *simulation) until(end time.Duration) {
	for {
		if len(s.events) == 0 || s.events[0].at > end {
			s.now = end
			return
		}
		next := s.events[0]
		s.events = s.events[1:]
		s.now = next.at
		s.happen(next)
		waiting := 0
		for _, line := range s.lines {
			waiting += len(line)
		}
		taken := s.held + s.scheduler.reserved
		kept := s.places-taken <= max(1, s.places/maxSpare) && (s.scheduler.behind() == nil || s.polls > s.now)
		if taken > s.places || taken < s.places && waiting > 0 && !kept || waiting != s.scheduler.Waiting() {
			s.t.Fatalf("%s: %d of %d places are taken while %d wait, and the scheduler says %d", s.now, s.held, s.places, waiting, s.scheduler.Waiting())
		}
	}
}

// later puts an event in order, behind those of the same time.
func (s *simulation) later(e event) {
	i, _ := slices.BinarySearchFunc(s.events, e.at+1, func(other event, at time.Duration) int { return cmp.Compare(other.at, at) })
	s.events = slices.Insert(s.events, i, e)
}

// poll lets a place that is kept free be given away later.
func (s *simulation) poll(after time.Duration) {
	at := s.now + after
	if after > 0 && (s.polls <= s.now || at < s.polls) {
		s.polls = at
		s.later(event{at: at})
	}
}

func (s *simulation) happen(e event) {
	if e.turn == nil && e.from == nil {
		begun, again := s.scheduler.Poll(s.clock())
		for _, turn := range begun {
			s.begin(turn)
		}
		s.poll(again)
		return
	}
	if e.turn != nil {
		c := e.turn.Value
		c.of.held += s.now - c.began
		s.held--
		next, again := s.scheduler.Done(e.turn, s.clock())
		if next != nil {
			s.begin(next)
		}
		s.poll(again)
		if c.of.loans > 0 {
			s.later(event{at: s.now + c.of.refill, from: c.of})
		}
		return
	}
	c := &claim{of: e.from, asked: s.now, heading: s.now}
	turn := &Turn[*claim]{Value: c}
	s.lines[c.of] = append(s.lines[c.of], c)
	holds, again := s.scheduler.Take(turn, c.of.name, s.clock())
	if holds {
		s.begin(turn)
	}
	s.poll(again)
}

func (s *simulation) begin(turn *Turn[*claim]) {
	c := turn.Value
	line := s.lines[c.of]
	if len(line) == 0 || line[0] != c {
		s.t.Fatalf("%s: a turn of %s came before the one in front of it", s.now, c.of.name)
	}
	if s.lines[c.of] = line[1:]; len(line) > 1 {
		line[1].heading = s.now
	}
	c.of.longest = max(c.of.longest, s.now-c.heading)
	c.of.turns++
	c.began = s.now
	s.held++
	s.later(event{at: s.now + c.of.lasts(), turn: turn})
}

func always(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// shares are the parts of the time at the places, in percent.
func (s *simulation) shares() []int {
	var sum time.Duration
	for _, source := range s.sources {
		sum += source.held
	}
	shares := make([]int, len(s.sources))
	for i, source := range s.sources {
		shares[i] = int((100*source.held + sum/2) / sum)
	}
	return shares
}

func TestScheduler_SharesPlacesByWeightInTime(t *testing.T) {
	const ms = time.Millisecond
	cases := []struct {
		name    string
		places  int
		sources []*source
		want    []int
	}{
		{"equals", 10, []*source{{weight: 1, loans: 20, lasts: always(10 * ms)}, {weight: 1, loans: 20, lasts: always(10 * ms)}}, []int{50, 50}},
		{"three to one", 10, []*source{{weight: 3, loans: 20, lasts: always(10 * ms)}, {weight: 1, loans: 20, lasts: always(10 * ms)}}, []int{75, 25}},
		{
			"slow messages take no more time, only fewer turns", 10,
			[]*source{{weight: 1, loans: 20, lasts: always(3000 * ms)}, {weight: 1, loans: 20, lasts: always(5 * ms)}},
			[]int{50, 50},
		},
		{"one place", 1, []*source{{weight: 2, loans: 2, lasts: always(100 * ms)}, {weight: 1, loans: 2, lasts: always(7 * ms)}}, []int{67, 33}},
		{"what one cannot use others do", 10, []*source{{weight: 1, loans: 2, lasts: always(10 * ms)}, {weight: 1, loans: 20, lasts: always(10 * ms)}}, []int{20, 80}},
		{
			"of one it has no more prefetched than there are places, and the next comes a little later", 10,
			[]*source{
				{weight: 1, loans: 10, refill: 5 * ms, lasts: always(3000 * ms)}, {weight: 1, loans: 10, refill: 5 * ms, lasts: always(10 * ms)},
			},
			[]int{50, 50},
		},
		{
			"three, of which one is light", 4,
			[]*source{{weight: 100, loans: 8, lasts: always(20 * ms)}, {weight: 50, loans: 8, lasts: always(40 * ms)}, {weight: 10, loans: 8, lasts: always(30 * ms)}},
			[]int{63, 31, 6},
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for i, source := range c.sources {
				source.name = strconv.Itoa(i)
			}
			s := simulate(t, c.places, c.sources...)
			s.until(30 * time.Second) // what they begin with
			for _, source := range c.sources {
				source.held = 0
			}
			s.until(10 * time.Minute)
			for i, got := range s.shares() {
				if got < c.want[i]-1 || got > c.want[i]+1 {
					t.Errorf("shares %v %%, want %v", s.shares(), c.want)
				}
			}
		})
	}
}

func TestScheduler_LetsARareMessagePassABusyQueue(t *testing.T) {
	busy := &source{name: "busy", weight: 1, loans: 20, lasts: always(100 * time.Millisecond)}
	rare := &source{name: "rare", weight: 1, lasts: always(100 * time.Millisecond)}
	for at := 50 * time.Millisecond; at < time.Minute; at += 1370 * time.Millisecond {
		rare.arrivals = append(rare.arrivals, at)
	}
	s := simulate(t, 10, busy, rare)
	s.until(2 * time.Minute)
	if rare.turns != len(rare.arrivals) || rare.longest > 100*time.Millisecond {
		t.Errorf("%d of %d handled, one waited %s: want the next place that is free, within 100ms", rare.turns, len(rare.arrivals), rare.longest)
	}
}

func TestScheduler_PlacesKeptForAMomentCostLittle(t *testing.T) {
	for _, every := range []time.Duration{3 * time.Millisecond, 12 * time.Millisecond, 30 * time.Millisecond, 100 * time.Millisecond} {
		slow := &source{name: "slow", weight: 1, loans: 20, lasts: always(200 * time.Millisecond)}
		trickle := &source{name: "trickle", weight: 1, lasts: always(time.Millisecond)}
		for at := time.Duration(0); at < time.Minute; at += every {
			trickle.arrivals = append(trickle.arrivals, at)
		}
		s := simulate(t, 10, slow, trickle)
		s.until(time.Minute)
		if used := (slow.held + trickle.held) * 100 / (10 * time.Minute); used < 95 {
			t.Errorf("with a message every %s of another queue, %d %% of the places are used", every, used)
		}
	}
}

func TestScheduler_HangingQueueLeavesOthersTheirPlaces(t *testing.T) {
	hangs := &source{name: "hangs", weight: 1, loans: 20}
	works := &source{name: "works", weight: 1, loans: 20, lasts: always(10 * time.Millisecond)}
	s := simulate(t, 10, hangs, works)
	hangs.lasts = func() time.Duration {
		if s.now > 10*time.Second {
			return 30 * time.Second
		}
		return 10 * time.Millisecond
	}
	s.until(10 * time.Second)
	before := works.turns
	s.until(20 * time.Second)
	// Half of ten places for ten seconds, at 10 ms each, are 5,000 turns.
	if got := works.turns - before; got < 4000 {
		t.Errorf("%d turns within 10 s after the other queue's messages began to hang, want about 5,000", got)
	}
}

// Each time that the queue with the steady flow had nothing waiting for a few milliseconds, a place went to a turn of half a minute. After 20 such moments
// it had none, for as long, again and again: of 30 s it stood still for 25.
func TestScheduler_TurnsThatHangLeaveAPlaceToASteadyFlow(t *testing.T) {
	for name, others := range map[string]int{"one queue": 1, "more queues than places": 30} {
		t.Run(name, func(t *testing.T) {
			const timeout, end, places = 30 * time.Second, 5 * time.Minute, 20
			hangs := &source{name: "hangs", weight: 1, loans: 40, lasts: always(timeout)}
			sources := []*source{hangs}
			for i := range others {
				steady := &source{name: fmt.Sprint("steady", i), weight: 1, lasts: always(5 * time.Millisecond)}
				for at := time.Duration(0); at < end; at += time.Duration(10*others) * time.Millisecond {
					steady.arrivals = append(steady.arrivals, at)
				}
				sources = append(sources, steady)
			}
			s := simulate(t, places, sources...)
			s.until(timeout + time.Second) // Nothing is known of them before the first ones have ended.
			before := 0
			for _, steady := range sources[1:] {
				before += steady.turns
			}
			s.until(end)
			turns := -before
			for _, steady := range sources[1:] {
				turns += steady.turns
			}
			if want := int((end - timeout) / (10 * time.Millisecond)); turns < want*98/100 {
				t.Errorf("%d turns of the steady flow, want %d", turns, want)
			}
			// A fourth of the places at most is kept for them.
			if want := int(end/timeout-1) * places * 7 / 10; hangs.turns < want {
				t.Errorf("%d turns of the queue that hangs, want %d", hangs.turns, want)
			}
		})
	}
}

func TestScheduler_LongTurnsHaveAllPlacesWhereNobodyElseComes(t *testing.T) {
	longs := &source{name: "longs", weight: 1, loans: 40, lasts: always(10 * time.Minute)}
	once := &source{name: "once", weight: 1, lasts: always(time.Millisecond), arrivals: []time.Duration{15 * time.Minute}}
	s := simulate(t, 10, longs, once)
	for _, minute := range []int{11, 21, 31} {
		s.until(time.Duration(minute) * time.Minute)
		if s.held != 10 {
			t.Errorf("after %d minutes %d of 10 places are taken", minute, s.held)
		}
	}
	if once.turns != 1 {
		t.Errorf("%d turns of the other queue", once.turns)
	}
}

// A turn of minutes kept a place for the next one of its queue empty for as long, though none came.
func TestScheduler_ALongTurnAloneKeepsNoSecondPlaceFree(t *testing.T) {
	backlog := &source{name: "backlog", weight: 1, loans: 8, lasts: always(5 * time.Second)}
	alone := &source{name: "alone", weight: 1, lasts: always(15 * time.Minute), arrivals: []time.Duration{7 * time.Second}}
	s := simulate(t, 4, backlog, alone)
	s.until(16 * time.Second)
	if s.held != 3 {
		t.Errorf("%d places are taken while a second one is kept for the queue of the turn alone", s.held)
	}
	for at := 30 * time.Second; at < 14*time.Minute; at += 10 * time.Second {
		s.until(at)
		if s.held != 4 {
			t.Fatalf("%d of 4 places are taken after %s", s.held, at)
		}
	}
}

// A long turn that found a free place kept for a queue that never came again waited for the next end of another turn.
func TestScheduler_ATurnThatIsNotLetInLooksAgain(t *testing.T) {
	longs := &source{name: "longs", weight: 1, lasts: always(time.Minute), arrivals: []time.Duration{0, 0, 0, 6 * time.Second}}
	once := &source{name: "once", weight: 1, lasts: always(time.Millisecond), arrivals: []time.Duration{3 * time.Second}}
	s := simulate(t, 4, longs, once)
	s.until(12 * time.Second)
	if s.held != 3 {
		t.Errorf("%d places are taken while one is kept for the other queue", s.held)
	}
	s.until(14 * time.Second)
	if s.held != 4 {
		t.Errorf("%d of 4 places are taken 11 s after the other queue's only turn", s.held)
	}
}

// TestScheduler_StarvesNoQueueAndKeepsToTheWeights draws queues, weights, places and durations, and changes the weights and the
// places on the way. Its bounds are those of Scheduler: D is the longest turn, P the places, W the sum of the weights.
func TestScheduler_StarvesNoQueueAndKeepsToTheWeights(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		places := rapid.IntRange(1, 12).Draw(t, "places")
		var sources []*source
		for i := range rapid.IntRange(1, 8).Draw(t, "queues") {
			shortest := rapid.IntRange(1, 50).Draw(t, "shortest")
			longest := rapid.IntRange(shortest, 1000).Draw(t, "longest")
			lasts := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
			sources = append(sources, &source{
				name: strconv.Itoa(i), weight: rapid.IntRange(1, 20).Draw(t, "weight"),
				// As many as can use all places: who cannot has no claim to its share.
				loans: 2*places + 1, lasts: func() time.Duration { return time.Duration(shortest+lasts.IntN(longest-shortest+1)) * time.Millisecond },
			})
		}
		s := simulate(t, places, sources...)
		end := time.Duration(0)
		for range rapid.IntRange(1, 3).Draw(t, "configurations") {
			s.bounded(t, end, end+20*time.Second)
			end += 20 * time.Second
			for _, source := range sources {
				source.weight = rapid.IntRange(1, 20).Draw(t, "weight")
			}
			s.weigh()
		}
	})
}

// bounded runs from one time to another and checks the bounds in between.
func (s *simulation) bounded(t *rapid.T, from, to time.Duration) {
	longest, weights := time.Second, 0
	for _, source := range s.sources {
		source.longest = 0
		weights += source.weight
	}
	type sample []float64
	var samples []sample
	for now := from; now <= to; now += 250 * time.Millisecond {
		s.until(now)
		var used sample
		for _, source := range s.sources {
			used = append(used, float64(source.held)/float64(source.weight))
		}
		samples = append(samples, used)
	}
	for i, a := range s.sources {
		// Others are behind it by a bounded time, and that is worked off at P places.
		bound := time.Duration(float64(longest) * (3 + 3*float64(weights)/float64(a.weight)))
		if a.longest > bound+a.bound { // it may have begun to wait under the weights before
			t.Fatalf("the first of queue %d (weight %d of %d, %d places) waited %s, bound %s", i, a.weight, weights, s.places, a.longest, bound)
		}
		a.bound = bound
		for j, b := range s.sources[:i] {
			least, most := 0.0, 0.0
			for k := range samples {
				difference := samples[k][i] - samples[k][j] - samples[0][i] + samples[0][j]
				least, most = min(least, difference), max(most, difference)
			}
			limit := 4 * float64(s.places) * float64(longest) * (1/float64(a.weight) + 1/float64(b.weight))
			if most-least > limit {
				t.Fatalf("queues %d and %d drift apart by %s, bound %s", i, j, time.Duration(most-least), time.Duration(limit))
			}
		}
	}
}

func TestScheduler_GivesNoPlaceToACanceledTurn(t *testing.T) {
	s := NewScheduler[int](1, noon)
	var turns [4]Turn[int]
	if holds, _ := s.Take(&turns[0], "a", noon); !holds {
		t.Fatal("there was a place")
	}
	for i := 1; i < len(turns); i++ {
		turns[i].Value = i
		if holds, _ := s.Take(&turns[i], "a", noon); holds {
			t.Fatal("there was no place")
		}
	}
	if !s.Cancel(&turns[2]) || s.Cancel(&turns[2]) || s.Cancel(&turns[0]) {
		t.Error("one that waits is taken out once, one that runs not at all")
	}
	if gone := s.Withdraw(func(i int) bool { return i == 1 }); len(gone) != 1 || gone[0] != &turns[1] {
		t.Errorf("withdrawn: %v", gone)
	}
	if next, _ := s.Done(&turns[0], noon.Add(time.Second)); next != &turns[3] || !next.Holds() || turns[0].Holds() {
		t.Errorf("next is %v", next)
	}
	if next, _ := s.Done(&turns[3], noon.Add(time.Second)); next != nil || s.Waiting() != 0 {
		t.Errorf("next is %v, %d wait", next, s.Waiting())
	}
}

func TestScheduler_ConfigureTakesNoPlaceThatIsHeld(t *testing.T) {
	s := NewScheduler[int](1, noon)
	var turns [6]Turn[int]
	for i := range turns {
		s.Take(&turns[i], "a", noon)
	}
	if begun := s.Configure(4, map[string]int{"a": 1}, noon); len(begun) != 3 || begun[0] != &turns[1] {
		t.Errorf("%d begun with 3 more places", len(begun))
	}
	if begun := s.Configure(2, map[string]int{"b": 7}, noon); len(begun) != 0 {
		t.Errorf("%d begun with fewer places", len(begun))
	}
	for i, want := range []*Turn[int]{nil, nil, &turns[4], &turns[5], nil, nil} {
		if next, _ := s.Done(&turns[i], noon); next != want {
			t.Errorf("after %d: %v", i, next)
		}
	}
	if len(s.queues) != 1 || s.queues[0].name != "b" {
		t.Errorf("%d queues are kept, want the one that is configured", len(s.queues))
	}
}

func BenchmarkAPlaceAmong64Queues(b *testing.B) {
	s := NewScheduler[int](10, noon)
	turns := make([]Turn[int], 128)
	running := make([]*Turn[int], 0, 10)
	names := make([]string, 64)
	for i := range names {
		names[i] = fmt.Sprint("queue-", i)
	}
	for i := range turns {
		turns[i].Value = i
		if holds, _ := s.Take(&turns[i], names[i%64], noon); holds {
			running = append(running, &turns[i])
		}
	}
	now := noon
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		now = now.Add(time.Microsecond)
		done := running[i%10]
		running[i%10], _ = s.Done(done, now)
		s.Take(done, names[done.Value%64], now)
	}
}
