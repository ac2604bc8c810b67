package resilience

import (
	"slices"
	"sync"
	"time"
)

// LimiterConfig says how many turns a Limiter gives.
type LimiterConfig struct {
	// Smooth is true for a leaky bucket: turns are evenly spaced, there is no burst. False is a token bucket.
	Smooth bool
	// PerSecond is the number of turns a second, from 0.000001.
	PerSecond float64
	// Burst, from 1, is of a token bucket the number of turns at once after a pause; of a leaky bucket, how many may wait for
	// their turn in this process before further ones are denied.
	Burst int
}

// Limiter is a rate limit, for each key of its own.
//
// Both buckets are the generic cell rate algorithm of ITU-T I.371, which needs one number for each key, the theoretical
// arrival time: the time at which the bucket is full again. With T = 1 s / PerSecond and a depth of Burst x T (token bucket, as
// RFC 2697's) or T (leaky bucket as a queue, as nginx's limit_req),
//
//	next = max(tat, now) + T        a turn is due at next - depth
//
// and is given, with tat = next, if it is due or will be within the time that the caller may wait in place. So in any time t at
// most Burst + PerSecond x t turns are due, or 1 + PerSecond x t of a leaky bucket.
//
// Up to 10,000 keys have a bucket of their own. One whose bucket is full again, and that has no promises to keep, is forgotten
// when its place is needed. While no place is free, further keys share one bucket, so what gets through in all stays bounded.
type Limiter struct {
	rnd Random

	mu      sync.Mutex
	maxWait int64
	clock   clock
	config  LimiterConfig
	pace    pace
	buckets keyed[bucket]
	// paces counts those that were in force.
	paces int
	// returned are, by places, when the turns are due that were given back before they came: ascending, and all before the last of the bucket.
	returned map[int][]int64
}

// pace is a configuration in nanoseconds.
type pace struct {
	// interval between two turns.
	interval int64
	// depth is how long an empty bucket takes to fill.
	depth int64
	// patience is how far ahead of its time a turn is given.
	patience int64
}

// slack is by how much turns may be used closer together than they came: whoever waits is not woken to the nanosecond.
const slack = int64(100 * time.Millisecond)

// bucket is the state of a key.
type bucket struct {
	// tat is the theoretical arrival time: when the bucket is full again. used is the same of the turns that were used.
	tat, used int64
	promises  promises
	// pending is how many turns are about to be used.
	pending int
}

// NewLimiter returns a limiter with full buckets. Nobody is asked to wait in place for longer than maxWait, 0 to 1 h.
func NewLimiter(c LimiterConfig, maxWait time.Duration, rnd Random) *Limiter {
	l := &Limiter{rnd: rnd, maxWait: bounded(maxWait), config: c, returned: map[int][]int64{}}
	l.pace = l.newPace(c)
	l.buckets = newKeyed(l.idle)
	return l
}

func bounded(maxWait time.Duration) int64 { return min(max(int64(maxWait), 0), horizon) }

func (l *Limiter) newPace(c LimiterConfig) pace {
	step := interval(c.PerSecond)
	burst := step * min(max(1, int64(c.Burst)), longest/step)
	if c.Smooth {
		return pace{interval: step, depth: step, patience: min(l.maxWait, burst)}
	}
	return pace{interval: step, depth: burst, patience: l.maxWait}
}

// Turn is the answer of a Limiter.
type Turn struct {
	// OK is true for a turn: at once, or after waiting in place for Wait, and then without asking again. False is a denial.
	OK bool
	// Wait is, of a turn, how long until it comes, 0 to the limiter's maxWait; of a denial, after how long to ask again, 10 ms
	// to 1 h: the n-th that is denied for a key at a time is told n-1 times 1 s / PerSecond more than the first.
	Wait time.Duration

	place int
	due   int64
	// pace is the one by which it was given.
	pace int
}

// Take asks for a turn. Where there is no key, it is "".
//
// A turn that comes later is reserved: nobody else gets it. A denial promises a time and reserves nothing (see promises), so
// a message that is denied may be denied again when others were faster.
func (l *Limiter) Take(key string, now time.Time) Turn {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.clock.at(now)
	place := l.buckets.find(key)
	b := &l.buckets.places[place].state
	due, again := l.next(place, b, t)
	if due-t > l.pace.patience {
		return Turn{Wait: b.promises.next(t, due, l.pace.interval, l.rnd)}
	}
	if again {
		l.returned[place] = l.returned[place][1:]
	} else {
		b.tat = due + l.pace.depth
	}
	b.promises.taken(t, l.pace.interval)
	return Turn{OK: true, Wait: time.Duration(max(0, due-t)), place: place, due: due, pace: l.paces}
}

