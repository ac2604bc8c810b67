package controllers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"redrive.dev/redrive/internal/broker"
)

const (
	// maxConcurrentReconciles is how many Transports are worked on at a time, with those that wait in a line: these cost a few kilobytes each. So
	// brokers that are slow, or do not answer at all, need not be told from others, unless Transports wait for several such by hundreds.
	maxConcurrentReconciles = 1024
	// maxQueued is how many wait at one management API: the Transports of the others have to find lookers, too.
	maxQueued = maxConcurrentReconciles / 4
	// maxQueuedSteady is how many of these are only looked at again: what is new or changed finds a place, and then goes first.
	maxQueuedSteady = maxQueued * 3 / 4
	// maxOfNamespace is how many Transports of one namespace are worked on or wait, whatever their brokers: there have to be reconciles left for the
	// others also where hundreds of brokers, all of one team, do not answer.
	maxOfNamespace = maxConcurrentReconciles / 4
	// maxSteadyOfNamespace is how many of these are only compared with their broker again.
	maxSteadyOfNamespace = maxOfNamespace * 3 / 4
	// waitUpdateInterval is how often one that waits sees whether it still has to, and in this line; the second time its status says that it waits.
	waitUpdateInterval = 10 * time.Second
	// fullPause is when one comes back that found the line full.
	fullPause = 10 * time.Second
	// crowdPause is when one comes back whose namespace has too many that wait.
	crowdPause = 3 * fullPause
	// starvationLimit is how many in a row may have their turn before who came first.
	starvationLimit = 64
)

var (
	// errFull says that nobody can join the line any more.
	errFull = errors.New("queued: hundreds of Transports are waiting for a slot on this broker; retrying later")
)

// slotQueue is that of one management API. Those at the head of it are busy with the API, as many as there are seats; the others have
// their turn one after the other. Each API has a line of its own, so none waits for another. It is safe for concurrent use.
type slotQueue struct {
	mu sync.Mutex
	// seats that are free.
	seats int
	// taken are the others, by namespace.
	taken map[string]int
	// waiting are those that have none, in the order in which they came.
	waiting []*ticket
	// overtaking counts those who had their turn before who came first, since that one's predecessor had it.
	overtaking int

	// looks is the line of those who ask for autoscaling: they are asked themselves, and cannot wait behind a reconcile.
	looks *slotQueue
	// asks is the seat of who asks whether the API answers: one at a time.
	asks chan struct{}
}

func newSlotQueue(seats int) *slotQueue {
	return &slotQueue{
		seats: seats, taken: map[string]int{}, looks: &slotQueue{seats: seats, taken: map[string]int{}}, asks: make(chan struct{}, 1),
	}
}

// ticket is one in a line.
type ticket struct {
	line      *slotQueue
	port      *snapshotCache
	namespace string
	// settled is true for a Transport that is ready, and only looked at again.
	settled bool
	// turn is closed when it has a seat.
	turn chan struct{}
}

// join takes a place, which is to be left in any case. It fails with errFull.
func (l *slotQueue) join(port *snapshotCache, namespace string, settled bool) (*ticket, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= maxQueued || settled && len(l.waiting) >= maxQueuedSteady {
		return nil, errFull
	}
	p := &ticket{line: l, port: port, namespace: namespace, settled: settled, turn: make(chan struct{})}
	l.waiting = append(l.waiting, p)
	l.proceed(time.Now())
	return p, nil
}

// leave gives a place back, at any time, and once.
func (p *ticket) leave() {
	p.line.mu.Lock()
	defer p.line.mu.Unlock()
	if i := slices.Index(p.line.waiting, p); i >= 0 {
		p.line.waiting = slices.Delete(p.line.waiting, i, i+1)
		return
	}
	p.line.seats++
	if p.line.taken[p.namespace]--; p.line.taken[p.namespace] == 0 {
		delete(p.line.taken, p.namespace)
	}
	p.line.proceed(time.Now())
}

// proceed gives the free seats to those whose turn it is.
func (l *slotQueue) proceed(now time.Time) {
	for {
		i := l.next(now)
		if i < 0 {
			return
		}
		p := l.waiting[i]
		l.waiting = slices.Delete(l.waiting, i, i+1)
		l.seats--
		l.taken[p.namespace]++
		close(p.turn)
	}
}

// next is whose turn it is; -1 where it is nobody's. It is that of who came first, but the namespaces share the seats: one gets another as long as it
// leaves as many free as it has. Else those whose looks take long would keep all seats, however soon others come. And who belongs to one that has fewer
// goes before. In between, what is new, changed or not ready goes before what is only looked at again; and who is served by a snapshot that is there
// already before who is not: else hundreds that come at once, from many vhosts, would need a snapshot each, for it serves only a few seconds.
func (l *slotQueue) next(now time.Time) int {
	best, first := -1, -1
	for i, p := range l.waiting {
		switch {
		case l.taken[p.namespace] >= l.seats:
		case best < 0:
			best, first = i, i
		case l.overtaking < starvationLimit && l.before(p, l.waiting[best], now):
			best = i
		}
	}
	if best < 0 {
		return best
	}
	if l.overtaking++; best == first {
		l.overtaking = 0
	}
	return best
}

// before is true where a place has its turn sooner than one that came earlier.
func (l *slotQueue) before(p, earlier *ticket, now time.Time) bool {
	if mine, theirs := l.taken[p.namespace], l.taken[earlier.namespace]; mine != theirs {
		return mine < theirs
	}
	return p.priority(now) > earlier.priority(now)
}

// priority is the larger, the sooner a place has its turn.
func (p *ticket) priority(now time.Time) (claim int) {
	if !p.settled {
		claim += 2
	}
	if p.port.serves(now) {
		claim++
	}
	return claim
}

// waitFor waits for a turn, so long at most. It is false where the turn did not come, or nobody is to take it any more.
func waitFor(ctx context.Context, turn <-chan struct{}, most time.Duration) (came bool) {
	broker.Await(ctx, func() {
		select {
		case <-turn:
			came = ctx.Err() == nil
		case <-time.After(most):
		case <-ctx.Done():
		}
	})
	return came
}
