package controllers

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/topology"
)

// betweenCounts is the shortest time between two writes of status.failed that only tell how much.
const betweenCounts = 5 * time.Minute

// reportCounts shows how many messages the queues hold: exactly as metrics, and roughly in status.failed.
func (r *TransportReconciler) reportCounts(run *transportRun) {
	name := client.ObjectKeyFromObject(run.transport)
	r.gauges.set(name, run.report.Queues)
	for _, queue := range run.report.Queues {
		if queue.Role == topology.RoleFailure && queue.Messages != nil {
			run.transport.Status.Failed = r.failed.report(name, run.transport.Status.Failed, *queue.Messages, time.Now())
		}
	}
}

// failedCounts remembers when status.failed was last written. It is safe for concurrent use.
type failedCounts struct {
	mu      sync.Mutex
	written map[types.NamespacedName]time.Time
}

func newFailedCounts() *failedCounts {
	return &failedCounts{written: map[types.NamespacedName]time.Time{}}
}

// report gives the number for the status: the new count where it is worth a write, else the old one.
func (f *failedCounts) report(name types.NamespacedName, old *int64, count int64, now time.Time) *int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !worthWriting(old, count, now.Sub(f.written[name])) {
		return old
	}
	f.written[name] = now
	return &count
}

func (f *failedCounts) forget(name types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.written, name)
}

// worthWriting: whether there is anything is told at once; how much only where it doubled or halved, and not often.
func worthWriting(old *int64, count int64, since time.Duration) bool {
	switch {
	case old == nil:
		return true
	case (*old == 0) != (count == 0):
		return true
	case count >= 2**old && count > *old, count <= *old/2 && count < *old:
		return since >= betweenCounts
	default:
		return false
	}
}

// gauges are the counts of all queues as they were last seen. It is a prometheus.Collector.
type gauges struct {
	messages, consumers *prometheus.Desc

	mu     sync.Mutex
	queues map[types.NamespacedName][]apply.QueueCount
}

func newGauges() *gauges {
	labels := []string{"namespace", "transport", "queue", "role"}
	return &gauges{
		messages:  prometheus.NewDesc("redrive_queue_messages", "Messages in a queue, in any state, when the operator last looked.", labels, nil),
		consumers: prometheus.NewDesc("redrive_queue_consumers", "Consumers of a queue when the operator last looked.", labels, nil),
		queues:    map[types.NamespacedName][]apply.QueueCount{},
	}
}

// register makes a registry collect the gauges. A process that sets up a second manager has the second one's collected.
func (g *gauges) register(registry prometheus.Registerer) error {
	err := registry.Register(g)
	if taken, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		registry.Unregister(taken.ExistingCollector)
		err = registry.Register(g)
	}
	if err != nil {
		return fmt.Errorf("register the metrics: %w", err)
	}
	return nil
}

func (g *gauges) set(name types.NamespacedName, queues []apply.QueueCount) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.queues[name] = queues
}

func (g *gauges) forget(name types.NamespacedName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.queues, name)
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(descs chan<- *prometheus.Desc) {
	descs <- g.messages
	descs <- g.consumers
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(metrics chan<- prometheus.Metric) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, queues := range g.queues {
		for _, queue := range queues {
			labels := []string{name.Namespace, name.Name, queue.Name, string(queue.Role)}
			if queue.Messages != nil {
				metrics <- prometheus.MustNewConstMetric(g.messages, prometheus.GaugeValue, float64(*queue.Messages), labels...)
			}
			metrics <- prometheus.MustNewConstMetric(g.consumers, prometheus.GaugeValue, float64(queue.Consumers), labels...)
		}
	}
}