// next is when the next turn of a bucket is due: the first that was given back and is still to come, which is then given again, or else one
// after all others.
func (l *Limiter) next(place int, b *bucket, now int64) (due int64, again bool) {
	if len(l.returned) > 0 {
		l.returned[place] = slices.DeleteFunc(l.returned[place], func(due int64) bool { return due < now })
		if its := l.returned[place]; len(its) > 0 {
			return its[0], true
		}
		delete(l.returned, place)
	}
	return max(b.tat, now) + l.pace.interval - l.pace.depth, false
}

// Use is called for a turn right before what it was taken for. Who had to wait for something else since would do it together with those who
// waited too; so wait is how long it is until no more turns are used at a time than are given. Used is to be called after that.
func (l *Limiter) Use(turn Turn, now time.Time) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := l.clock.at(now)
	b := &l.buckets.places[turn.place].state
	b.used = max(b.used, t) + l.pace.interval
	b.pending++
	return time.Duration(max(0, b.used-l.pace.depth-slack-t))
}

// Used is called once for each Use, when the turn was used after the wait, or is not to be. Where none of those that waited together is to
// be used, such as those of a session that has ended, nobody waits behind them.
func (l *Limiter) Used(turn Turn, is bool, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &l.buckets.places[turn.place].state
	if b.pending = max(0, b.pending-1); b.pending == 0 && !is {
		b.used = min(b.used, l.clock.at(now)+l.pace.depth)
	}
}

// IsLate is true of a turn that came so long ago that the next one has come since. Who uses it all the same may do so at the same moment as
// the next one.
func (l *Limiter) IsLate(turn Turn, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock.at(now)-turn.due > l.pace.interval
}

// Cancel gives back, once, a turn that was not used. Whoever asks next gets it, as long as it has not come: many that wait may be given back
// together, in any order. One that has come goes unused where later turns of that key were given, for moving those up could break the rate. Of
// a denial, and of a turn that Reconfigure has taken back, there is nothing to give back.
func (l *Limiter) Cancel(turn Turn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !turn.OK || turn.pace != l.paces {
		return
	}
	b, its := &l.buckets.places[turn.place].state, l.returned[turn.place]
	switch last := b.tat - l.pace.depth; {
	case turn.due < last:
		if at, there := slices.BinarySearch(its, turn.due); !there && turn.due > l.clock.now {
			l.returned[turn.place] = slices.Insert(its, at, turn.due)
		}
	case turn.due == last:
		b.tat -= l.pace.interval
		for n := len(its) - 1; n >= 0 && its[n] == b.tat-l.pace.depth; n-- {
			its = its[:n]
			b.tat -= l.pace.interval
		}
		if l.returned[turn.place] = its; len(its) == 0 {
			delete(l.returned, turn.place)
		}
	}
}

// Reconfigure changes the rate, and how long somebody may be asked to wait in place. Each bucket stays as full as it is, in proportion. Where the rate
// changes, turns that are still to come are taken back, or a slow rate would go on until the last of them: who waits for one cancels it and takes another.
// One that is used all the same is not used faster than the new rate (see Use). Promises of a slower rate are drawn closer.
func (l *Limiter) Reconfigure(c LimiterConfig, maxWait time.Duration, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c == l.config && bounded(maxWait) == l.maxWait {
		return
	}
	l.maxWait = bounded(maxWait)
	t := l.clock.at(now)
	before := l.pace
	l.config, l.pace = c, l.newPace(c)
	if l.pace.interval == before.interval && l.pace.depth == before.depth {
		return
	}
	l.paces++
	clear(l.returned)
	for i := range l.buckets.places {
		b := &l.buckets.places[i].state
		b.used = min(b.used, t+l.pace.depth)
		b.promises.drawn(t, before.interval, l.pace.interval)
		if last := b.tat - before.depth; last > t {
			// The first turn that is still to come stays so near, in proportion: a rate that changes often would give none.
			first := (last-t-1)%before.interval + 1
			b.tat = t + int64(float64(first)/float64(before.interval)*float64(l.pace.interval)) - l.pace.interval + l.pace.depth
		} else if left := b.tat - t; left > 0 {
			b.tat = t + int64(float64(left)/float64(before.depth)*float64(l.pace.depth))
		}
	}
}

// idle is true of a bucket that is no different from a new one.
func (l *Limiter) idle(b *bucket) bool {
	return max(b.tat, b.used) <= l.clock.now && b.promises.lapsed(l.clock.now, l.pace.interval)
}
