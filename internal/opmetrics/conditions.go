package opmetrics

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/workload"
)

// Conditions are how the Transports stood at the end of their last reconcile. It is a prometheus.Collector, with a series for
// each condition that is true and for each reason of Degraded that holds: as many as there are reasons, whatever their texts say.
type Conditions struct {
	condition, config *prometheus.Desc

	mu  sync.Mutex
	all map[types.NamespacedName]State
}

// State is how a Transport stood at the end of a reconcile.
type State struct {
	// Holds are conditions that are true, each with its reason.
	Holds []Condition
	// Hashes of the configurations that are published, by worker group.
	Hashes map[string]string
}

// Condition is one that is true, with its reason.
type Condition struct{ Type, Reason string }

// StateOf is how a Transport stands with some conditions, with the ConfigMaps of its workers, and with all reasons of its warnings, where the condition
// has only the worst one's.
func StateOf(conditions []metav1.Condition, configMaps map[string]*corev1.ConfigMap, warnings map[string]bool) State {
	now := State{Hashes: map[string]string{}}
	for _, condition := range conditions {
		if condition.Status == metav1.ConditionTrue && condition.Type != v1alpha1.DegradedCondition {
			now.Holds = append(now.Holds, Condition{Type: condition.Type, Reason: condition.Reason})
		}
	}
	for reason := range warnings {
		now.Holds = append(now.Holds, Condition{Type: v1alpha1.DegradedCondition, Reason: reason})
	}
	for _, configMap := range configMaps {
		// What another user has written into a ConfigMap is no label of a metric.
		if worker := configMap.Labels[workload.WorkerLabel]; worker != "" && workload.IsPublished(configMap) {
			now.Hashes[worker] = configMap.Annotations[workload.ConfigHashAnnotation]
		}
	}
	return now
}

// NewConditions returns a collector that knows no Transport yet.
func NewConditions() *Conditions {
	return &Conditions{
		condition: prometheus.NewDesc("redrive_transport_condition",
			"1 for each condition of a Transport that is true, and for each reason of its warnings.",
			[]string{LabelNamespace, LabelTransport, "condition", "reason"}, nil),
		config: prometheus.NewDesc("redrive_published_config_info",
			"1 for the configuration that the operator published last to a worker group, by its hash.",
			[]string{LabelNamespace, LabelTransport, "worker", "hash"}, nil),
		all: map[types.NamespacedName]State{},
	}
}

// Set replaces what is known of a Transport.
func (s *Conditions) Set(name types.NamespacedName, now State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[name] = now
}

// Knows is true for a Transport of which something is known.
func (s *Conditions) Knows(name types.NamespacedName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.all[name]
	return known
}

// Forget drops what is known of a Transport.
func (s *Conditions) Forget(name types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, name)
}

// Describe implements prometheus.Collector.
func (s *Conditions) Describe(descs chan<- *prometheus.Desc) {
	descs <- s.condition
	descs <- s.config
}

// Collect implements prometheus.Collector. It sends without the lock: the registry takes as long as it likes.
func (s *Conditions) Collect(metrics chan<- prometheus.Metric) {
	s.mu.Lock()
	all := maps.Clone(s.all) // nobody changes what see has put there
	s.mu.Unlock()
	for name, now := range all {
		for _, one := range now.Holds {
			metrics <- prometheus.MustNewConstMetric(s.condition, prometheus.GaugeValue, 1,
				name.Namespace, name.Name, one.Type, one.Reason)
		}
		for _, worker := range slices.Sorted(maps.Keys(now.Hashes)) {
			metrics <- prometheus.MustNewConstMetric(s.config, prometheus.GaugeValue, 1,
				name.Namespace, name.Name, worker, now.Hashes[worker])
		}
	}
}
