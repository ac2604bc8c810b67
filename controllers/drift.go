package controllers

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/topology"
)

const (
	// eventBroker tells of every change on the broker but repairs.
	eventBroker = "TopologyUpdated"

	// stallPatience is how long a lane must have shown expired messages until it counts as stalled: where many expire at
	// once it takes the broker some seconds to move them.
	stallPatience = 30 * time.Second
	// mostPassing is how many findings that may pass are remembered of a Transport; the others begin when there is room.
	mostPassing = 512
)

// drift counts repairs, and remembers of each Transport what a single look does not show. It is safe for concurrent use.
type drift struct {
	repairs *prometheus.CounterVec

	mu sync.Mutex
	// messages are the counts of the queues that are wanted, when they were last there.
	messages map[types.NamespacedName]map[string]int64
	// passing is since when a finding holds that may pass.
	passing map[types.NamespacedName]map[topology.Ref]time.Time
}

func newDrift() *drift {
	return &drift{
		repairs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "redrive_drift_repairs_total",
			Help: "Objects on the broker that were deleted or changed by others and that the operator restored.",
		}, []string{"namespace", "transport", "kind", "action"}),
		messages: map[types.NamespacedName]map[string]int64{},
		passing:  map[types.NamespacedName]map[topology.Ref]time.Time{},
	}
}

func (d *drift) forget(name types.NamespacedName) {
	d.repairs.DeletePartialMatch(prometheus.Labels{"namespace": name.Namespace, "transport": name.Name})
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.messages, name)
	delete(d.passing, name)
}

// see remembers how many messages were in each queue that is wanted. Of one that is gone the last count stays until it is back; those of all
// others are forgotten, or a broker that lists other queues at each look would fill the memory.
func (d *drift) see(name types.NamespacedName, queues []apply.QueueCount, wanted []topology.Queue) {
	counts := messageCountsOf(queues)
	d.mu.Lock()
	defer d.mu.Unlock()
	before, seen := d.messages[name], map[string]int64{}
	for _, queue := range wanted {
		if count, known := before[queue.Name]; known {
			seen[queue.Name] = count
		}
		if count, known := counts[queue.Name]; known {
			seen[queue.Name] = count
		}
	}
	d.messages[name] = seen
}

// lost tells of the messages that were in a queue when somebody deleted it, and forgets them.
func (d *drift) lost(name types.NamespacedName, queue string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	count, known := d.messages[name][queue]
	delete(d.messages[name], queue)
	switch {
	case !known:
		return queue + " (number not known)"
	case count == 0:
		return queue + " (none when last seen)"
	default:
		return fmt.Sprintf("%s (%d when last seen)", queue, count)
	}
}

// staying is findings without those that may pass and do not hold for long enough yet.
func (d *drift) staying(name types.NamespacedName, findings []topology.Finding, now time.Time) []topology.Finding {
	d.mu.Lock()
	defer d.mu.Unlock()
	before, since := d.passing[name], map[topology.Ref]time.Time{}
	var staying []topology.Finding
	for _, finding := range findings {
		if finding.Passing {
			if len(since) == mostPassing {
				continue
			}
			first, known := before[finding.Object]
			if !known {
				first = now
			}
			since[finding.Object] = first
			if now.Sub(first) < stallPatience {
				continue
			}
		}
		staying = append(staying, finding)
	}
	d.passing[name] = since
	return staying
}

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
	var lost []string
	for _, step := range repairs {
		r.drift.repairs.WithLabelValues(name.Namespace, name.Name, string(step.Ref().Kind), string(step.Action)).Inc()
		if step.Queue != nil {
			lost = append(lost, r.drift.lost(name, step.Queue.Name))
		}
	}
	note := repairText(repairs, lost)
	first := repairs[0].Ref()
	run.status.EventOnBroker(string(first.Kind), first.Name, outcome.EventRepaired, note)
	// Events of the same cause within minutes are put together, and only the first text stays.
	ctrl.LoggerFrom(ctx).Info("restored objects on the broker that others had changed", "note", note)
}

// repairText puts what cannot be put right first.
func repairText(repairs []topology.Step, lost []string) string {
	var parts, created, changed []string
	for _, step := range repairs {
		switch step.Action {
		case topology.ActionUpdate:
			fields := make([]string, len(step.Fields))
			for i, field := range step.Fields {
				fields[i] = field.String()
			}
			changed = append(changed, fmt.Sprintf("%s %s %s", step.Ref().Kind, step.Ref().Name, strings.Join(fields, ", ")))
		default:
			created = append(created, fmt.Sprintf("%s %s", step.Ref().Kind, step.Ref().Name))
		}
	}
	if len(lost) > 0 {
		parts = append(parts, "deleted with the messages in them: "+joinedBy(", ", lost))
	}
	if len(created) > 0 {
		parts = append(parts, "created again: "+joinedBy(", ", created))
	}
	if len(changed) > 0 {
		parts = append(parts, "changed back: "+joinedBy(", ", changed))
	}
	return strings.Join(parts, "; ")
}

// severity orders the reasons of Degraded, the worst first.
func severity(reason string) int {
	order := []string{
		v1alpha1.ReasonSecretNotFound, v1alpha1.ReasonLaneStalled, v1alpha1.ReasonDestinationFull, v1alpha1.ReasonQueueBlocked,
		v1alpha1.ReasonQueueUnavailable, v1alpha1.ReasonPublishFailing, v1alpha1.ReasonConflictingBrokerPolicy, v1alpha1.ReasonHandlerNotReady,
		v1alpha1.ReasonCircuitOpen, v1alpha1.ReasonRetryBudgetExhausted,
		v1alpha1.ReasonMessagesQuarantined, v1alpha1.ReasonPolicyOverridden, v1alpha1.ReasonForeignBinding,
	}
	if i := slices.Index(order, reason); i >= 0 {
		return i
	}
	return len(order)
}

// warn adds findings to what is told.
func (run *transportRun) warn(findings []topology.Finding) {
	run.findings = append(run.findings, findings...)
}

// warningTexts is the texts of the warnings: of the findings the worst first and a bounded number for each reason, then the others.
// The worst one's reason is that of the condition.
func (run *transportRun) warningTexts() []string {
	ordered := slices.Clone(run.findings)
	slices.SortStableFunc(ordered, func(a, b topology.Finding) int { return cmp.Compare(severity(a.Reason), severity(b.Reason)) })
	if len(ordered) > 0 {
		run.status.Warning = ordered[0].Reason
	}
	var texts []string
	ofReason := map[string]int{}
	for _, finding := range ordered {
		if ofReason[finding.Reason]++; ofReason[finding.Reason] <= maxListed {
			texts = append(texts, finding.String())
		}
	}
	if more := len(ordered) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return append(texts, run.warnings...)
}
