// Package status says in one report how a Transport is: what the operator wrote into its status, and what its queues and
// lanes hold, as the broker counts it. It is pure: it reads no clock and speaks to nobody.
package status

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

// reasonOutdated stands for the operator's own reasons while it has not seen the latest change.
const reasonOutdated = "NotObserved"

// Report is what there is to say about one Transport.
type Report struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Ready is true where the spec as it is now is in force.
	Ready   bool   `json:"ready"`
	Reason  string `json:"reason"`
	Message string `json:"message,omitempty"`
	// Deleting is true on the way out.
	Deleting bool `json:"deleting,omitempty"`
	// Conditions besides Ready, which are there only while they call for attention.
	Conditions []Condition `json:"conditions,omitempty"`
	// Broker on which the objects stand; nil before any were made.
	Broker *topology.Identity `json:"broker,omitempty"`
	// Workers are the ready and the wanted pods, such as "5/5"; empty where there are none.
	Workers string `json:"workers,omitempty"`
	// Pipelines are the stages that each message goes through, by worker group.
	Pipelines []v1alpha1.WorkerPipeline `json:"pipelines,omitempty"`
	// Failed messages in the failure queue: counted where the broker was read, else roughly, as the status has them.
	Failed *int64 `json:"failed,omitempty"`
	// Queues are the work queues, their quarantine queues, the lanes, the queues on their way out and the failure queue, with
	// the broker's counts.
	Queues []Queue `json:"queues,omitempty"`
	// NotRead says why the broker was not read; empty where it was.
	NotRead string `json:"notRead,omitempty"`
	// Adopted are the objects that existed before, such as "queue/test".
	Adopted []string `json:"adopted,omitempty"`
	// Retiring are the queues on their way out.
	Retiring []string `json:"retiring,omitempty"`
}

// Condition is one that calls for attention.
type Condition struct {
	Type     string      `json:"type"`
	Reason   string      `json:"reason"`
	Message  string      `json:"message,omitempty"`
	Since    metav1.Time `json:"since"`
	WhatToDo string      `json:"whatToDo,omitempty"`
}

// FromStatus reports what the Transport itself tells. notRead says why there is no more.
func FromStatus(t *v1alpha1.Transport, notRead string) Report {
	report := Report{
		Namespace: t.Namespace, Name: t.Name, Deleting: !t.DeletionTimestamp.IsZero(),
		Workers: t.Status.Workers, Pipelines: t.Status.Pipelines, Failed: t.Status.Failed, NotRead: notRead, Adopted: slices.Clone(t.Status.Adopted),
	}
	if t.Status.Broker != nil {
		identity := topology.IdentityOf(*t.Status.Broker)
		report.Broker = &identity
	}
	for _, retirement := range t.Status.Retiring {
		report.Retiring = append(report.Retiring, retirement.Queue)
	}
	report.judge(t)
	return report
}

// FromBroker adds what the broker says to what the Transport itself tells.
func FromBroker(t *v1alpha1.Transport, observed topology.Observed) Report {
	report := FromStatus(t, "")
	report.Broker = &observed.Identity
	report.Queues = queues(t, observed)
	report.Failed = nil
	if failure, exists := observed.Queues[compile.NamesOf(t).FailureQueue()]; exists {
		report.Failed = failure.Messages
	}
	return report
}

// Elsewhere is true where the objects stand on another broker or vhost than the one that was read. Its counts would be
// of something else.
func Elsewhere(t *v1alpha1.Transport, read topology.Observed) bool {
	return t.Status.Broker != nil && !read.StandsOn(*t.Status.Broker)
}

