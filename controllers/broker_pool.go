package controllers

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/tenancy"
	"redrive.dev/redrive/internal/topology"
)

const (
	// snapshotAge is how long a snapshot of a vhost serves all Transports in it, unless one of them changes something.
	snapshotAge = 5 * time.Second
	// keepBroker is how long a client that nobody asks for is kept.
	keepBroker = 10 * time.Minute
	// maxCertificates is the size, in bytes, of all certificates that the clients of one namespace keep. Beyond it, those that were not asked for
	// the longest are dropped, and made again when they are.
	maxCertificates = 8 << 20
	// freshAge is the age of a snapshot that is taken for current where something seems wrong.
	freshAge = time.Second
	// promptly is how soon a broker refuses that is not there. After one that took longer to say nothing, whoever tries it next waits as long.
	promptly = time.Second
)

// brokers keeps one client for each vhost and login, so that connections and snapshots are shared. It is safe for
// concurrent use.
type brokers struct {
	age time.Duration

	// deny are the networks in which no management API is asked.
	deny []netip.Prefix

	budget *tenancy.Memory

	// seats are those at each management API, and waiting is the metric of who waits for one.
	seats   int
	waiting *prometheus.Desc

	mu    sync.Mutex
	ports map[brokerKey]*snapshotCache
	// used are the clients that Transports use, by their names: each Transport has one.
	used  map[types.NamespacedName]brokerKey
	lines map[string]*slotQueue // by host and port of the management API
}

// brokerKey is a digest of everything that a client is made from, secrets too.
type brokerKey [sha256.Size]byte

// newBrokers makes it for an operator that lets so many be busy with a management API at a time, and whose snapshots serve so long.
func newBrokers(age time.Duration, seats int, deny []netip.Prefix) *brokers {
	return &brokers{
		age: age, deny: deny, budget: tenancy.NewMemory(tenancy.MemoryOfProcess()), seats: seats, ports: map[brokerKey]*snapshotCache{},
		used: map[types.NamespacedName]brokerKey{}, lines: map[string]*slotQueue{},
		waiting: prometheus.NewDesc("redrive_broker_queued_reconciles",
			"Transports that wait for their turn at a management API of RabbitMQ.", []string{"broker"}, nil),
	}
}

// port returns the client of a Transport, in its vhost. It makes no connection yet. The one that the Transport had before is dropped where no
// other Transport uses it.
func (b *brokers) port(transport types.NamespacedName, c credentials.Credentials, vhost string) (*snapshotCache, error) {
	end, err := c.Management()
	if err != nil {
		return nil, err
	}
	key := keyOf(c, end, vhost)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forget(time.Now())
	port, err := b.make(key, apiOf(c, end), &end, vhost)
	if err != nil {
		return nil, err
	}
	port.asked, port.certificates = time.Now(), len(c.CA)+len(c.Cert)+len(c.Key)
	if b.used[transport] != key {
		b.leave(transport)
		b.used[transport] = key
		port.users++
	}
	b.bound(transport)
	return port, nil
}

// make returns the client with a key, a new one where there is none.
func (b *brokers) make(key brokerKey, api string, end *credentials.Management, vhost string) (*snapshotCache, error) {
	if port := b.ports[key]; port != nil {
		return port, nil
	}
	client, err := broker.New(broker.Config{
		ManagementURL: end.URL, Username: end.Username, Password: end.Password(), VHost: vhost, TLS: end.TLS, Deny: b.deny,
	})
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", credentials.KeyManagementURI, err)
	}
	at := hostOf(end.URL)
	if b.lines[at] == nil {
		b.lines[at] = newSlotQueue(b.seats)
	}
	port := &snapshotCache{
		Client: client, age: b.age, budget: b.budget, line: b.lines[at], at: at, api: api, url: end.URL, turn: make(chan struct{}, 1),
		wrote: map[string]int{},
	}
	b.ports[key] = port
	return port, nil
}

// seen is the broker that a Transport's login was let into lately, by the URL of its management API and by what it said of itself. A host and its port
// are not enough: behind another path of a gateway may be the server of somebody else.
func (b *brokers) seen(transport types.NamespacedName) (url string, broker topology.Identity) {
	b.mu.Lock()
	port := b.ports[b.used[transport]]
	b.mu.Unlock()
	if port == nil {
		return "", broker
	}
	port.mu.Lock()
	defer port.mu.Unlock()
	return port.url, port.identity
}

// forget drops the clients that nobody asked for in a while, such as those of Transports that are gone.
func (b *brokers) forget(now time.Time) {
	for transport, key := range b.used {
		if now.Sub(b.ports[key].asked) > keepBroker {
			b.leave(transport)
		}
	}
	at := map[string]bool{}
	for _, port := range b.ports {
		at[port.at] = true
	}
	maps.DeleteFunc(b.lines, func(name string, _ *slotQueue) bool { return !at[name] })
}

