package opmetrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/topology"
)

// minDampInterval is the shortest time between two looks that are compared. RabbitMQ's counters and its numbers of messages are up to
// 5 s old, each by itself.
const minDampInterval = 10 * time.Second

// Drops counts the messages that failure queues with a bound have dropped. It is safe for concurrent use.
type Drops struct {
	Total *prometheus.CounterVec

	mu     sync.Mutex
	queues map[types.NamespacedName]*bounded
}

// NewDrops returns an estimator that knows no queue yet.
func NewDrops() *Drops {
	return &Drops{
		Total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "redrive_failure_dropped_messages_total",
			Help: "Messages that RabbitMQ dropped from a failure queue because of its bound, failure.dropOldestAfter, at least.",
		}, []string{LabelNamespace, LabelTransport, "queue"}),
		queues: map[types.NamespacedName]*bounded{},
	}
}

// Set takes a look at the queues of a Transport into account. Where the bound is nil nothing is counted, and nothing told.
func (d *Drops) Set(name types.NamespacedName, bound *int64, queues []apply.QueueCount, now time.Time) {
	if bound == nil {
		d.Forget(name)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, queue := range queues {
		if queue.Role != topology.RoleFailure || queue.Messages == nil {
			continue
		}
		if known := d.queues[name]; known == nil || known.name != queue.Name {
			d.drop(name)
			d.queues[name] = &bounded{name: queue.Name}
		}
		// At the first look it is told as 0, or Prometheus would not see it rise.
		d.Total.WithLabelValues(name.Namespace, name.Name, queue.Name).Add(float64(d.queues[name].see(queue, *bound, now)))
	}
}

// Forget drops what is known of a Transport, and its series.
func (d *Drops) Forget(name types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drop(name)
}

// drop forgets what is known of a Transport, under the lock.
func (d *Drops) drop(name types.NamespacedName) {
	delete(d.queues, name)
	d.Total.DeletePartialMatch(prometheus.Labels{LabelNamespace: name.Namespace, LabelTransport: name.Name})
}

// bounded follows one failure queue. RabbitMQ has no figure for what a queue drops, so it follows from others: what was published,
// is not there, and was taken by no consumer. Such messages may also have been purged or rejected. Therefore only those count that
// go missing while the queue is full, and that a second look still misses.
type bounded struct {
	name string
	// at is when it was last looked at; zero before the first look.
	at time.Time
	// published and acked are the broker's counts at the last look.
	published, acked int64
	// missing is how many messages were published and neither taken nor there at the last look, and full whether the bound was
	// reached then. The number has no meaning by itself: what was in the queue when the counters began is not in it.
	missing int64
	full    bool
	// settled is as many of those as have been counted, or do not count.
	settled int64
	// fell is where published was when a counter fell: until it is there again, nodes whose figures were left out may come back.
	fell int64
}

// see takes a look into account and gives the number of messages that were dropped and not counted yet.
func (b *bounded) see(queue apply.QueueCount, bound int64, now time.Time) (dropped int64) {
	if !b.at.IsZero() && now.Sub(b.at) < minDampInterval {
		return 0
	}
	missing := queue.Published - queue.Acked - *queue.Messages
	switch least, most := min(b.missing, missing), max(b.missing, missing); {
	case b.at.IsZero():
		b.settled = missing
	case queue.Published < b.published || queue.Acked < b.acked: // another queue of that name, or the broker counts from zero
		b.settled, b.fell = missing, max(b.fell, b.published)
	case b.published < b.fell && queue.Published >= b.fell:
		b.settled = missing
	default:
		// What the broker itself put there, from a work queue, is published for no counter, and makes the number smaller for good.
		b.settled = min(b.settled, most)
		switch {
		case b.full && least > b.settled:
			dropped, b.settled = least-b.settled, least
		case !b.full && missing >= b.missing: // else its number of messages was older than its counters
			b.settled = max(b.settled, b.missing)
		}
	}
	b.at, b.published, b.acked, b.missing, b.full = now, queue.Published, queue.Acked, missing, *queue.Messages >= bound
	return dropped
}
