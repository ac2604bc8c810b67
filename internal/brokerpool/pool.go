// Package brokerpool keeps the clients of management APIs that Transports share: Pool has one for each vhost and login, with its snapshots; a slot queue
// for each API bounds how many Transports use it at a time; RestartWatch notices when one answers again; PollSchedule aligns the polls of a vhost.
package brokerpool

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
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
	// SnapshotAge is how long a snapshot of a vhost serves all Transports in it, unless one of them changes something.
	SnapshotAge = 5 * time.Second
	// keepBroker is how long a client that nobody asks for is kept.
	keepBroker = 10 * time.Minute
	// maxCertificates is what all certificates that the clients of one namespace keep take in memory, in bytes, and maxAllCertificates those of all
	// namespaces. Beyond it, clients that were not asked for the longest are dropped, of the namespace with the most, and made again when they are.
	maxCertificates    = 4 << 20
	maxAllCertificates = 4 * maxCertificates
	// maxUsedCertificates is what those take that all namespaces use at a time, in bytes; a namespace gets no more than it leaves free.
	maxUsedCertificates = 32 << 20
	// everybody is no namespace.
	everybody = ""
	// FreshAge is the age of a snapshot that is taken for current where something seems wrong.
	FreshAge = time.Second
	// promptly is how soon a broker refuses that is not there. After one that took longer to say nothing, whoever tries it next waits as long.
	promptly = time.Second
)

// Pool keeps one client for each vhost and login, so that connections and snapshots are shared. It is safe for
// concurrent use.
type Pool struct {
	age time.Duration

	// deny are the networks in which no management API is asked.
	deny []netip.Prefix

	budget *tenancy.Memory
	// inUse is what the certificates take that reconciles use at the moment, whether their clients are kept or not.
	inUse *tenancy.Memory

	// slots are those at each management API, and waiting is the metric of who waits for one.
	slots   int
	waiting *prometheus.Desc

	mu    sync.Mutex
	ports map[brokerKey]*Port
	// used are the clients that Transports use, by their names: each Transport has one.
	used   map[types.NamespacedName]brokerKey
	queues map[string]*slotQueue // by host and port of the management API
}

// brokerKey is a digest of everything that a client is made from, secrets too.
type brokerKey [sha256.Size]byte

// NewPool makes it for an operator that lets so many be busy with a management API at a time, and whose snapshots serve so long.
func NewPool(age time.Duration, seats int, deny []netip.Prefix) *Pool {
	return &Pool{
		age: age, deny: deny, budget: tenancy.NewMemory(tenancy.MemoryOfProcess()),
		inUse: tenancy.NewMemory(maxUsedCertificates), slots: seats, ports: map[brokerKey]*Port{},
		used: map[types.NamespacedName]brokerKey{}, queues: map[string]*slotQueue{},
		waiting: prometheus.NewDesc("redrive_broker_queued_reconciles",
			"Transports that wait for their turn at a management API of RabbitMQ.", []string{"broker"}, nil),
	}
}

// Port returns the client of a Transport, in its vhost. It makes no connection yet. The one that the Transport had before is dropped where no
// other Transport uses it.
func (b *Pool) Port(transport types.NamespacedName, c credentials.Credentials, vhost string) (*Port, error) {
	end, err := c.Management()
	if err != nil {
		return nil, err
	}
	key := keyOf(c, end, vhost)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prune(time.Now())
	port, err := b.make(key, c, &end, vhost)
	if err != nil {
		return nil, err
	}
	port.asked = time.Now()
	if b.used[transport] != key {
		b.leave(transport)
		b.used[transport] = key
		port.users++
	}
	b.bound(transport)
	return port, nil
}

// make returns the client with a key, a new one where there is none.
func (b *Pool) make(key brokerKey, c credentials.Credentials, end *credentials.Management, vhost string) (*Port, error) {
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
	if b.queues[at] == nil {
		b.queues[at] = newQueue(b.slots)
	}
	port := &Port{
		Client: client, age: b.age, budget: b.budget, queue: b.queues[at], at: at, api: apiOf(c, *end), url: end.URL, turn: make(chan struct{}, 1),
		wrote: map[string]int{},
	}
	if end.TLS != nil {
		port.certificates, port.roots = c.CertificateMemory(), end.TLS.RootCAs
		port.text = len(c.CA) + len(c.Cert) + len(c.Key)
	}
	b.ports[key] = port
	return port, nil
}

