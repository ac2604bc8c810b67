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
	// maxSplit is the number of lanes across the window of a jittered step.
	maxSplit = 8
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
// Then come 1s, 10s, 1m and 10m, as far as maxAge reaches, if a policy follows a handler's advice. They may take the place of
// lanes of jittered steps, but of no others.
func PlanLanes(policies []*Policy, limit int, open bool) (lanes Lanes, merged int) {
	limit = max(limit, 1)
	w := wanted{exact: map[time.Duration]bool{}, windows: map[window]bool{}, open: open}
	for _, p := range policies {
		w.addPolicy(p)
	}
	lanes = w.lanes(maxSplit)
	all := len(lanes)
	for split := maxSplit / 2; split >= 1 && len(lanes) > limit; split /= 2 {
		lanes = w.lanes(split)
	}
	var kept Lanes
	if w.open {
		kept = Ladder()
	}
	lanes = thin(lanes, limit, kept)
	merged = all - len(lanes)
	return w.withAdvised(lanes, limit), merged
}

// withAdvised adds the lanes by which a delay that a handler asks for takes few hops.
func (w *wanted) withAdvised(lanes Lanes, limit int) Lanes {
	if w.open {
		return lanes // the Ladder does that
	}
	advised := advisedLanes(w.advisedWithin)
	kept := slices.Clone(advised)
	for d := range w.exact {
		kept = append(kept, lane(d))
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

// wanted are the delays that need lanes.
type wanted struct {
	exact   map[time.Duration]bool
	windows map[window]bool
	// open is true where some delay is not known beforehand.
	open bool
	// advisedWithin is the longest maxAge of the policies that follow a handler's advice; 0 where none does.
	advisedWithin time.Duration
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

func (w *wanted) addSchedule(b *backoff, limit int64, maxAge time.Duration) {
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
		w.exact[v.max] = true
		return
	}
	w.windows[v] = true
}

// lanes with the windows split into that many parts, ascending. Those of a smaller power of two are among those of a
// larger one.
func (w *wanted) lanes(split int) Lanes {
	set := map[time.Duration]bool{}
	for d := range w.exact {
		set[lane(d)] = true
	}
	for v := range w.windows {
		for i := range split {
			set[lane(v.part((i+1)*(maxSplit/split)))] = true
		}
	}
	if w.open {
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
