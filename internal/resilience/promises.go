package resilience

import "time"

const (
	// horizon is the furthest promise.
	horizon = int64(time.Hour)
	// unclaimed is for how long at least promised turns must go unused before those further on are taken for abandoned.
	unclaimed = int64(time.Minute)
)

// promises are the turns that were promised to those who were turned away: one after the other, at the rate at which turns
// come. So they come back one by one, each about when it can be served, and neither all together nor again and again.
//
// Nothing is kept for the one who was promised a turn: who comes first takes it. Promises run off as time passes. They lapse
// when turns for a minute (or ten turns, whichever is longer) were there and nobody took them: then those who were
// promised the later ones will hardly come either, and nobody new should queue behind them.
type promises struct {
	// tail is when the next turn can be promised.
	tail int64
	// used is up to when turns were used, and unused the time for which none were before that.
	used, unused int64
}

// next promises a turn, not before earliest, and says how long it is until then. step is the time between two turns. Beyond
// the horizon nothing is promised: who comes then is spread over its second half, and asks again.
func (p *promises) next(now, earliest, step int64, rnd Random) time.Duration {
	if p.lapsed(now, step) {
		*p = promises{used: now}
	}
	at := max(p.tail, earliest, now+shortest)
	if at-now > horizon {
		return time.Duration(horizon/2 + rnd.Int64N(horizon/2))
	}
	p.tail = at + step
	return time.Duration(at - now)
}

// taken notes that a turn was used.
func (p *promises) taken(now, step int64) {
	if now > p.used {
		p.unused += now - p.used
		p.used = now
	}
	p.used += step
}

// lapsed is true where no promise is worth keeping.
func (p *promises) lapsed(now, step int64) bool {
	return p.tail <= now || p.unused+max(0, now-p.used) >= max(10*step, unclaimed)
}

// drawn has those who are promised turns from now on stand behind as many as before, at another rate.
func (p *promises) drawn(now, before, after int64) {
	if ahead := p.tail - now; ahead > 0 && after < before {
		p.tail = now + int64(float64(ahead)/float64(before)*float64(after))
	}
}
