package retry

import (
	"maps"
	"math"
	"slices"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
)

const (
	// maxSteps bounds how far a schedule is followed. What lies beyond counts as open-ended.
	maxSteps = 128
	// maxSplit is the number of lanes across the window of a jittered step, and splits how many ways there are to have fewer, by halves.
	maxSplit = 8
	splits   = 4
	// manyLanes is how many lanes are gathered exactly; more are gathered to three digits.
	manyLanes = 1 << 14
	// thinExactly is the number of lanes that are thinned one by one; more are coarsened first.
	thinExactly = 512
)

// LaneLimit is the number of lanes that a Transport may have.
func LaneLimit(density v1alpha1.LaneDensity) int {
	if density == v1alpha1.LanesFine {
		return 64
	}
	return 24
}

// Ladder gives the lanes for open-ended delays. They are the same for every policy, so that they survive its edits.
func Ladder() Lanes {
	return Lanes{
		1 * time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
		1 * time.Minute, 2 * time.Minute, 5 * time.Minute, 10 * time.Minute, 30 * time.Minute,
		1 * time.Hour,
	}
}

// PlanLanes gives the lanes for the delays that the policies can ask for, at most limit and at least one where there is a
// delay at all; it is the same for the same policies in any order. They are:
//
//   - the exact delays of all schedules, as far as maxRetries and maxAge reach;
//   - for each jittered step up to eight lanes spread evenly across its window, rounded up to a readable number within a
//     tenth of their distance, the last one the window's end, so that a draw that is rounded up takes each equally often;
//   - the Ladder, if a delay is open-ended: delayFrom, Full and Decorrelated jitter, schedules of more than 128 steps; or if
//     open says that others than the policies ask for delays too.
//
// Where these are more than limit, the jittered steps are thinned out first, to four, two and one lane each; then the
// lanes that leave the smallest gap in proportion, but not those of the Ladder if it is needed, nor the smallest or the
// largest. merged is the number of wanted lanes that were left out: their delays round up to a lane within a tenth, or
// hop, and are never early.
//
// Where they are more than 16,384, all are rounded up to three digits before that, and merged counts that many.
//
// Then come 1s, 10s, 1m and 10m, as far as maxAge reaches, if a policy follows a handler's advice. They may take the place of
// lanes of jittered steps, but of no others.
func PlanLanes(policies []*Policy, limit int, open bool) (lanes Lanes, merged int) {
	limit = max(limit, 1)
	w := newWanted(limit)
	w.open = open
	for _, p := range policies {
		w.addPolicy(p)
	}
	split := splits - 1
	lanes = w.lanes(split)
	all := len(lanes)
	for len(lanes) > limit && split > 0 {
		split--
		lanes = w.lanes(split)
	}
	var kept Lanes
	if w.open {
		kept = Ladder()
	}
	lanes = thin(lanes, limit, kept)
	merged = max(0, all-len(lanes))
	return w.withAdvised(lanes, limit), merged
}

// withAdvised adds the lanes by which a delay that a handler asks for takes few hops.
func (w *wanted) withAdvised(lanes Lanes, limit int) Lanes {
	if w.open {
		return lanes // the Ladder does that
	}
	advised := advisedLanes(w.advisedWithin)
	kept := slices.Clone(advised)
	for _, d := range lanes {
		if w.exact[d] {
			kept = append(kept, d)
		}
	}
	for _, d := range slices.Backward(advised) { // the longest one saves most hops
		place, there := slices.BinarySearch(lanes, d)
		if there {
			continue
		}
		if len(lanes) >= limit {
			i := leastMissed(lanes, kept)
			if i < 0 {
				return lanes
			}
			lanes = slices.Delete(lanes, i, i+1)
			place, _ = slices.BinarySearch(lanes, d)
		}
		lanes = slices.Insert(lanes, place, d)
	}
	return lanes
}

// wanted are the delays that need lanes. They are gathered as lanes at once, and not as the windows that they come from: those are as many as all
// strategies of all policies have steps, millions of them where somebody wants that.
type wanted struct {
	// schedules that were added.
	schedules map[schedule]bool
	// exact are the lanes of delays without jitter.
	exact laneSet
	// split are all lanes, with the windows split into 1, 2, 4 and 8 parts.
	split [splits]laneSet
	// limit is how many lanes there may be. Those of windows in more parts than one matter up to there only.
	limit int
	// coarse is true where there are so many lanes that they are kept to three digits.
	coarse bool
	// open is true where some delay is not known beforehand.
	open bool
	// advisedWithin is the longest maxAge of the policies that follow a handler's advice; 0 where none does.
	advisedWithin time.Duration
}

type laneSet map[time.Duration]bool

func newWanted(limit int) wanted {
	w := wanted{schedules: map[schedule]bool{}, exact: laneSet{}, limit: limit}
	for i := range w.split {
		w.split[i] = laneSet{}
	}
	return w
}

func (w *wanted) addPolicy(p *Policy) {
	if p.followsAdvice {
		w.advisedWithin = max(w.advisedWithin, p.maxAge)
	}
	w.addSchedule(&p.backoff, p.maxRetries, p.maxAge)
	for i := range p.strategies {
		s := &p.strategies[i]
		if s.action != v1alpha1.ActionRetry {
			continue
		}
		b, limit := p.backoffOf(s)
		w.addSchedule(b, limit, p.maxAge)
		w.open = w.open || s.delayFrom != nil && limit > 0
	}
}

// schedule is a backoff, but for the list of an Explicit one, and how far it is followed.
type schedule struct {
	kind                      v1alpha1.BackoffType
	delay, step, most, maxAge time.Duration
	multiplier                float64
	jitter                    jitter
	limit                     int64
}

