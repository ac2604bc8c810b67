package brokerpool

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"redrive.dev/redrive/internal/broker"
)

const (
	// maxQueued is how many Transports wait at one management API, a quarter of all that are reconciled at a time: there have to be reconciles left for the
	// other APIs.
	maxQueued = 256
	// maxQueuedSteady is how many of these are only compared with their broker again: a new or changed Transport finds a place, and then goes first.
	maxQueuedSteady = maxQueued * 3 / 4
	// starvationLimit is how many in a row may have their turn before the one that came first.
	starvationLimit = 64
)

// ErrFull says that no more Transports may wait for a management API, or no more of a namespace.
var ErrFull = errors.New("queued: hundreds of Transports are waiting for a slot on this broker; retrying later")

// slotQueue is that of one management API. As many Transports have a slot there as may use the API at a time; the others wait for their turn. Each API
// has a queue of its own, so none waits for another API. It is safe for concurrent use.
type slotQueue struct {
	mu sync.Mutex
	// slots that are free.
	slots int
	// taken are the others, by namespace.
	taken map[string]int
	// waiting are the Transports without a slot, in the order in which they came.
	waiting []*Ticket
	// overtaken counts the turns since one was that of the Transport that had come first.
	overtaken int
	// turns are how many there were, and last is which of them each namespace had last, as far as it was one of the last maxQueued.
	turns int
	last  map[string]int

	// samples is the queue of autoscaling, which is asked for numbers itself and cannot wait behind a reconcile.
	samples *slotQueue
	// pings is the slot of the question whether the API answers: one at a time.
	pings chan struct{}
}

func newQueue(slots int) *slotQueue {
	return &slotQueue{
		slots: slots, taken: map[string]int{}, last: map[string]int{}, pings: make(chan struct{}, 1),
		samples: &slotQueue{slots: slots, taken: map[string]int{}, last: map[string]int{}},
	}
}

// Ticket is a place in the queue of a management API.
type Ticket struct {
	queue     *slotQueue
	port      *Port
	namespace string
	// steady is true for a Transport that is ready, and only compared again.
	steady bool
	// turn is closed when it has a slot, and displaced when it has lost its place to another namespace.
	turn, displaced chan struct{}
}

// Join takes a place in the queue of the management API, which is to be left in any case. It fails with ErrFull. A steady Transport, which is ready
// and only compared again, gives way to others.
func (p *Port) Join(namespace string, steady bool) (*Ticket, error) {
	return p.queue.join(p, namespace, steady)
}

// JoinSamples takes a place in the queue of those who ask for the numbers of autoscaling.
func (p *Port) JoinSamples(namespace string) (*Ticket, error) {
	return p.queue.samples.join(p, namespace, false)
}

func (q *slotQueue) join(port *Port, namespace string, steady bool) (*Ticket, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	full := len(q.waiting) >= maxQueued || steady && len(q.waiting) >= maxQueuedSteady
	if full && !q.displaceFor(namespace) {
		return nil, ErrFull
	}
	t := &Ticket{queue: q, port: port, namespace: namespace, steady: steady, turn: make(chan struct{}), displaced: make(chan struct{})}
	q.waiting = append(q.waiting, t)
	q.proceed(time.Now())
	return t, nil
}

// displaceFor makes room for a ticket of a namespace in a full queue, in which the namespaces share the places: it displaces one of the namespace that has
// most, preferably a steady one, and else the last. It is false where the namespace of the ticket would have no fewer then.
func (q *slotQueue) displaceFor(namespace string) bool {
	waiting := map[string]int{}
	for _, t := range q.waiting {
		waiting[t.namespace]++
	}
	most := namespace
	for other, n := range waiting {
		if n > waiting[most] {
			most = other
		}
	}
	if waiting[most] <= waiting[namespace]+1 {
		return false
	}
	victim := -1
	for i, t := range q.waiting {
		if t.namespace == most && (victim < 0 || t.steady || !q.waiting[victim].steady) {
			victim = i
		}
	}
	close(q.waiting[victim].displaced)
	q.waiting = slices.Delete(q.waiting, victim, victim+1)
	return true
}

