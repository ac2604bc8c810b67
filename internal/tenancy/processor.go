package tenancy

import (
	"context"
	"maps"
	"math"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"redrive.dev/redrive/internal/broker"
)

const (
	// credit is how much less than the others a namespace may have computed, as far as that counts: one that comes after a while does not keep them waiting
	// for longer.
	credit = time.Second
	// slice is how much less it has to have computed than those that compute for not having to wait for them.
	slice = 10 * time.Millisecond
	// perProcessor is how much of GOMEMLIMIT there is for each that computes, in bytes. What is compiled and merged is counted afterwards: of policies with
	// thousands of strategies each took 13 MB, and on a node with 32 processors the operator was killed for its memory.
	perProcessor = 24 << 20
	// unknownTurn is how long a namespace is expected to compute at a time before it has.
	unknownTurn = 100 * time.Millisecond
	// pruneInterval is how often namespaces are forgotten that have all the credit, and rememberTurns how long they are known whose turns were long: each
	// such interval halves what is expected. However many short turns come meanwhile, one like the longest may come again.
	pruneInterval = 10 * time.Second
	rememberTurns = 10 * time.Minute
)

// Processors bounds how many reconciles compute at a time: as many as there are processors but one, and one at least; of one namespace half as many as there
// are, and one at least. Of processors it counts no more than the operator has memory for. What a reconcile costs is up to who wrote the Transport and
// answers for its broker; dozens of them side by side would keep the processors from all other namespaces. The namespace comes next that will have computed
// least at the end of its turn, if that is as long as its last ones. One that will have computed less than those that compute does not wait for them, as
// long as it is one: nobody can take a processor away from a reconcile before it waits for somebody. It is safe for concurrent use.
type Processors struct {
	all, each int

	mu sync.Mutex
	// held is how many compute, and queued how many wait for it.
	held, queued int
	namespaces   map[string]*computing
	// fair is how much each of those that compute or wait has computed at least.
	fair     time.Duration
	pruned   time.Time
	arrivals int
}

// computing are the reconciles of one namespace.
type computing struct {
	held    int
	waiting []*Processor
	// computed is how long they have computed until a time, turn how long they do so at a time, and begun what was expected of the last of them when it began.
	computed, turn, begun time.Duration
	until                 time.Time
	// faded is when turn was last set, or halved.
	faded time.Time
}

// expected is how long they will have computed after their next turn.
func (c *computing) expected() time.Duration { return c.computed + c.turn }

// ended takes in a turn that took so long.
func (c *computing) ended(took time.Duration, now time.Time) {
	if c.faded.IsZero() {
		c.turn, c.faded = took, now
	}
	for ; now.Sub(c.faded) >= rememberTurns; c.faded = c.faded.Add(rememberTurns) {
		c.turn /= 2
	}
	if took >= c.turn {
		c.turn, c.faded = took, now
	}
}

// count goes on counting until now.
func (c *computing) count(now time.Time) {
	c.computed += time.Duration(c.held) * now.Sub(c.until)
	c.until = now
}

// NewProcessors follows GOMAXPROCS and GOMEMLIMIT.
func NewProcessors() *Processors {
	return newProcessors(runtime.GOMAXPROCS(0), debug.SetMemoryLimit(-1))
}

func newProcessors(n int, memory int64) *Processors {
	n = int(min(int64(n), max(2, memory/perProcessor)))
	return &Processors{all: max(1, n-1), each: max(1, n/2), namespaces: map[string]*computing{}}
}

// Namespaces is how many namespaces have reconciles that compute or wait for it.
func (p *Processors) Namespaces() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, its := range p.namespaces {
		if its.held > 0 || len(its.waiting) > 0 {
			n++
		}
	}
	return n
}

// Processor is what one reconcile computes on. It implements broker.Waiter.
type Processor struct {
	of        *Processors
	namespace string
	arrival   int

	mu   sync.Mutex
	held bool
	turn chan struct{}
	// since is when the turn came.
	since time.Time
}

// TryAcquire is nil where the reconcile would have to wait. Else the processor is to be given back by Release.
func (p *Processors) TryAcquire(namespace string) *Processor {
	mine := p.arrive(namespace)
	p.join(mine)
	if p.leave(mine) {
		return nil
	}
	mine.held = true
	return mine
}

// Acquire waits for a processor, which is to be given back by Release.
func (p *Processors) Acquire(ctx context.Context, namespace string) (*Processor, error) {
	mine := p.arrive(namespace)
	mine.mu.Lock()
	defer mine.mu.Unlock()
	if err := mine.take(ctx); err != nil {
		return nil, err
	}
	return mine, nil
}

func (p *Processors) arrive(namespace string) *Processor {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrivals++
	return &Processor{of: p, namespace: namespace, arrival: p.arrivals}
}

