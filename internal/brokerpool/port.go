package brokerpool

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/topology"
)

// Port is a client whose snapshots are shared. What a Transport writes through it makes the snapshot outdated for that
// Transport only: if it did so for all, hundreds that are applied together would cost a snapshot each, of all that stands by then.
type Port struct {
	*broker.Client
	age    time.Duration
	budget *tenancy.Memory
	// queue is that of the management API at a host and port, and url that of the API. api is the same for all who ask it whether it answers and
	// trust the same certificates.
	queue *slotQueue
	at    string
	url   string
	api   string
	// asked is when the client was last handed out, users are the Transports that it belongs to, and certificates is what those that it keeps
	// take in memory, of which it may share the roots. The lock of brokers guards them.
	asked        time.Time
	users        int
	certificates int
	roots        *x509.CertPool
	// text is how long those of the Secret are.
	text int

	// turn is taken by whoever observes, so that the others wait for the same snapshot.
	turn chan struct{}

	mu sync.Mutex
	// writes of all Transports are counted; wrote is the count at the last one of each that the snapshot may lack.
	writes int
	wrote  map[string]int
	// snapshot holds all writes up to complete. It was begun at taken.
	snapshot topology.Observed
	held     *tenancy.Reservation
	// identity is that of the last snapshot, which may be gone.
	identity topology.Identity
	complete int
	taken    time.Time
	// unreachableErr is the error of the last try if the broker did not answer, silent its time, and rest how long nobody tries again.
	unreachableErr error
	unreachableAt  time.Time
	rest           time.Duration
}

// View is the port for one Transport, whose snapshots are at most so old.
func (p *Port) View(transport string, age time.Duration) *View {
	return &View{Port: p, transport: transport, age: min(age, p.age)}
}

// View is a shared port as one Transport uses it. It is for one reconcile.
type View struct {
	*Port
	transport string
	age       time.Duration
	// behind is true where others have written since the snapshot that Observe gave was begun, and own where it was begun since Observe was called.
	behind, own bool
	// held are what the snapshots that Observe gave take.
	held []*tenancy.Reservation
}

// Observe implements apply.Port.
func (p *View) Observe(ctx context.Context) (topology.Observed, error) {
	arrived := time.Now()
	seen, err := p.observe(ctx, arrived, p.transport, p.age)
	p.behind, p.own, p.held = seen.behind, !seen.taken.Before(arrived), append(p.held, seen.held)
	return seen.snapshot, err
}

// Behind is true where others have written since the snapshot that Observe gave was begun.
func (p *View) Behind() bool { return p.behind }

// IsOwn is true where the snapshot that Observe gave was begun since Observe was called: it has what anybody wrote before.
func (p *View) IsOwn() bool { return p.own }

// Refresh has Observe take a snapshot of its own from now on.
func (p *View) Refresh() { p.age = 0 }

// IsFresh is true after Refresh.
func (p *View) IsFresh() bool { return p.age == 0 }

// Release says that what Observe gave is not needed any more.
func (p *View) Release() {
	for _, held := range p.held {
		held.Release()
	}
	p.held = nil
}

// Apply implements apply.Port.
func (p *View) Apply(ctx context.Context, step topology.Step) (bool, error) {
	defer p.invalidate(p.transport)
	return p.Client.Apply(ctx, step)
}

// DeleteQueue implements apply.Port.
func (p *View) DeleteQueue(ctx context.Context, name string, ifEmpty, ifUnused bool) error {
	defer p.invalidate(p.transport)
	return p.Client.DeleteQueue(ctx, name, ifEmpty, ifUnused)
}

// DeleteExchange implements apply.Port.
func (p *View) DeleteExchange(ctx context.Context, name string) error {
	defer p.invalidate(p.transport)
	return p.Client.DeleteExchange(ctx, name)
}

