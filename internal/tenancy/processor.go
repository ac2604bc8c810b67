package tenancy

import (
	"context"
	"net/http"
	"runtime"
	"slices"
	"sync"

	"k8s.io/client-go/rest"

	"redrive.dev/redrive/internal/broker"
)

// Processors bounds how many reconciles of a namespace compute at a time: half as many as there are processors, and one at least. What a reconcile costs
// is up to who wrote the Transport and answers for its broker; dozens of them side by side would keep the processors from all other namespaces. It is
// safe for concurrent use.
type Processors struct {
	each int

	mu       sync.Mutex
	all      map[string]*computing
	arrivals int
}

// computing are the reconciles of one namespace.
type computing struct {
	running int
	waiting []*Processor
}

// NewProcessors follows GOMAXPROCS.
func NewProcessors() *Processors {
	return &Processors{each: max(1, runtime.GOMAXPROCS(0)/2), all: map[string]*computing{}}
}

// Namespaces is how many namespaces have reconciles that compute or wait for it.
func (p *Processors) Namespaces() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}

// Processor is what one reconcile computes on. It implements broker.Waiter.
type Processor struct {
	of        *Processors
	namespace string
	arrival   int

	mu   sync.Mutex
	held bool
	turn chan struct{}
}

// TryAcquire is nil where as many reconciles of the namespace compute as may. Else the processor is to be given back by Release.
func (p *Processors) TryAcquire(namespace string) *Processor {
	p.mu.Lock()
	defer p.mu.Unlock()
	mine := p.arrive(namespace)
	if !p.begin(mine) {
		return nil
	}
	return mine
}

// Acquire waits for a processor, which is to be given back by Release.
func (p *Processors) Acquire(ctx context.Context, namespace string) (*Processor, error) {
	p.mu.Lock()
	mine := p.arrive(namespace)
	p.mu.Unlock()
	mine.mu.Lock()
	defer mine.mu.Unlock()
	if err := mine.take(ctx); err != nil {
		return nil, err
	}
	return mine, nil
}

func (p *Processors) arrive(namespace string) *Processor {
	p.arrivals++
	return &Processor{of: p, namespace: namespace, arrival: p.arrivals}
}

// begin is false where a reconcile has to wait.
func (p *Processors) begin(mine *Processor) bool {
	its := p.all[mine.namespace]
	if its == nil {
		its = &computing{}
		p.all[mine.namespace] = its
	}
	if its.running >= p.each {
		return false
	}
	its.running++
	mine.held = true
	return true
}

// Release gives the processor back, if it is held.
func (mine *Processor) Release() {
	mine.mu.Lock()
	defer mine.mu.Unlock()
	if mine.held {
		mine.give()
	}
}

// Wait implements broker.Waiter: others have the processor while wait waits. Where the time of the reconcile is over before its turn comes again, it goes
// on without one, to its end.
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
	p := mine.of
	p.mu.Lock()
	if p.begin(mine) {
		p.mu.Unlock()
		return nil
	}
	mine.turn = make(chan struct{})
	its := p.all[mine.namespace]
	its.waiting = append(its.waiting, mine)
	p.mu.Unlock()
	select {
	case <-mine.turn:
		mine.held = true
		return nil
	case <-ctx.Done():
	}
	if !p.leave(mine) { // the turn came at the same moment
		mine.give()
	}
	return ctx.Err() //nolint:wrapcheck // The caller says what was to be done.
}

// leave is false where a reconcile does not wait any more.
func (p *Processors) leave(mine *Processor) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	its := p.all[mine.namespace]
	i := slices.Index(its.waiting, mine)
	if i >= 0 {
		its.waiting = slices.Delete(its.waiting, i, i+1)
	}
	return i >= 0
}

// give passes the processor on to the reconcile that came first. What began early ends early, and its memory is free, before others begin.
func (mine *Processor) give() {
	mine.held = false
	p := mine.of
	p.mu.Lock()
	defer p.mu.Unlock()
	its := p.all[mine.namespace]
	if len(its.waiting) == 0 {
		if its.running--; its.running == 0 {
			delete(p.all, mine.namespace)
		}
		return
	}
	first := slices.MinFunc(its.waiting, func(a, b *Processor) int { return a.arrival - b.arrival })
	its.waiting = slices.DeleteFunc(its.waiting, func(one *Processor) bool { return one == first })
	close(first.turn)
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