// Seen is the broker that a Transport's login was let into lately, by the URL of its management API and by what it said of itself. A host and its port
// are not enough: behind another path of a gateway may be the server of somebody else.
func (b *Pool) Seen(transport types.NamespacedName) (url string, broker topology.Identity) {
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

// prune drops the clients that nobody asked for in a while, such as those of Transports that are gone.
func (b *Pool) prune(now time.Time) {
	for transport, key := range b.used {
		if now.Sub(b.ports[key].asked) > keepBroker {
			b.leave(transport)
		}
	}
	at := map[string]bool{}
	for _, port := range b.ports {
		at[port.at] = true
	}
	maps.DeleteFunc(b.queues, func(name string, _ *slotQueue) bool { return !at[name] })
}

// Forget says that the Transports of some names are no more: with each goes its client, where no other Transport uses it.
func (b *Pool) Forget(transports ...types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, transport := range transports {
		b.leave(transport)
	}
	b.prune(time.Now())
}

// Memory is what the snapshots of all brokers take together, and what reconciles derive from them.
func (b *Pool) Memory() *tenancy.Memory { return b.budget }

// Use counts the certificates of a client, and their text, until they are not used any more. It never waits, as who waits would have them already: it fails
// with tenancy.ErrMemory. Small ones are always let in.
func (b *Pool) Use(ctx context.Context, namespace string, port *Port) (*tenancy.Reservation, error) {
	held := b.inUse.Reserve(namespace)
	if err := held.TakeNow(ctx, port.certificates+port.text); err != nil {
		held.Release()
		return nil, fmt.Errorf("the certificates for its broker take %d bytes: %w", port.certificates, err)
	}
	return held, nil
}

// leave says that a Transport does not use its client any more.
func (b *Pool) leave(transport types.NamespacedName) {
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

// heldRoots are those that clients of a namespace keep, or with none clients of any.
type heldRoots struct {
	namespace string
	roots     *x509.CertPool
}

// bound drops clients, but not that of a Transport, until the certificates of the others are not too large together.
func (b *Pool) bound(transport types.NamespacedName) {
	for {
		sums, oldest := b.certificates(b.used[transport])
		most := transport.Namespace
		for namespace := range oldest {
			if sums[namespace] > sums[most] {
				most = namespace
			}
		}
		if sums[most] <= maxCertificates && sums[everybody] <= maxAllCertificates {
			return
		}
		b.leave(oldest[most])
	}
}

// certificates are what the clients of each namespace keep, and of all, without one of them, and the Transport of each namespace whose client was asked for
// the longest ago. What clients share counts once.
func (b *Pool) certificates(without brokerKey) (sums map[string]int, oldest map[string]types.NamespacedName) {
	sums, oldest = map[string]int{}, map[string]types.NamespacedName{}
	counted := map[heldRoots]bool{}
	for transport, key := range b.used {
		port := b.ports[key]
		if key == without || port.certificates == 0 {
			continue
		}
		for _, namespace := range []string{transport.Namespace, everybody} {
			held := heldRoots{namespace, port.roots}
			if port.roots == nil || !counted[held] {
				sums[namespace] += port.certificates
			}
			counted[held] = true
		}
		if known, ok := oldest[transport.Namespace]; !ok || port.asked.Before(b.ports[b.used[known]].asked) {
			oldest[transport.Namespace] = transport
		}
	}
	return sums, oldest
}

// hostOf is the host and port of a URL. A path makes no other broker of it, or one server would have as many queues as one likes,
// and it may hold what is not to stand in a metric.
func hostOf(text string) string {
	parsed, err := url.Parse(text)
	if err != nil {
		return ""
	}
	return parsed.Host
}

// Describe implements prometheus.Collector.
func (b *Pool) Describe(descs chan<- *prometheus.Desc) { descs <- b.waiting }

// Collect implements prometheus.Collector. It sends without the lock: the registry takes as long as it likes.
func (b *Pool) Collect(into chan<- prometheus.Metric) {
	b.mu.Lock()
	queues := maps.Clone(b.queues)
	b.mu.Unlock()
	for at, queue := range queues {
		// What cannot be told is left out: a panic, or an error, would take the metrics of all Transports along.
		if metric, err := prometheus.NewConstMetric(b.waiting, prometheus.GaugeValue, float64(queue.length()), at); err == nil {
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
