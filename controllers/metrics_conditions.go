package controllers

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/workload"
)

// conditionCollector are how the Transports stood at the end of their last reconcile. It is a prometheus.Collector, with a series for
// each condition that is true and for each reason of Degraded that holds: as many as there are reasons, whatever their texts say.
type conditionCollector struct {
	condition, config *prometheus.Desc

	mu  sync.Mutex
	all map[types.NamespacedName]transportState
}

type transportState struct {
	// holds are conditions that are true, each with its reason.
	holds []activeCondition
	// hashes of the configurations that are published, by worker group.
	hashes map[string]string
}

type activeCondition struct{ condition, reason string }

func newConditionCollector() *conditionCollector {
	return &conditionCollector{
		condition: prometheus.NewDesc("redrive_transport_condition",
			"1 for each condition of a Transport that is true, and for each reason of its warnings.",
			[]string{labelNamespace, labelTransport, "condition", "reason"}, nil),
		config: prometheus.NewDesc("redrive_published_config_info",
			"1 for the configuration that the operator published last to a worker group, by its hash.",
			[]string{labelNamespace, labelTransport, "worker", "hash"}, nil),
		all: map[types.NamespacedName]transportState{},
	}
}

// record takes over what a reconcile found.
func (s *conditionCollector) record(run *transportRun) {
	now := transportState{hashes: map[string]string{}}
	for _, condition := range run.transport.Status.Conditions {
		if condition.Status == metav1.ConditionTrue && condition.Type != v1alpha1.DegradedCondition {
			now.holds = append(now.holds, activeCondition{condition.Type, condition.Reason})
		}
	}
	for reason := range run.warningReasons() {
		now.holds = append(now.holds, activeCondition{v1alpha1.DegradedCondition, reason})
	}
	for _, configMap := range run.live.configMaps {
		// What somebody else has written into a ConfigMap is no label of a metric.
		if worker := configMap.Labels[workload.WorkerLabel]; worker != "" && isPublished(configMap) {
			now.hashes[worker] = configMap.Annotations[workload.ConfigHashAnnotation]
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[client.ObjectKeyFromObject(run.transport)] = now
}

// begin takes over what is known of a Transport that had no look yet.
func (s *conditionCollector) begin(run *transportRun) {
	s.mu.Lock()
	_, known := s.all[client.ObjectKeyFromObject(run.transport)]
	s.mu.Unlock()
	if !known {
		s.record(run)
	}
}

// warningReasons are all of them, where the condition has only the worst one's.
func (run *transportRun) warningReasons() map[string]bool {
	reasons := map[string]bool{}
	for _, finding := range run.findings {
		reasons[cmp.Or(finding.Reason, v1alpha1.ReasonOther)] = true
	}
	if len(run.warnings) > 0 {
		reasons[v1alpha1.ReasonOther] = true
	}
	return reasons
}

func (s *conditionCollector) forget(name types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, name)
}

// Describe implements prometheus.Collector.
func (s *conditionCollector) Describe(descs chan<- *prometheus.Desc) {
	descs <- s.condition
	descs <- s.config
}

// Collect implements prometheus.Collector. It sends without the lock: the registry takes as long as it likes.
func (s *conditionCollector) Collect(metrics chan<- prometheus.Metric) {
	s.mu.Lock()
	all := maps.Clone(s.all) // nobody changes what see has put there
	s.mu.Unlock()
	for name, now := range all {
		for _, one := range now.holds {
			metrics <- prometheus.MustNewConstMetric(s.condition, prometheus.GaugeValue, 1,
				name.Namespace, name.Name, one.condition, one.reason)
		}
		for _, worker := range slices.Sorted(maps.Keys(now.hashes)) {
			metrics <- prometheus.MustNewConstMetric(s.config, prometheus.GaugeValue, 1,
				name.Namespace, name.Name, worker, now.hashes[worker])
		}
	}
}