// Waiting is how many wait for a slot at the management API, to reconcile and for the numbers of autoscaling.
func (p *Port) Waiting() (reconciles, samples int) { return p.queue.length(), p.queue.samples.length() }

func (q *slotQueue) length() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

// IsAt is true where a client belongs to the management API of the ticket, which keeps that client from now on, and not a former one.
func (t *Ticket) IsAt(port *Port) bool {
	if t.queue != port.queue {
		return false
	}
	t.queue.mu.Lock()
	defer t.queue.mu.Unlock()
	t.port = port
	return true
}

// Wait waits for a slot, so long at most. It is false where none came, or the time of the caller is over. It fails with ErrFull where the ticket has lost
// its place.
func (t *Ticket) Wait(ctx context.Context, most time.Duration) (came bool, err error) {
	broker.Await(ctx, func() {
		select {
		case <-t.turn:
			came = ctx.Err() == nil
		case <-t.displaced:
			err = ErrFull
		case <-time.After(most):
		case <-ctx.Done():
		}
	})
	return came, err
}

// Leave gives a place back, at any time, and once.
func (t *Ticket) Leave() {
	q := t.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting, t); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		return
	}
	select {
	case <-t.displaced:
		return
	default:
	}
	q.slots++
	if q.taken[t.namespace]--; q.taken[t.namespace] == 0 {
		delete(q.taken, t.namespace)
	}
	q.proceed(time.Now())
}

// proceed gives the free slots to those whose turn it is.
func (q *slotQueue) proceed(now time.Time) {
	for {
		i := q.next(now)
		if i < 0 {
			return
		}
		t := q.waiting[i]
		q.waiting = slices.Delete(q.waiting, i, i+1)
		q.slots--
		q.taken[t.namespace]++
		q.turns++
		q.last[t.namespace] = q.turns
		maps.DeleteFunc(q.last, func(_ string, turn int) bool { return turn <= q.turns-maxQueued })
		close(t.turn)
	}
}

// next is whose turn it is; -1 where it is nobody's. It is that of the Transport that came first, but:
//   - The namespaces share the slots. One gets another only as long as it leaves as many free as it has: else those whose reconciles take long would keep
//     all slots, however soon others come. And one that has fewer goes before.
//   - Among the others a new or changed Transport, or one that is not ready, goes before one that is only compared again; and one that is served by a
//     snapshot that is there already before one that is not: else hundreds that come at once, from many vhosts, would need a snapshot each, for it
//     serves only a few seconds.
//   - Of what is as urgent, that of the namespace whose last turn is longest ago goes first: else as many namespaces as there are slots would have each that
//     they give back again, by tickets that are older than those of others.
func (q *slotQueue) next(now time.Time) int {
	best, first := -1, -1
	for i, t := range q.waiting {
		switch {
		case q.taken[t.namespace] >= q.slots:
		case best < 0:
			best, first = i, i
		case q.overtaken < starvationLimit && q.before(t, q.waiting[best], now):
			best = i
		}
	}
	if best < 0 {
		return best
	}
	if q.overtaken++; best == first {
		q.overtaken = 0
	}
	return best
}

// before is true where a ticket has its turn sooner than one that came earlier.
func (q *slotQueue) before(t, earlier *Ticket, now time.Time) bool {
	if mine, theirs := q.taken[t.namespace], q.taken[earlier.namespace]; mine != theirs {
		return mine < theirs
	}
	if mine, theirs := t.priority(now), earlier.priority(now); mine != theirs {
		return mine > theirs
	}
	return q.last[t.namespace] < q.last[earlier.namespace]
}

// priority is the larger, the sooner a ticket has its turn.
func (t *Ticket) priority(now time.Time) (priority int) {
	if !t.steady {
		priority += 2
	}
	if t.port.serves(now) {
		priority++
	}
	return priority
}
