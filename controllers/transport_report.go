package controllers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
)

// eventBroker tells of every change on the broker but repairs.
const eventBroker = "TopologyUpdated"

// reportSteps tells of what was done on the broker. What was made or changed while nothing else was wanted than had been
// made before is the repair of what somebody else did.
func (r *TransportReconciler) reportSteps(ctx context.Context, run *transportRun, unchanged bool) {
	name := client.ObjectKeyFromObject(run.transport)
	if len(run.report.Touched) > 0 {
		ctrl.LoggerFrom(ctx).Info("expired messages do not leave queues: changed the priority of their RabbitMQ policy, so that RabbitMQ sends them",
			"queues", run.report.Touched)
	}
	var repairs []topology.Step
	others := run.report.Steps
	if unchanged {
		repairs, others = topology.Repairs(others)
	}
	if len(others) > 0 {
		run.status.Event(corev1.EventTypeNormal, eventBroker, stepsText(others))
	}
	if len(repairs) == 0 {
		return
	}
	note := r.drift.Count(name, repairs)
	first := repairs[0].Ref()
	run.status.EventOnBroker(string(first.Kind), first.Name, outcome.EventRepaired, note)
	// Events of the same cause within minutes are put together, and only the first text stays.
	ctrl.LoggerFrom(ctx).Info("restored objects on the broker that others had changed", "note", note)
}

// warn adds findings to what is told.
func (run *transportRun) warn(findings []topology.Finding) {
	run.findings = append(run.findings, findings...)
}

// warningTexts is the texts of the warnings: of the findings the worst first, then the others. The worst one's reason is that of the condition.
func (run *transportRun) warningTexts() []string {
	texts, worst := status.Warnings(run.findings)
	if worst != "" {
		run.status.Warning = worst
	}
	return append(texts, run.warnings...)
}
