// Package opmetrics holds the operator's own Prometheus metrics of Transports: their queues, what failure queues drop, and their conditions.
package opmetrics

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/topology"
)

// Labels of all that is told of a Transport.
const (
	LabelNamespace = "namespace"
	LabelTransport = "transport"
)

// maxQueues is how many queues of all namespaces have numbers of their own: what these take, and more than that for each look of Prometheus, would have no
// bound. A namespace gets no more than it leaves free: alone all of a thousand Transports with 12 queues. A Transport beyond that has a number for each role.
const maxQueues = 24_000

// Queues are the counts of all queues as they were last seen. It is a prometheus.Collector.
type Queues struct {
	messages, ready, unacked, expired, consumers, oldest *prometheus.Desc

	mu     sync.Mutex
	queues map[types.NamespacedName][]queueGauge
	// single are the Transports whose queues have numbers of their own, and told is how many these are, of each namespace and of all.
	single map[types.NamespacedName]bool
	told   map[string]int
	all    int
}

// queueGauge is a queue at the last look, or all of a role, without a name. Its backlog goes on from look to look; a lane has none, for it lets messages
// go by itself.
type queueGauge struct {
	apply.QueueCount

	backlog *backlog
	oldest  time.Duration
}

// NewQueues returns a collector that knows no queue yet.
func NewQueues() *Queues {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{LabelNamespace, LabelTransport, "queue", "role"}, nil)
	}
	return &Queues{
		messages:  desc("redrive_queue_messages", "Messages in a queue, in any state, when the operator last looked."),
		ready:     desc("redrive_queue_ready_messages", "Messages that can be delivered; in a lane, those that wait for its delay to pass."),
		unacked:   desc("redrive_queue_unacked_messages", "Messages that consumers have and have not settled."),
		expired:   desc("redrive_queue_expired_messages", "Messages of a lane that have expired and cannot leave it yet."),
		consumers: desc("redrive_queue_consumers", "Consumers of a queue when the operator last looked."),
		oldest:    desc("redrive_queue_oldest_message_age_seconds", "How long the oldest message of a queue has been there, at least; of lanes it is not told."),
		queues:    map[types.NamespacedName][]queueGauge{},
		single:    map[types.NamespacedName]bool{},
		told:      map[string]int{},
	}
}

// Register makes a registry collect metrics. A process that sets up a second manager has the second one's collected.
func Register(registry prometheus.Registerer, collectors ...prometheus.Collector) error {
	for _, collector := range collectors {
		err := registry.Register(collector)
		if taken, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
			registry.Unregister(taken.ExistingCollector)
			err = registry.Register(collector)
		}
		if err != nil {
			return fmt.Errorf("register the metrics: %w", err)
		}
	}
	return nil
}

// Set takes a look at the queues of a Transport. Of a queue that is told twice the first counts: a registry refuses to serve any metric, of all
// Transports, where two have the same labels.
func (g *Queues) Set(name types.NamespacedName, queues []apply.QueueCount, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	type key struct {
		name string
		role topology.Role
	}
	backlogs := map[key]*backlog{}
	for _, known := range g.queues[name] {
		backlogs[key{known.Name, known.Role}] = known.backlog
	}
	g.forget(name)
	queues = g.bounded(name, once(queues))
	seen := make([]queueGauge, 0, len(queues))
	for _, queue := range queues {
		gauge := queueGauge{QueueCount: queue}
		if queue.Messages != nil && queue.Role != topology.RoleLane {
			if gauge.backlog = backlogs[key{queue.Name, queue.Role}]; gauge.backlog == nil {
				gauge.backlog = &backlog{}
			}
			gauge.oldest = gauge.backlog.see(queue, now)
		}
		seen = append(seen, gauge)
	}
	g.queues[name] = seen
}

// once has each queue once.
func once(queues []apply.QueueCount) []apply.QueueCount {
	first, told := make([]apply.QueueCount, 0, len(queues)), make(map[string]bool, len(queues))
	for _, queue := range queues {
		if !told[queue.Name] {
			told[queue.Name] = true
			first = append(first, queue)
		}
	}
	return first
}

