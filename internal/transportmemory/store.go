// Package transportmemory is what the operator keeps in memory of each Transport from one reconcile to the next, and what stands in no status.
package transportmemory

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/topology"
)

const (
	// FastRequeueInterval is the requeue interval of a Transport with a problem. RabbitMQ counts messages every 5 s.
	FastRequeueInterval = 10 * time.Second
	// FastRequeueFor bounds how long a Transport with missing pods is requeued that often: a Deployment that stays broken is no
	// reason to ask the broker all the time.
	FastRequeueFor = 3 * time.Minute
	// fastRequeueAfter is how long fast requeues go on once all pods are there again: pods that restart may leave quarantined messages
	// behind that the broker has not counted yet.
	fastRequeueAfter = 2 * FastRequeueInterval
)

// memory is that of one Transport: beside what runs hand each other, since when deletions without an answer and the times of its status are known.
type memory struct {
	apply.Memory

	doubts apply.Doubts
	stamps topology.Stamps
	// outage is when pods of its workers were missing; zero where none are.
	outage outage
}

// outage is the time between the first and the last reconcile that found pods missing.
type outage struct{ first, last time.Time }

// Store are those of all Transports: after a restart all queues are as old as the first look. It is safe for concurrent use.
type Store struct {
	mu  sync.Mutex
	all map[types.NamespacedName]memory
	// sent are the deletions without an answer of each Transport, by namespace, the oldest first. They outlive it: whoever takes the finalizer off one, and
	// makes it again, has a queue of the same name.
	sent map[string][]sentDeletions
}

// sentDeletions are those of one Transport.
type sentDeletions struct {
	uid       types.UID
	broker    *v1alpha1.BrokerIdentity
	deletions []v1alpha1.Deletion
	at        time.Time
}

// mostSent bounds how many deletions are remembered of a namespace: somebody may make one Transport after the other.
const mostSent = 1024

// NewStore makes one that knows nothing.
func NewStore() *Store {
	return &Store{all: map[types.NamespacedName]memory{}, sent: map[string][]sentDeletions{}}
}

// NoteSent keeps for so long what a Transport has deleted without an answer, or is about to.
func (m *Store) NoteSent(t *v1alpha1.Transport, deletions []v1alpha1.Deletion, life time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for namespace := range m.sent {
		m.dropSent(namespace, func(s sentDeletions) bool { return s.uid == t.UID || time.Since(s.at) > life })
	}
	if len(deletions) == 0 {
		return
	}
	all := slices.Concat(m.sent[t.Namespace], []sentDeletions{{t.UID, t.Status.Broker.DeepCopy(), slices.Clone(deletions), time.Now()}})
	room := mostSent
	for i := range slices.Backward(all) {
		if room -= len(all[i].deletions); room < 0 {
			all = slices.Clone(all[i+1:])
			break
		}
	}
	m.sent[t.Namespace] = all
}

func (m *Store) dropSent(namespace string, such func(sentDeletions) bool) {
	if m.sent[namespace] = slices.DeleteFunc(m.sent[namespace], such); len(m.sent[namespace]) == 0 {
		delete(m.sent, namespace)
	}
}

// DeletionsOfOthers are the deletions of other Transports on the same vhost that may still be carried out: a queue that moves from one
// Transport to another must not go by a late request of the first. Only those of the namespace count: a management API may claim to be
// any broker, and whoever runs one could keep the names of others from being used. Those of Transports that are gone are among them, as far as this operator
// remembers them: somebody may have taken the finalizer off.
func (m *Store) DeletionsOfOthers(ctx context.Context, c client.Reader, t *v1alpha1.Transport) ([]v1alpha1.Deletion, error) {
	var list v1alpha1.TransportList
	if err := c.List(ctx, &list, client.InNamespace(t.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the Transports of namespace %s: %w", t.Namespace, err)
	}
	deletions := m.SentByOthers(t)
	for i := range list.Items {
		if other := &list.Items[i]; other.Name != t.Name && MayShareVHost(other.Status.Broker, t.Status.Broker) {
			deletions = append(deletions, other.Status.Deletions...)
		}
	}
	return deletions, nil
}

// SentByOthers are the deletions of other Transports of the namespace, also of those that are gone, on a vhost that may be that of a Transport.
func (m *Store) SentByOthers(t *v1alpha1.Transport) (deletions []v1alpha1.Deletion) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.sent[t.Namespace] {
		if s.uid != t.UID && MayShareVHost(s.broker, t.Status.Broker) {
			deletions = append(deletions, s.deletions...)
		}
	}
	return deletions
}

// Of a Transport is what its last run handed on; what it holds is not to be changed.
func (m *Store) Of(name types.NamespacedName) apply.Memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[name].Memory
}

// Keep notes what the look at the broker has found.
func (m *Store) Keep(name types.NamespacedName, report *apply.Report) {
	m.mu.Lock()
	defer m.mu.Unlock()
	its := m.all[name]
	its.Memory = report.Memory
	its.stamps = its.stamps.See(report.Retiring, report.Migrations, time.Now())
	m.all[name] = its
}

// Doubt keeps since when some deletions are known: now for those that are new.
func (m *Store) Doubt(name types.NamespacedName, deletions []v1alpha1.Deletion) apply.Doubts {
	m.mu.Lock()
	defer m.mu.Unlock()
	its := m.all[name]
	its.doubts = its.doubts.See(deletions, time.Now())
	m.all[name] = its
	return its.doubts
}

// Stamp keeps since when the times of some queues and migrations are known: now for those that are new.
func (m *Store) Stamp(name types.NamespacedName, retiring []v1alpha1.Retirement, migrations []v1alpha1.Migration) topology.Stamps {
	m.mu.Lock()
	defer m.mu.Unlock()
	its := m.all[name]
	its.stamps = its.stamps.See(retiring, migrations, time.Now())
	m.all[name] = its
	return its.stamps
}

// Requeue returns the time until the next reconcile, given whether pods of the workers are missing now; zero leaves it to the poll. While some are, it is
// short, and for a while after that.
func (m *Store) Requeue(name types.NamespacedName, missing bool, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	its := m.all[name]
	seen, known := its.outage, !its.outage.first.IsZero()
	switch {
	case missing && !known:
		seen = outage{first: now, last: now}
	case missing:
		seen.last = now
	case !known:
		return 0
	case now.Sub(seen.last) >= fastRequeueAfter:
		its.outage = outage{}
		m.all[name] = its
		return 0
	}
	its.outage = seen
	m.all[name] = its
	if now.Sub(seen.first) >= FastRequeueFor {
		return 0
	}
	return brokerpool.Spread(FastRequeueInterval)
}

// Forget drops what is known of a Transport that is gone, but for what it has sent.
func (m *Store) Forget(name types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, name)
}

// MayShareVHost is true where two Transports stand on the same vhost of one broker, or one of them has not looked at its own yet.
func MayShareVHost(a, b *v1alpha1.BrokerIdentity) bool {
	switch {
	case a == nil:
		return false // it has deleted nothing
	case b == nil:
		return true
	case a.ClusterID != "" && b.ClusterID != "":
		return a.ClusterID == b.ClusterID && a.VHost == b.VHost
	default:
		return a.Cluster == b.Cluster && a.VHost == b.VHost
	}
}
