package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/opmetrics"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/references"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
)

const (
	// eventBroker tells of every change on the broker but repairs.
	eventBroker = "TopologyUpdated"
	// eventAdopted tells of an object that was there before and is used from now on.
	eventAdopted = "Adopted"
	// eventKept tells of a queue that is not in the spec and stays, since nobody knows whether it was adopted.
	eventKept = "Preserved"
)

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

// warnOfSharing tells of other Transports that have the same exchange: owner marks keep queues apart, and not what is published. Those of
// other namespaces have to be let into the same management API: what a broker says of itself is not to be believed.
func (r *TransportReconciler) warnOfSharing(ctx context.Context, run *transportRun) error {
	t := run.transport
	if t.Spec.Exchange == nil || t.Status.Broker == nil {
		return nil
	}
	sharing, err := references.Sharing(ctx, r.Client, t.Spec.Exchange.Name)
	if err != nil {
		return err
	}
	var others []string
	at, its := r.brokers.Seen(client.ObjectKeyFromObject(t))
	for i := range sharing {
		other := &sharing[i]
		if other.UID == t.UID || other.Status.Broker == nil || !topology.IdentityOf(*other.Status.Broker).Is(topology.IdentityOf(*t.Status.Broker)) {
			continue
		}
		name := client.ObjectKeyFromObject(other)
		if where, theirs := r.brokers.Seen(name); other.Namespace == t.Namespace || where == at && theirs == its {
			others = append(others, name.String())
		}
	}
	if len(others) > 0 {
		slices.Sort(others)
		run.warnings = append(run.warnings, fmt.Sprintf(
			"other Transports use exchange %s too: their queues get what they bind, and one of them decides where "+
				"messages go that no queue takes: %s; give each an exchange of its own, or each team a vhost", t.Spec.Exchange.Name, status.Joined(others)))
	}
	return nil
}

// countConditions puts into the metrics how a Transport stands at the end of a reconcile.
func (r *TransportReconciler) countConditions(run *transportRun) {
	state := opmetrics.StateOf(run.transport.Status.Conditions, run.live.ConfigMaps, run.warningReasons())
	r.conditions.Set(client.ObjectKeyFromObject(run.transport), state)
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

// reportAdoption tells once of each object that is adopted, with what is in it and who else consumes it, and of those that are kept as if
// they had been.
func reportAdoption(run *transportRun) {
	if len(run.report.Spared) > 0 {
		run.status.EventOnceWritten(corev1.EventTypeWarning, eventKept, status.Listed(run.report.Spared, findingText))
	}
	var texts []string
	for _, ref := range run.report.Adopted {
		if !slices.Contains(run.transport.Status.Adopted, ref) {
			texts = append(texts, adoptionText(ref, run.report.Queues))
		}
	}
	if len(texts) > 0 {
		run.status.EventOnceWritten(corev1.EventTypeNormal, eventAdopted, status.Joined(texts)+": adopted unchanged, and never deleted")
	}
}

func adoptionText(ref string, queues []apply.QueueCount) string {
	kind, name, _ := strings.Cut(ref, "/")
	for _, queue := range queues {
		if kind == string(topology.KindQueue) && queue.Name == name {
			messages := "messages that are not counted yet"
			if queue.Messages != nil {
				messages = status.Counted(*queue.Messages, "message")
			}
			return fmt.Sprintf("adopted queue %s with %s and %s", name, messages, status.Counted(queue.Consumers, "consumer"))
		}
	}
	return fmt.Sprintf("adopted %s %s", kind, name)
}
