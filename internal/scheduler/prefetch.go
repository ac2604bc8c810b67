package scheduler

import (
	"cmp"
	"math"
	"slices"
	"time"
)

const (
	// between is the time from one change to the next: each cancels a consumer, and begins another.
	between = 5 * time.Second
	// memory is for how long a queue is given what it had on loan, at least.
	memory = 10 * time.Second
	// slow is how long a message may take before fewer are held beside those at the handler.
	slow = time.Second
	// turnover, in prefetches a second, shows that a consumer might receive more: what is on its way is not seen here.
	turnover = 10
	// Sampled is how many messages show how large those of a queue are.
	Sampled = 8
	// assumed is the size, in bytes, of a message of a queue that has not shown it: the largest that RabbitMQ takes as it comes.
	assumed = 16 << 20
	// least is what a message is taken to have at least, for larger ones may follow.
	least = 64 << 10
	// largestEighths of all bytes are the most that is kept free for the largest message. Without a bound one message of minutes ago would have all
	// queues go on with one message at a time.
	largestEighths = 3
)

// Load is what a queue was found to do since the last look.
type Load struct {
	Weight int
	// Fixed is true of a queue whose consumer must not be changed for other reasons than the size of its messages.
	Fixed bool
	// Prefetch in force; 0 of a queue that has none yet.
	Prefetch int
	// OnLoan is the number of its messages that the worker has now, and Bytes is what they have together.
	OnLoan int
	Bytes  int64
	// Peak is the largest number on loan, Full how long its consumer was full, and Arrived how many messages came.
	Peak    int
	Full    time.Duration
	Arrived int
	// Mean is how long a message has a place at the handler; 0 where that is not known.
	Mean time.Duration
	// Seen is the number of its messages so far. Size is what the last of them had on the average, and Largest the largest of the
	// last minutes.
	Seen          int
	Size, Largest int64
}

// Limits bound what all queues hold together.
type Limits struct {
	// Concurrency is the number of places at the handler.
	Concurrency int
	// Loans is how many messages those queues may hold that are busy.
	Loans int
	// Bytes is how much all messages may have.
	Bytes int64
}

// Prefetch decides how many messages each queue may have on loan.
//
//   - Each queue may have one. Those that are busy, which shows in a consumer that is full look after look, share Limits.Loans by weight; what one
//     of them does not need others get. Until something is known of them, all are taken to be busy.
//   - Of the loans a queue whose consumer is full has as many at least as there are places for it: its share of those that the others leave free on
//     the average. By their peaks alone many queues with few messages would take all loans, and leave the places empty.
//   - A queue whose messages take a second or longer holds fewer beside those at the handler: other pods can begin with them.
//   - What is on loan beyond the one of each queue has at most Limits.Bytes. Half of that is shared out, for a consumer that is
//     replaced may hold as much again for a while. Messages are taken to be large until they are seen to be small. Where some were much
//     larger than the others, that half is to have room for one of them, but a quarter of it is shared out all the same.
//
// Changes are rare: nothing changes unless a busy queue gains or loses much by it, and not within seconds of the last change. But
// what is too large shrinks at once, and a busy queue of which it is seen for the first time that its messages are small grows
// at once.
//
// It is not safe for concurrent use.
type Prefetch struct {
	known   map[string]*demand
	looked  time.Time
	changed time.Time
}

// demand is what is remembered of a queue.
type demand struct {
	// peak is the largest number on loan of the last while, since peaked.
	peak   int
	peaked time.Time
	// full is true where its consumer was full for most of the time up to the last look, and limited where it was that, or had its
	// prefetch turned over again and again.
	full, limited bool
	// cut is true where it got fewer because the size of its messages is not known yet.
	cut bool
	// use is how many places its messages have had at a time, on the average of the last while.
	use float64
}

// look is a queue at one look.
type look struct {
	Load
	name string
	// busy is true where it would get more messages if it were allowed to, and not for a moment only.
	busy bool
	// fresh is true where it got fewer because the size of its messages was not known, now is, and they come quickly.
	fresh bool
	// need is how many loans it can use, and places how many places at the handler.
	need, places float64
	// first are the loans for the places that it can fill.
	first float64
	// cut is true where fit made the target smaller.
	cut bool
	// target is what it should have, and next what it gets.
	target, next int
}

// NewPrefetch returns a Prefetch that knows of no queue.
func NewPrefetch() *Prefetch { return &Prefetch{known: map[string]*demand{}} }