// gone says that a Transport is no more: with it goes its client, and that with the administrator's login, where no other Transport uses them.
func (b *brokers) gone(transport types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leave(transport)
	b.leave(adminOf(transport))
	b.forget(time.Now())
}

// leave says that a Transport does not use its client any more.
func (b *brokers) leave(transport types.NamespacedName) {
	key, ok := b.used[transport]
	if !ok {
		return
	}
	delete(b.used, transport)
	port := b.ports[key]
	if port.users--; port.users == 0 {
		port.Close()
		delete(b.ports, key)
	}
}

// bound drops clients of the namespace of a Transport, but not its own, until the certificates of the others are not too large together.
func (b *brokers) bound(transport types.NamespacedName) {
	own := b.used[transport]
	for {
		sum, oldest := 0, types.NamespacedName{}
		for other, key := range b.used {
			if other.Namespace != transport.Namespace || key == own {
				continue
			}
			sum += b.ports[key].certificates
			if oldest.Name == "" || b.ports[key].asked.Before(b.ports[b.used[oldest]].asked) {
				oldest = other
			}
		}
		if sum <= maxCertificates {
			return
		}
		b.leave(oldest)
	}
}

// hostOf is the host and port of a URL. A path makes no other broker of it, or one server would have as many lines as one likes,
// and it may hold what is not to stand in a metric.
func hostOf(text string) string {
	parsed, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return parsed.Host
}

// Describe implements prometheus.Collector.
func (b *brokers) Describe(descs chan<- *prometheus.Desc) { descs <- b.waiting }

// Collect implements prometheus.Collector. It sends without the lock: the registry takes as long as it likes.
func (b *brokers) Collect(into chan<- prometheus.Metric) {
	b.mu.Lock()
	lines := maps.Clone(b.lines)
	b.mu.Unlock()
	for at, line := range lines {
		line.mu.Lock()
		waiting := len(line.waiting)
		line.mu.Unlock()
		// What cannot be told is left out: a panic, or an error, would take the metrics of all Transports along.
		if metric, err := prometheus.NewConstMetric(b.waiting, prometheus.GaugeValue, float64(waiting), at); err == nil {
			into <- metric
		}
	}
}

// apiOf tells a management API by its URL, and by the certificates with which it is asked: with others' certificates it may seem not to answer.
func apiOf(c credentials.Credentials, end credentials.Management) string {
	digest := sha256.New()
	for _, part := range []string{end.URL, string(c.CA), string(c.Cert), string(c.Key)} {
		_, _ = fmt.Fprintf(digest, "%d:%s", len(part), part)
	}
	return string(digest.Sum(nil))
}

func keyOf(c credentials.Credentials, end credentials.Management, vhost string) brokerKey {
	digest := sha256.New()
	for _, part := range []string{end.URL, end.Username, end.Password(), vhost, string(c.CA), string(c.Cert), string(c.Key)} {
		_, _ = fmt.Fprintf(digest, "%d:%s", len(part), part)
	}
	return brokerKey(digest.Sum(nil))
}

// snapshotCache is a client whose snapshots are shared. What a Transport writes through it makes the snapshot outdated for that
// Transport only: if it did so for all, hundreds that are applied together would cost a snapshot each, of all that stands by then.
type snapshotCache struct {
	*broker.Client
	age    time.Duration
	budget *tenancy.Memory
	// line is that of the management API at a host and port, and url that of the API. api is the same for all who ask it whether it answers and
	// trust the same certificates.
	line *slotQueue
	at   string
	url  string
	api  string
	// asked is when the client was last handed out, users are the Transports that it belongs to, and certificates is the size of those that it
	// keeps, in bytes. The lock of brokers guards them.
	asked        time.Time
	users        int
	certificates int

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
	// silence is the error of the last try if the broker did not answer, silent its time, and rest how long nobody tries again.
	silence error
	silent  time.Time
	rest    time.Duration
}

// of is the port for one Transport, whose snapshots are at most so old.
func (p *snapshotCache) of(transport string, age time.Duration) *transportView {
	return &transportView{snapshotCache: p, transport: transport, age: min(age, p.age)}
}

// transportView is a shared port as one Transport uses it. It is for one reconcile.
type transportView struct {
	*snapshotCache
	transport string
	age       time.Duration
	// behind is true where others have written since the snapshot that Observe gave was begun.
	behind bool
	// held are what the snapshots that Observe gave take.
	held []*tenancy.Reservation
}

// Observe implements apply.Port.
func (p *transportView) Observe(ctx context.Context) (topology.Observed, error) {
	observed, behind, held, err := p.observe(ctx, p.transport, p.age)
	p.behind, p.held = behind, append(p.held, held)
	return observed, err
}

