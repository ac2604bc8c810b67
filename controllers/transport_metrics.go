package controllers

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/opmetrics"
	"redrive.dev/redrive/internal/workload"
)

// countConditions puts into the metrics how a Transport stands at the end of a reconcile.
func (r *TransportReconciler) countConditions(run *transportRun) {
	now := opmetrics.State{Hashes: map[string]string{}}
	for _, condition := range run.transport.Status.Conditions {
		if condition.Status == metav1.ConditionTrue && condition.Type != v1alpha1.DegradedCondition {
			now.Holds = append(now.Holds, opmetrics.Condition{Type: condition.Type, Reason: condition.Reason})
		}
	}
	for reason := range run.warningReasons() {
		now.Holds = append(now.Holds, opmetrics.Condition{Type: v1alpha1.DegradedCondition, Reason: reason})
	}
	for _, configMap := range run.live.ConfigMaps {
		// What somebody else has written into a ConfigMap is no label of a metric.
		if worker := configMap.Labels[workload.WorkerLabel]; worker != "" && workload.IsPublished(configMap) {
			now.Hashes[worker] = configMap.Annotations[workload.ConfigHashAnnotation]
		}
	}
	r.conditions.Set(client.ObjectKeyFromObject(run.transport), now)
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
