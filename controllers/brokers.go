package controllers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/topology"
)

const (
	// snapshotAge is how long a snapshot of a vhost serves all Transports in it, unless one of them changes something.
	snapshotAge = 5 * time.Second
	// keepBroker is how long a client that nobody asks for is kept.
	keepBroker = 10 * time.Minute
)

// brokers keeps one client for each vhost and login, so that connections and snapshots are shared. It is safe for
// concurrent use.
type brokers struct {
	age time.Duration

	mu    sync.Mutex
	ports map[brokerKey]*sharedPort
}

// brokerKey is a digest of everything that a client is made from, secrets too.
type brokerKey [sha256.Size]byte

func newBrokers(age time.Duration) *brokers {
	return &brokers{age: age, ports: map[brokerKey]*sharedPort{}}
}

// port returns the client for a vhost. It makes no connection yet.
func (b *brokers) port(c credentials.Credentials, vhost string) (apply.Port, error) {
	end, err := c.Management()
	if err != nil {
		return nil, err //nolint:wrapcheck // It names the key of the Secret.
	}
	key := keyOf(c, end, vhost)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(time.Now())
	if known, ok := b.ports[key]; ok {
		known.asked = time.Now()
		return known, nil
	}
	client, err := broker.New(broker.Config{
		ManagementURL: end.URL, Username: end.Username, Password: end.Password(), VHost: vhost, TLS: end.TLS,
	})
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", credentials.KeyManagementURI, err)
	}
	port := &sharedPort{Client: client, age: b.age, turn: make(chan struct{}, 1), asked: time.Now()}
	b.ports[key] = port
	return port, nil
}

// forget drops the clients that nobody asked for in a while, such as those of a password that was changed.
func (b *brokers) forget(now time.Time) {
	for key, port := range b.ports {
		if now.Sub(port.asked) > keepBroker {
			port.Close()
			delete(b.ports, key)
		}
	}
}

func keyOf(c credentials.Credentials, end credentials.Management, vhost string) brokerKey {
	digest := sha256.New()
	for _, part := range []string{end.URL, end.Username, end.Password(), vhost, string(c.CA), string(c.Cert), string(c.Key)} {
		_, _ = fmt.Fprintf(digest, "%d:%s", len(part), part)
	}
	return brokerKey(digest.Sum(nil))
}

// sharedPort is a client whose snapshots are shared. What is written through it makes the snapshot outdated.
type sharedPort struct {
	*broker.Client
	age time.Duration
	// asked is when the client was last handed out; the lock of brokers guards it.
	asked time.Time

	// turn is taken by whoever observes, so that the others wait for the same snapshot.
	turn chan struct{}

	mu       sync.Mutex
	writes   int
	snapshot topology.Observed
	taken    time.Time
	// silence is the error of the last try if the broker did not answer, and silent its time.
	silence error
	silent  time.Time
}

// Observe implements apply.Port.
func (p *sharedPort) Observe(ctx context.Context) (topology.Observed, error) {
	if err := p.await(ctx); err != nil {
		return topology.Observed{}, err
	}
	defer func() { <-p.turn }()
	snapshot, writes, fresh, err := p.recent(time.Now())
	if fresh || err != nil {
		return snapshot, err
	}
	start := time.Now()
	snapshot, err = p.Client.Observe(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silence = nil
	switch {
	case errors.Is(err, broker.ErrUnreachable):
		p.silence, p.silent = err, time.Now()
	case err == nil && p.writes == writes:
		p.snapshot, p.taken = snapshot, start
	}
	return snapshot, err //nolint:wrapcheck // It names its operation.
}

// await takes the turn. While the broker is known to be silent, only one tries and the others do not wait for it: a slow
// broker must not keep all workers of the operator.
func (p *sharedPort) await(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	default:
	}
	p.mu.Lock()
	silence := p.silence
	p.mu.Unlock()
	if silence != nil {
		return silence
	}
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for a snapshot: %w", ctx.Err())
	}
}

// recent is what the last try gave, if it is recent enough to serve again.
func (p *sharedPort) recent(now time.Time) (snapshot topology.Observed, writes int, fresh bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silence != nil && now.Sub(p.silent) < p.age {
		return topology.Observed{}, p.writes, false, p.silence
	}
	return p.snapshot, p.writes, now.Sub(p.taken) < p.age, nil
}

// Apply implements apply.Port.
func (p *sharedPort) Apply(ctx context.Context, step topology.Step) (bool, error) {
	defer p.outdate()
	return p.Client.Apply(ctx, step) //nolint:wrapcheck // It names its operation.
}

// DeleteQueue implements apply.Port.
func (p *sharedPort) DeleteQueue(ctx context.Context, name string, ifEmpty, ifUnused bool) error {
	defer p.outdate()
	return p.Client.DeleteQueue(ctx, name, ifEmpty, ifUnused) //nolint:wrapcheck // It names its operation.
}

// DeleteExchange implements apply.Port.
func (p *sharedPort) DeleteExchange(ctx context.Context, name string) error {
	defer p.outdate()
	return p.Client.DeleteExchange(ctx, name) //nolint:wrapcheck // It names its operation.
}

func (p *sharedPort) outdate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
	p.taken = time.Time{}
}