// done says that what Observe gave is not needed any more.
func (p *transportView) done() {
	for _, held := range p.held {
		held.Release()
	}
	p.held = nil
}

// Apply implements apply.Port.
func (p *transportView) Apply(ctx context.Context, step topology.Step) (bool, error) {
	defer p.invalidate(p.transport)
	return p.Client.Apply(ctx, step)
}

// DeleteQueue implements apply.Port.
func (p *transportView) DeleteQueue(ctx context.Context, name string, ifEmpty, ifUnused bool) error {
	defer p.invalidate(p.transport)
	return p.Client.DeleteQueue(ctx, name, ifEmpty, ifUnused)
}

// DeleteExchange implements apply.Port.
func (p *transportView) DeleteExchange(ctx context.Context, name string) error {
	defer p.invalidate(p.transport)
	return p.Client.DeleteExchange(ctx, name)
}

// observe gives a snapshot that holds what the Transport wrote itself. behind is true where it may lack what others wrote.
// Its caller is to release what it holds.
func (p *snapshotCache) observe(
	ctx context.Context, transport string, age time.Duration,
) (snapshot topology.Observed, behind bool, held *tenancy.Reservation, err error) {
	arrived := time.Now()
	if err := p.await(ctx); err != nil {
		return topology.Observed{}, false, nil, err
	}
	defer func() { <-p.turn }()
	recent := p.recent(arrived, transport, age)
	if recent.fresh || recent.err != nil {
		return recent.snapshot, recent.behind, recent.held, recent.err
	}
	start := time.Now()
	namespace, _, _ := strings.Cut(transport, "/")
	held = p.budget.Reserve(namespace)
	snapshot, err = p.Observe(broker.WithMeter(ctx, snapshotMeter{held}))
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.silence = nil
		p.held.Release()
		p.snapshot, p.held, p.complete, p.taken, p.identity = snapshot, held.Share(), recent.writes, start, snapshot.Identity
		time.AfterFunc(p.age, func() { p.drop(start) })
		maps.DeleteFunc(p.wrote, func(_ string, write int) bool { return write <= recent.writes })
	case ctx.Err() != nil: // That whoever asks had no more time says nothing about the broker.
	case errors.Is(err, broker.ErrUnreachable):
		p.silence, p.silent, p.rest = err, time.Now(), 0
		if took := time.Since(start); took > promptly {
			p.rest = took
		}
	default:
		p.silence = nil
	}
	return snapshot, p.writes != recent.writes, held, err
}

// snapshotMeter counts a snapshot, and half as much again: what a comparison with it derives takes that where most objects are the Transport's own.
type snapshotMeter struct{ *tenancy.Reservation }

// Take implements broker.Meter.
func (m snapshotMeter) Take(ctx context.Context, bytes int) error {
	return m.Reservation.Take(ctx, bytes+bytes/2) //nolint:wrapcheck // It says all.
}

// await takes the turn. While the broker is known to be silent, only one tries and the others do not wait for it.
func (p *snapshotCache) await(ctx context.Context) error {
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
func (p *snapshotCache) answers() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.silence = nil
}

// serves is true where there is a snapshot that serves all that have not written since.
func (p *snapshotCache) serves(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return now.Sub(p.taken) < p.age
}

// drop lets go of the snapshot that was begun at a time, when it serves nobody any more: those of many vhosts take much memory, and
// are needed seldom at the same time.
func (p *snapshotCache) drop(taken time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken.Equal(taken) {
		p.held.Release()
		p.snapshot, p.held, p.taken = topology.Observed{}, nil, time.Time{}
	}
}

// cacheEntry is what the last try to observe gave.
type cacheEntry struct {
	snapshot topology.Observed
	held     *tenancy.Reservation
	// fresh is true where the snapshot can serve again, and behind where it may lack what others have written since.
	fresh, behind bool
	// err is not nil where the broker was silent just now.
	err error
	// writes that have ended by now: a snapshot that begins now holds them.
	writes int
}

// recent is what serves a Transport that arrived at a time: also a snapshot that was begun since, however long it took.
func (p *snapshotCache) recent(arrived time.Time, transport string, age time.Duration) cacheEntry {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	last := cacheEntry{snapshot: p.snapshot, behind: p.writes != p.complete, writes: p.writes}
	if p.silence != nil && now.Sub(p.silent) < max(age, p.rest) {
		return cacheEntry{err: p.silence}
	}
	last.fresh = (now.Sub(p.taken) < age || p.taken.After(arrived)) && p.wrote[transport] <= p.complete
	if last.fresh {
		last.held = p.held.Share()
	}
	return last
}

// invalidate notes that a Transport has written.
func (p *snapshotCache) invalidate(transport string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.writes++
	p.wrote[transport] = p.writes
}