// judge reads the conditions.
func (r *Report) judge(t *v1alpha1.Transport) {
	ready := meta.FindStatusCondition(t.Status.Conditions, v1alpha1.ReadyCondition)
	current := ready != nil && t.Status.ObservedGeneration == t.Generation
	switch {
	case current:
		r.Reason, r.Message = ready.Reason, ready.Message
		r.Ready = ready.Status == metav1.ConditionTrue && !r.Deleting
	case ready == nil:
		r.Reason, r.Message = reasonOutdated, "the operator has not looked at this Transport yet; if that stays, see whether it runs"
	default:
		r.Reason = reasonOutdated
		r.Message = "the operator has not looked at the latest change yet; what follows is from before it"
	}
	for _, condition := range t.Status.Conditions {
		if condition.Type == v1alpha1.ReadyCondition || condition.Status != metav1.ConditionTrue {
			continue
		}
		r.Conditions = append(r.Conditions, Condition{
			Type: condition.Type, Reason: condition.Reason, Message: condition.Message,
			Since: condition.LastTransitionTime, WhatToDo: WhatToDo(condition.Reason),
		})
	}
}

// queues puts the work queues first, in the order of the spec, then their quarantine queues, then the lanes by their delay,
// then what is on its way out, then the failure queue, and the staging queues of replays last.
func queues(t *v1alpha1.Transport, observed topology.Observed) []Queue {
	names := compile.NamesOf(t)
	retiring := map[string]*v1alpha1.Retirement{}
	for i := range t.Status.Retiring {
		retiring[t.Status.Retiring[i].Queue] = &t.Status.Retiring[i]
	}
	rows := make([]Queue, 0, 2*len(t.Spec.Queues)+len(t.Status.Lanes)+len(retiring)+1)
	listed := map[string]bool{}
	add := func(role topology.Role, name string) {
		if _, exists := observed.Queues[name]; !exists && !t.DeletionTimestamp.IsZero() {
			return // as it should be
		}
		if !listed[name] {
			listed[name] = true
			row := row(role, name, observed)
			row.note(retiring[name], slices.Contains(t.Status.Adopted, topology.Ref{Kind: topology.KindQueue, Name: name}.String()))
			rows = append(rows, row)
		}
	}
	for i := range t.Spec.Queues {
		add(topology.RoleWork, t.Spec.Queues[i].Name)
	}
	for i := range t.Spec.Queues {
		if queue := &t.Spec.Queues[i]; !compile.IsStrict(queue) {
			add(topology.RoleQuarantine, names.Quarantine(queue.Name))
		}
	}
	for _, lane := range lanes(t, names, observed) {
		add(topology.RoleLane, lane)
	}
	for _, retirement := range t.Status.Retiring {
		if queue, exists := observed.Queues[retirement.Queue]; exists && retirement.Queue != names.FailureQueue() {
			add(topology.RoleOf(queue.Queue), retirement.Queue)
		}
	}
	add(topology.RoleFailure, names.FailureQueue())
	for _, id := range topology.ReplaysIn(observed, names) {
		if _, exists := observed.Queues[names.Staging(id)]; exists {
			add(topology.RoleReplay, names.Staging(id))
		}
	}
	return rows
}

// lanes are those that the status names and those that are on the broker, by their delay.
func lanes(t *v1alpha1.Transport, names compile.Names, observed topology.Observed) []string {
	found := make([]string, 0, len(t.Status.Lanes))
	for _, lane := range t.Status.Lanes {
		found = append(found, names.LanePrefix()+lane)
	}
	for name, queue := range observed.Queues {
		if strings.HasPrefix(name, names.LanePrefix()) && topology.RoleOf(queue.Queue) == topology.RoleLane {
			found = append(found, name)
		}
	}
	delay := func(name string) time.Duration {
		parsed, err := retry.ParseLaneKey(strings.TrimSuffix(strings.TrimPrefix(name, names.LanePrefix()), retry.HighSuffix))
		if err != nil {
			return 1<<63 - 1 // not of our making: last
		}
		return parsed
	}
	slices.SortFunc(found, func(a, b string) int {
		return cmp.Or(cmp.Compare(delay(a), delay(b)), cmp.Compare(a, b))
	})
	return slices.Compact(found)
}