// observe gives a snapshot that holds what the Transport wrote itself. Its caller is to release what it holds.
func (p *Port) observe(ctx context.Context, arrived time.Time, transport string, age time.Duration) (cacheEntry, error) {
	if err := p.await(ctx); err != nil {
		return cacheEntry{}, err
	}
	defer func() { <-p.turn }()
	recent := p.recent(arrived, transport, age)
	if recent.fresh || recent.err != nil {
		return recent, recent.err
	}
	start := time.Now()
	namespace, _, _ := strings.Cut(transport, "/")
	held := p.budget.Reserve(namespace)
	snapshot, err := p.Observe(broker.WithMeter(ctx, snapshotMeter{held}))
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.unreachableErr = nil
		p.held.Release()
		p.snapshot, p.held, p.complete, p.taken, p.identity = snapshot, held.Share(), recent.writes, start, snapshot.Identity
		time.AfterFunc(p.age, func() { p.drop(start) })
		maps.DeleteFunc(p.wrote, func(_ string, write int) bool { return write <= recent.writes })
	case ctx.Err() != nil: // That whoever asks had no more time says nothing about the broker.
	case errors.Is(err, broker.ErrUnreachable):
		p.unreachableErr, p.unreachableAt, p.rest = err, time.Now(), 0
		if took := time.Since(start); took > promptly {
			p.rest = took
		}
	default:
		p.unreachableErr = nil
	}
	return cacheEntry{snapshot: snapshot, held: held, taken: start, behind: p.writes != recent.writes}, err
}

// snapshotMeter counts a snapshot, and half as much again: what a comparison with it derives takes that where most objects are the Transport's own.
type snapshotMeter struct{ *tenancy.Reservation }

// Take implements broker.Meter.
func (m snapshotMeter) Take(ctx context.Context, bytes int) error {
	return m.Reservation.Take(ctx, bytes+bytes/2)
}

// await takes the turn. While the broker is known to be silent, only one tries and the others do not wait for it.
func (p *Port) await(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	default:
	}
	p.mu.Lock()
	silence := p.unreachableErr
	p.mu.Unlock()
	if silence != nil {
		return silence
	}
	var err error
	broker.Await(ctx, func() {
		select {
		case p.turn <- struct{}{}:
		case <-ctx.Done():
			err = fmt.Errorf("wait for a snapshot: %w", ctx.Err())
		}
	})
	return err
}

// answers says that the broker does so again.
func (p *Port) answers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unreachableErr = nil
}

// serves is true where there is a snapshot that serves all that have not written since.
func (p *Port) serves(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.taken) < p.age
}

// drop lets go of the snapshot that was begun at a time, when it serves nobody any more: those of many vhosts take much memory, and
// are needed seldom at the same time.
func (p *Port) drop(taken time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken.Equal(taken) {
		p.held.Release()
		p.snapshot, p.held, p.taken = topology.Observed{}, nil, time.Time{}
	}
}

// cacheEntry is what the last try to observe gave.
type cacheEntry struct {
	// snapshot was begun at taken.
	snapshot topology.Observed
	taken    time.Time
	held     *tenancy.Reservation
	// fresh is true where the snapshot can serve again, and behind where it may lack what others have written since.
	fresh, behind bool
	// err is not nil where the broker was silent just now.
	err error
	// writes that have ended by now: a snapshot that begins now holds them.
	writes int
}

// recent is what serves a Transport that arrived at a time: also a snapshot that was begun since, however long it took.
func (p *Port) recent(arrived time.Time, transport string, age time.Duration) cacheEntry {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	last := cacheEntry{snapshot: p.snapshot, taken: p.taken, behind: p.writes != p.complete, writes: p.writes}
	if p.unreachableErr != nil && now.Sub(p.unreachableAt) < max(age, p.rest) {
		return cacheEntry{err: p.unreachableErr}
	}
	last.fresh = (now.Sub(p.taken) < age || p.taken.After(arrived)) && p.wrote[transport] <= p.complete
	if last.fresh {
		last.held = p.held.Share()
	}
	return last
}

// invalidate notes that a Transport has written.
func (p *Port) invalidate(transport string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
	p.wrote[transport] = p.writes
}