// Next returns the prefetch of each queue, from 1.
func (p *Prefetch) Next(loads map[string]Load, limits Limits, now time.Time) map[string]int {
	looks := p.look(loads, limits, now)
	divide(looks, limits)
	fit(looks, limits.Bytes)
	due := now.Sub(p.changed) >= between && slices.ContainsFunc(looks, func(l *look) bool {
		return l.busy && (l.grows() || l.shrinks() && !l.Fixed)
	})
	tooLarge := bytes(looks, limits.Bytes) > limits.Bytes
	result := make(map[string]int, len(looks))
	for _, l := range looks {
		if l.next = l.Prefetch; l.Prefetch == 0 || l.changes(due, tooLarge) {
			l.next = l.target
		}
	}
	bound(looks, limits.Loans)
	for _, l := range looks {
		if l.Prefetch > 0 && l.next != l.Prefetch {
			p.changed = now
		}
		d := p.known[l.name]
		d.cut = d.cut && !l.fresh || l.Prefetch == 0 && l.cut
		result[l.name] = l.next
	}
	return result
}

// bound takes from the queues what they should not have where all have too much together: one of them has grown at once.
func bound(looks []*look, loans int) {
	sum := 0
	for _, l := range looks {
		sum += l.next
	}
	for _, l := range looks {
		if sum > loans+len(looks) && !l.Fixed {
			l.next = min(l.next, l.target)
		}
	}
}

// Backlogged is true of a queue that had more messages up to the last look than it was allowed to hold.
func (p *Prefetch) Backlogged(queue string) bool {
	d := p.known[queue]
	return d != nil && d.full
}

// changes is true where a queue gets what it should have. Where changes are due, all queues give up what they should not have.
func (l *look) changes(due, tooLarge bool) bool {
	if l.target > l.Prefetch {
		return l.busy && (due && l.grows() || l.fresh)
	}
	return tooLarge || due && l.shrinks() && !l.Fixed
}

// grows and shrinks are true of a change that is worth another consumer.
func (l *look) grows() bool   { return 2*l.target >= 3*l.Prefetch }
func (l *look) shrinks() bool { return 4*l.target <= 3*l.Prefetch }

// look finds out what the queues need.
func (p *Prefetch) look(loads map[string]Load, limits Limits, now time.Time) []*look {
	passed := max(now.Sub(p.looked), 100*time.Millisecond)
	p.looked = now
	looks := make([]*look, 0, len(loads))
	for name := range p.known {
		if _, stays := loads[name]; !stays {
			delete(p.known, name)
		}
	}
	for name := range loads {
		l := &look{Load: loads[name], name: name}
		l.Weight = max(1, l.Weight)
		d := p.known[name]
		if d == nil {
			d = &demand{}
			p.known[name] = d
		}
		d.full = l.Prefetch > 0 && l.Full >= passed/2
		limited := d.full || l.Prefetch > 0 && float64(l.Arrived) >= turnover*float64(l.Prefetch)*passed.Seconds()
		l.fresh = d.cut && l.Seen >= Sampled && float64(l.Arrived) >= Sampled*passed.Seconds()
		l.busy = l.fresh || limited && d.limited
		d.limited = limited
		if l.Peak >= d.peak || now.Sub(d.peaked) > memory {
			d.peak, d.peaked = l.Peak, now
		}
		use := float64(l.Arrived) * l.Mean.Seconds() / passed.Seconds()
		d.use += (use - d.use) * min(1, passed.Seconds()/memory.Seconds())
		l.need, l.places = l.needs(d, limits, len(loads))
		l.measure()
		looks = append(looks, l)
	}
	slices.SortFunc(looks, func(a, b *look) int { return cmp.Compare(a.name, b.name) })
	return looks
}

// needs says how many loans a queue can use, and how many places.
func (l *look) needs(d *demand, limits Limits, queues int) (loans, places float64) {
	loans, places = float64(limits.Loans), float64(limits.Concurrency)
	switch {
	case l.Fixed:
		return loans / float64(queues), places / float64(queues)
	case l.Prefetch == 0 || d.full:
	default:
		places = min(places, 2*d.use)
	}
	if !l.busy && l.Prefetch > 0 {
		loans = float64(d.peak)
	}
	return loans, places
}