// bounded are the queues of a Transport, or one for each role where its namespace would have more than it leaves free.
func (g *Queues) bounded(name types.NamespacedName, queues []apply.QueueCount) []apply.QueueCount {
	if all := g.all + len(queues); g.told[name.Namespace]+len(queues) <= maxQueues-all {
		g.single[name] = true
		g.told[name.Namespace] += len(queues)
		g.all = all
		return queues
	}
	var sums []apply.QueueCount
	for _, queue := range queues {
		i := slices.IndexFunc(sums, func(sum apply.QueueCount) bool { return sum.Role == queue.Role })
		if i < 0 {
			i, sums = len(sums), append(sums, apply.QueueCount{Role: queue.Role})
		}
		add(&sums[i], queue)
	}
	return sums
}

func add(sum *apply.QueueCount, queue apply.QueueCount) {
	if queue.Messages != nil {
		if sum.Messages == nil {
			sum.Messages = new(int64)
		}
		*sum.Messages += *queue.Messages
	}
	sum.Ready += queue.Ready
	sum.Unacked += queue.Unacked
	sum.Consumers += queue.Consumers
	sum.Expired += queue.Expired
	sum.Published += queue.Published
	sum.Acked += queue.Acked
}

// Unacked are the queues of which consumers had messages at the last look. One without a name stands for any of the Transport.
func (g *Queues) Unacked(name types.NamespacedName) map[string]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	queues := map[string]bool{}
	for _, queue := range g.queues[name] {
		if queue.Unacked > 0 {
			queues[queue.Name] = true
		}
	}
	return queues
}

// Forget drops the queues of a Transport.
func (g *Queues) Forget(name types.NamespacedName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forget(name)
}

func (g *Queues) forget(name types.NamespacedName) {
	if n := len(g.queues[name]); g.single[name] {
		g.all -= n
		if g.told[name.Namespace] -= n; g.told[name.Namespace] == 0 {
			delete(g.told, name.Namespace)
		}
	}
	delete(g.single, name)
	delete(g.queues, name)
}

// Describe implements prometheus.Collector.
func (g *Queues) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{g.messages, g.ready, g.unacked, g.expired, g.consumers, g.oldest} {
		descs <- desc
	}
}

// queueMetric is one number of a queue. All of a queue share their labels: a thousand Transports have tens of thousands of numbers, and
// labels for each would take more memory, at each look of Prometheus, than all else that the operator has.
type queueMetric struct {
	desc   *prometheus.Desc
	labels []*dto.LabelPair
	value  float64
}

// Desc implements prometheus.Metric.
func (m queueMetric) Desc() *prometheus.Desc { return m.desc }

// Write implements prometheus.Metric.
func (m queueMetric) Write(into *dto.Metric) error {
	into.Label, into.Gauge = m.labels, &dto.Gauge{Value: &m.value}
	return nil
}

// Collect implements prometheus.Collector. It sends without the lock: the registry takes as long as it likes, and looks would wait for it.
func (g *Queues) Collect(metrics chan<- prometheus.Metric) {
	g.mu.Lock()
	all := maps.Clone(g.queues) // nobody changes what set has put there
	g.mu.Unlock()
	for name, queues := range all {
		for _, queue := range queues {
			g.tell(metrics, name, queue)
		}
	}
}

// tell sends the numbers of one queue.
func (g *Queues) tell(metrics chan<- prometheus.Metric, name types.NamespacedName, queue queueGauge) {
	labels := prometheus.MakeLabelPairs(g.messages, []string{name.Namespace, name.Name, queue.Name, string(queue.Role)})
	tell := func(desc *prometheus.Desc, value float64) { metrics <- queueMetric{desc, labels, value} }
	tell(g.consumers, float64(queue.Consumers))
	if queue.Messages == nil {
		return
	}
	tell(g.messages, float64(*queue.Messages))
	tell(g.ready, float64(queue.Ready))
	tell(g.unacked, float64(queue.Unacked))
	if queue.Role == topology.RoleLane {
		tell(g.expired, float64(queue.Expired))
		return
	}
	tell(g.oldest, queue.oldest.Seconds())
}