// isNew is false for a schedule that was added already: a strategy may be part of hundreds of policies.
func (w *wanted) isNew(b *backoff, limit int64, maxAge time.Duration) bool {
	if b.kind == v1alpha1.BackoffExplicit {
		return true
	}
	s := schedule{b.kind, b.delay, b.step, b.maxDelay, maxAge, b.multiplier, b.jitter, limit}
	known := w.schedules[s]
	w.schedules[s] = true
	return !known
}

func (w *wanted) addSchedule(b *backoff, limit int64, maxAge time.Duration) {
	if !w.isNew(b, limit, maxAge) {
		return
	}
	for s := range b.steps(limit, maxAge) {
		if b.jitter.kind == v1alpha1.JitterFull || b.jitter.kind == v1alpha1.JitterDecorrelated || s.n == maxSteps {
			w.open = true
			return
		}
		w.addWindow(s.window)
		if s.steady {
			return
		}
	}
}

func (w *wanted) addWindow(v window) {
	v = window{min: min(v.min, MaxLane), max: min(v.max, MaxLane)}
	if v.min == v.max {
		w.exact.add(w.kept(lane(v.max)), manyLanes)
	}
	w.split[0].add(w.kept(lane(v.max)), manyLanes)
	for i := 1; i < splits; i++ {
		most, parts := w.limit, 1<<i
		if i == splits-1 {
			most = manyLanes // all are counted
		}
		for part := 1; part <= parts && len(w.split[i]) <= most; part++ {
			w.split[i].add(lane(v.part(part*maxSplit/parts)), most)
		}
	}
	if !w.coarse && len(w.split[0]) > manyLanes {
		w.coarse = true
		w.exact, w.split[0] = w.exact.coarse(), w.split[0].coarse()
	}
}

// kept is a lane as it is kept.
func (w *wanted) kept(lane time.Duration) time.Duration {
	if w.coarse {
		return toThreeDigits(lane)
	}
	return lane
}

// add adds one unless there are more than that many already.
func (s laneSet) add(lane time.Duration, most int) {
	if len(s) <= most {
		s[lane] = true
	}
}

func (s laneSet) coarse() laneSet {
	coarse := laneSet{}
	for d := range s {
		coarse[toThreeDigits(d)] = true
	}
	return coarse
}

// toThreeDigits rounds a lane up to three digits: a hundredth of it at most.
func toThreeDigits(lane time.Duration) time.Duration {
	grid := time.Millisecond
	for lane >= 1000*grid {
		grid *= 10
	}
	return min((lane + grid - 1).Truncate(grid), MaxLane)
}

// lanes with the windows split into 1<<i parts, ascending. Those of fewer parts are among those of more.
func (w *wanted) lanes(i int) Lanes {
	set := w.split[i]
	if w.open {
		set = maps.Clone(set)
		for _, d := range Ladder() {
			set[d] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// part is the end of the i-th eighth of the window, rounded up to the grid.
func (w window) part(i int) time.Duration {
	width := w.max - w.min
	d := w.min + width*time.Duration(i)/maxSplit
	grid := gridFor(width / maxSplit)
	return min((d + grid - 1).Truncate(grid), w.max)
}

// gridFor is the coarsest readable step that is at most a tenth of a distance.
func gridFor(distance time.Duration) time.Duration {
	grids := [...]time.Duration{
		time.Hour, 30 * time.Minute, 10 * time.Minute, 5 * time.Minute, time.Minute,
		30 * time.Second, 10 * time.Second, 5 * time.Second, time.Second,
		500 * time.Millisecond, 100 * time.Millisecond, 50 * time.Millisecond, 10 * time.Millisecond, 5 * time.Millisecond,
	}
	for _, grid := range grids {
		if grid <= distance/10 {
			return grid
		}
	}
	return time.Millisecond
}

// lane is the lane that a delay wants.
func lane(d time.Duration) time.Duration {
	return min(max(wholeMilliseconds(d), MinLane), MaxLane)
}

// thin leaves out lanes until there are at most limit. It leaves out those of kept last, and the smallest never.
func thin(lanes Lanes, limit int, kept Lanes) Lanes {
	for percent := int64(1); len(lanes) > max(limit, thinExactly); percent *= 2 {
		lanes = coarsen(lanes, percent, kept)
	}
	for len(lanes) > limit {
		i := leastMissed(lanes, kept)
		if i < 0 {
			i = leastMissed(lanes, nil)
		}
		if i < 0 {
			i = len(lanes) - 1
		}
		lanes = slices.Delete(lanes, i, i+1)
	}
	return lanes
}

// coarsen leaves out the lanes with another one less than so many percent above.
func coarsen(lanes Lanes, percent int64, kept Lanes) Lanes {
	var above time.Duration
	var coarse Lanes
	for i, d := range slices.Backward(lanes) {
		if above == 0 || i == 0 || above-d > d/100*time.Duration(percent) || slices.Contains(kept, d) {
			coarse = append(coarse, d)
			above = d
		}
	}
	slices.Reverse(coarse)
	return coarse
}

// leastMissed is the lane whose neighbours are closest in proportion, the smallest such; -1 where all are kept. The first
// and the last lane are always kept.
func leastMissed(lanes, kept Lanes) int {
	best, least := -1, math.Inf(1)
	for i := 1; i < len(lanes)-1; i++ {
		gap := float64(lanes[i+1]) / float64(lanes[i-1])
		if gap < least && !slices.Contains(kept, lanes[i]) {
			best, least = i, gap
		}
	}
	return best
}