// join has a reconcile wait for its turn, which may come at once.
func (p *Processors) join(mine *Processor) {
	mine.turn = make(chan struct{})
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prune(now)
	its := p.namespaces[mine.namespace]
	if its == nil {
		its = &computing{until: now, turn: unknownTurn}
		p.namespaces[mine.namespace] = its
	}
	its.waiting = append(its.waiting, mine)
	p.queued++
	p.grant(now)
}

// prune forgets the namespaces that are like new ones.
func (p *Processors) prune(now time.Time) {
	if now.Sub(p.pruned) < pruneInterval {
		return
	}
	p.pruned = now
	maps.DeleteFunc(p.namespaces, func(_ string, its *computing) bool {
		isKnown := its.turn > unknownTurn && now.Sub(its.until) < rememberTurns
		return its.held == 0 && len(its.waiting) == 0 && its.computed <= p.fair-credit && !isKnown
	})
}

// grant gives turns while there are any. In a namespace the reconcile that came first has the first one: what began early ends early, and its memory is
// free, before others begin.
func (p *Processors) grant(now time.Time) {
	for p.queued > 0 {
		its := p.next(now)
		if its == nil {
			return
		}
		first := slices.MinFunc(its.waiting, func(a, b *Processor) int { return a.arrival - b.arrival })
		its.waiting = slices.DeleteFunc(its.waiting, func(one *Processor) bool { return one == first })
		its.held++
		its.begun, first.since = its.expected(), now
		p.held++
		p.queued--
		close(first.turn)
	}
}

// next is the namespace that has the next turn; nil where all have to wait.
func (p *Processors) next(now time.Time) (next *computing) {
	least, begun := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
	for _, its := range p.namespaces {
		if its.held == 0 && len(its.waiting) == 0 {
			continue
		}
		its.count(now)
		its.computed = max(its.computed, p.fair-credit)
		least = min(least, its.computed)
		if its.held > 0 {
			begun = min(begun, its.begun)
		}
		if len(its.waiting) > 0 && its.held < p.each && (next == nil || its.expected() < next.expected()) {
			next = its
		}
	}
	p.fair = max(p.fair, least)
	if next != nil && p.held >= p.all && (p.held > p.all || next.expected()+slice > begun) {
		return nil
	}
	return next
}

// Release gives the processor back, if it is held.
func (mine *Processor) Release() {
	mine.mu.Lock()
	defer mine.mu.Unlock()
	if mine.held {
		mine.give()
	}
}

// Wait implements broker.Waiter: others have the processor while wait waits. Where the time of the reconcile, which is that of the context, is over before
// its turn comes again, it goes on without one, to its end.
func (mine *Processor) Wait(ctx context.Context, wait func()) {
	if !mine.pause() {
		wait()
		return
	}
	wait()
	mine.mu.Lock()
	defer mine.mu.Unlock()
	_ = mine.take(ctx)
}

// Another implements broker.Waiter: what is computed while the reconcile waits for it is computed on a processor of its namespace, too.
func (mine *Processor) Another(ctx context.Context) (another broker.Waiter, release func(), err error) {
	other, err := mine.of.Acquire(ctx, mine.namespace)
	if err != nil {
		return nil, nil, err
	}
	return other, other.Release, nil
}

// pause gives the processor to others for a while. It is false where the reconcile has none, as while another goroutine of it waits.
func (mine *Processor) pause() bool {
	mine.mu.Lock()
	defer mine.mu.Unlock()
	if !mine.held {
		return false
	}
	mine.give()
	return true
}

// take waits for a turn.
func (mine *Processor) take(ctx context.Context) error {
	mine.of.join(mine)
	select {
	case <-mine.turn:
	case <-ctx.Done():
		if mine.of.leave(mine) {
			return ctx.Err() //nolint:wrapcheck // The caller says what was to be done.
		}
	}
	mine.held = true // The turn may have come at the moment at which the time was over.
	return nil
}

// leave is false where a reconcile does not wait any more.
func (p *Processors) leave(mine *Processor) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	its := p.namespaces[mine.namespace]
	i := slices.Index(its.waiting, mine)
	if i >= 0 {
		its.waiting = slices.Delete(its.waiting, i, i+1)
		p.queued--
	}
	return i >= 0
}

// give passes the processor on.
func (mine *Processor) give() {
	mine.held = false
	p, now := mine.of, time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	its := p.namespaces[mine.namespace]
	its.count(now)
	its.ended(now.Sub(mine.since), now)
	its.held--
	p.held--
	p.grant(now)
}

// ShareProcessors has the requests of a client of the API server wait as all other requests of a reconcile do: while they wait, others of the namespace
// have its processor.
func ShareProcessors(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return roundTripper{next} })
}

type roundTripper struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t roundTripper) RoundTrip(request *http.Request) (response *http.Response, err error) {
	broker.Await(request.Context(), func() { response, err = t.next.RoundTrip(request) }) //nolint:bodyclose // The caller closes it.
	return response, err                                                                  //nolint:wrapcheck // as it is
}

// WrappedRoundTripper lets client-go find what is below.
func (t roundTripper) WrappedRoundTripper() http.RoundTripper { return t.next }
