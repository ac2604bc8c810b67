package resilience

import (
	"sync"
	"time"
)

// OverflowKey is the name of the breaker that keys share while none has room for one of its own.
const OverflowKey = "(others)"

// Breakers is a Breaker for each key.
//
// Up to 10,000 keys have one of their own. One that is closed and has counted nothing within its window is forgotten when its
// place is needed, and so is one that is not closed and was not asked for a permit for MaxOpenFor after it could have probed.
// While no place is free, further keys share one breaker, whose name is OverflowKey.
type Breakers struct {
	rnd      Random
	onChange func(key string, from, to State, why string)

	mu       sync.Mutex
	config   *BreakerConfig
	breakers keyed[*Breaker]
	// now is the time of the present call, and forgotten the breaker whose place it took; both for keyed's question.
	now       time.Time
	forgotten *Breaker
	// rolled is the place that Roll comes to next.
	rolled int
}

// NewBreakers returns breakers without a key yet. onChange, which may be nil, is told of the changes as a Breaker's is, with the
// key, shortened where it is longer than 128 bytes. Those of different keys may be told at once.
func NewBreakers(c BreakerConfig, rnd Random, onChange func(key string, from, to State, why string)) *Breakers {
	b := &Breakers{rnd: rnd, onChange: onChange, config: c.normal()}
	b.breakers = newKeyed(b.forget)
	return b
}

// For is the breaker of a key. Ask for it before each call: the breaker of a key that is forgotten admits everything.
func (b *Breakers) For(key string, now time.Time) *Breaker {
	breaker, forgotten := b.find(key, now)
	if forgotten != nil {
		forgotten.mu.Lock()
		forgotten.unlock() // Tells that it is closed now.
	}
	return breaker
}

// mostRolled is how many breakers a Roll looks at.
const mostRolled = 1000

// Roll brings breakers to the present of which nobody asks any more: each time the next ones, up to a bound. Without it, one that is open stays so
// where its key has no further call.
func (b *Breakers) Roll(now time.Time) {
	for _, breaker := range b.next() {
		breaker.State(now)
	}
}

// next are the breakers at the places that come next.
func (b *Breakers) next() []*Breaker {
	b.mu.Lock()
	defer b.mu.Unlock()
	places := b.breakers.places
	next := make([]*Breaker, 0, min(mostRolled, len(places)))
	for range cap(next) {
		b.rolled = (b.rolled + 1) % len(places)
		if breaker := places[b.rolled].state; breaker != nil {
			next = append(next, breaker)
		}
	}
	return next
}

func (b *Breakers) find(key string, now time.Time) (found, forgotten *Breaker) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = now
	i := b.breakers.find(key)
	forgotten, b.forgotten = b.forgotten, nil
	p := &b.breakers.places[i]
	if p.state == nil {
		if i == overflow {
			p.key = OverflowKey
		}
		p.state = newBreaker(p.key, b.config, b.rnd, b.onChange)
	}
	return p.state, forgotten
}

// forget retires a breaker that is idle.
func (b *Breakers) forget(breaker **Breaker) bool {
	if !(*breaker).retire(b.now) {
		return false
	}
	b.forgotten = *breaker
	return true
}

// retire gives up a breaker that is no different from a new one, or that nobody asks any more. It is told later.
func (b *Breaker) retire(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	t := b.clock.at(now)
	if b.state == Closed {
		b.window.roll(t)
		b.retired = b.window.sum[calls] == 0
		return b.retired
	}
	for _, c := range b.calls {
		if c.deadline > t {
			return false
		}
	}
	if t < max(b.until, b.asked)+int64(b.config.MaxOpenFor) {
		return false
	}
	b.change(Closed, "idle for "+time.Duration(t-b.asked).String())
	b.retired = true
	return true
}

// End closes all breakers for good, as Breaker.End does.
func (b *Breakers) End(why string) {
	for _, breaker := range b.all() {
		breaker.End(why)
	}
}

// End closes the breaker for good and tells so: from now on it admits everything and counts nothing.
func (b *Breaker) End(why string) {
	b.mu.Lock()
	defer b.unlock()
	if b.state != Closed {
		b.change(Closed, why)
	}
	b.retired = true
}

// Reconfigure changes all breakers, as Breaker.Reconfigure does.
func (b *Breakers) Reconfigure(c BreakerConfig, now time.Time) {
	config := c.normal()
	b.mu.Lock()
	b.config = config
	b.mu.Unlock()
	for _, breaker := range b.all() {
		breaker.reconfigure(config, now)
	}
}

func (b *Breakers) all() []*Breaker {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]*Breaker, 0, len(b.breakers.places))
	for i := range b.breakers.places {
		if breaker := b.breakers.places[i].state; breaker != nil {
			all = append(all, breaker)
		}
	}
	return all
}