// measure settles for how large a message is taken.
func (l *look) measure() {
	if l.Seen < Sampled {
		// Those that take long at the handler would hold up all others until the last of them has come.
		l.Size = max(l.Size, assumed>>l.Seen)
	}
	l.Size = max(l.Size, l.Bytes/int64(max(1, l.OnLoan)), least)
	l.Largest = max(l.Largest, l.Size)
}

// divide shares out the loans: first those for the places that a queue can fill, and then the others.
func divide(looks []*look, limits Limits) {
	places := min(limits.Concurrency, limits.Loans)
	left := float64(limits.Loans)
	for i, share := range fill(looks, float64(places-spare(looks, places)), func(l *look) float64 { return l.places }) {
		looks[i].first = math.Floor(min(share, looks[i].need))
		left -= looks[i].first
	}
	shares := fill(looks, left, func(l *look) float64 {
		if l.need <= 1 {
			return 0 // it has the one that each has
		}
		return l.need - l.first
	})
	for i, l := range looks {
		shares[i] += l.first
	}
	whole(looks, shares, limits.Loans)
	for _, l := range looks {
		// Of a share of the loans, that of the places is at the handler, and the rest waits.
		running := max(l.first, math.Ceil(float64(l.target)*min(1, float64(limits.Concurrency)/float64(max(1, limits.Loans)))))
		waiting := max(0, float64(l.target)-running)
		if l.Mean > slow {
			waiting = min(waiting, running*slow.Seconds()/l.Mean.Seconds())
		}
		l.target = max(1, int(running+waiting))
	}
}

// spare is how many places are left to queues that have few messages: one to each, and a fourth of all at most.
func spare(looks []*look, places int) int {
	active := 0
	for _, l := range looks {
		if l.need > 0 && l.places < float64(places) && !l.Fixed {
			active++
		}
	}
	return min(active, places/4)
}

// whole makes targets of shares. What is left over by rounding goes to those that lose most by it.
func whole(looks []*look, shares []float64, total int) {
	order := make([]int, 0, len(looks))
	for i, l := range looks {
		l.target = max(1, int(shares[i]))
		if shares[i] > 0 {
			total -= l.target
			order = append(order, i)
		}
	}
	lost := func(i int) float64 { return shares[i] - float64(looks[i].target) }
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(lost(b), lost(a)) })
	for _, i := range order {
		if total > 0 && lost(i) > 0 {
			looks[i].target++
			total--
		}
	}
}

// fit makes the targets smaller where their messages would have more than half of so many bytes.
func fit(looks []*look, limit int64) {
	excess := excessOf(looks, limit, func(l *look) int { return l.target })
	shares := fill(looks, float64(max(0, limit/2-excess)), func(l *look) float64 {
		if l.target <= 1 {
			return 0
		}
		return float64(l.target) * float64(l.Size)
	})
	for i, l := range looks {
		fits := max(1, int(shares[i]/float64(l.Size)))
		l.cut = fits < l.target
		l.target = min(l.target, fits)
	}
}

// excessOf is by how much the largest message of the queues that hold several exceeds those around it, as far as that counts.
func excessOf(looks []*look, limit int64, held func(*look) int) (excess int64) {
	for _, l := range looks {
		if held(l) > 1 {
			excess = max(excess, l.Largest-l.Size)
		}
	}
	return min(excess, limit/8*largestEighths)
}

// bytes is what the messages may have that the queues may hold now, where all may have so many.
func bytes(looks []*look, limit int64) int64 {
	held := func(l *look) int { return l.Prefetch }
	sum := excessOf(looks, limit, held)
	for _, l := range looks {
		if held(l) > 1 {
			sum += int64(l.Prefetch) * l.Size
		}
	}
	return sum
}

// fill divides a total by the queues' weights, but gives to none more than it needs: max-min fairness, by filling up.
func fill(looks []*look, total float64, need func(*look) float64) []float64 {
	order := make([]int, len(looks))
	needs := make([]float64, len(looks))
	weights := 0.0
	for i, l := range looks {
		order[i], needs[i] = i, need(l)
		weights += float64(l.Weight)
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(needs[a]/float64(looks[a].Weight), needs[b]/float64(looks[b].Weight))
	})
	shares := make([]float64, len(looks))
	for _, i := range order {
		weight := float64(looks[i].Weight)
		shares[i] = min(needs[i], total*weight/weights)
		total -= shares[i]
		weights -= weight
	}
	return shares
}
