package controllers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
)

func TestHolding_NamesTheQueuesThatTheStatusTellsOf(t *testing.T) {
	retiring := []v1alpha1.Retirement{{Queue: "a", Messages: ptr.To[int64](100)}, {Queue: "b", Messages: ptr.To[int64](0)}, {Queue: "c"}}
	seen := []apply.Blocked{{Queue: "a", Messages: 97}, {Queue: "b", Messages: 2}}
	if got := status.Listed(holding(retiring, seen), apply.Blocked.String); got != "a (100)" {
		t.Errorf("got %s", got)
	}
	if got := status.Listed(holding(retiring[1:], seen), apply.Blocked.String); got != "a (97); b (2)" {
		t.Errorf("got %s", got)
	}
}

func TestWarn_PutsTheWorstFirstAndGivesItsReason(t *testing.T) {
	finding := func(reason, name string) topology.Finding {
		return topology.Finding{Object: topology.Ref{Kind: topology.KindQueue, Name: name}, Reason: reason, Message: "m"}
	}
	transport := &v1alpha1.Transport{}
	run := &transportRun{transport: transport, status: outcome.OfTransport(transport, nil, events.NewFakeRecorder(1)), warnings: []string{"delays"}}
	findings := []topology.Finding{
		finding("", "plain"), finding(v1alpha1.ReasonForeignBinding, "bound"), finding(v1alpha1.ReasonPolicyOverridden, "overridden"),
		finding(v1alpha1.ReasonLaneStalled, "stalled"), finding(v1alpha1.ReasonConflictingBrokerPolicy, "harmed"), finding(v1alpha1.ReasonMessagesQuarantined, "quarantine"),
		finding(v1alpha1.ReasonRetryBudgetExhausted, "exhausted"), finding(v1alpha1.ReasonCircuitOpen, "open"), finding(v1alpha1.ReasonQueueBlocked, "blocked"),
	}
	for i := range 12 {
		findings = append(findings, finding(v1alpha1.ReasonDestinationFull, fmt.Sprintf("full-%02d", i)))
	}
	run.warn(findings)
	run.status.Summarise(nil, run.warningTexts())
	warning := transport.Status.Conditions[1]
	if warning.Type != v1alpha1.DegradedCondition || warning.Reason != v1alpha1.ReasonLaneStalled {
		t.Errorf("got %s %s", warning.Type, warning.Reason)
	}
	position := -1
	for _, part := range []string{
		"queue stalled", "queue full-00", "queue full-09", "queue blocked", "queue harmed",
		"queue open", "queue exhausted", "queue quarantine", "queue overridden", "queue bound", "queue plain", "and 2 more", "delays",
	} {
		at := strings.Index(warning.Message, part)
		if at <= position {
			t.Errorf("%q is at %d of %q", part, at, warning.Message)
		}
		position = at
	}
	if strings.Contains(warning.Message, "full-10") {
		t.Errorf("all of one reason are named: %q", warning.Message)
	}
}

func TestPodText_NamesPodsThatAreStillThere(t *testing.T) {
	transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Name: "async"}}
	made := func(kind, by string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: by, Controller: new(true)}}
	}
	end := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	tests := map[string]struct {
		pod  metav1.ObjectMeta
		want string
	}{
		"of a worker":             {metav1.ObjectMeta{Name: "p", OwnerReferences: made("ReplicaSet", "async-default-1a2b3-xyz")}, "pod p"},
		"of a worker, at its end": {metav1.ObjectMeta{Name: "p", OwnerReferences: made("ReplicaSet", "async-default-1a2b3-xyz"), DeletionTimestamp: &end}, "pod p, which has until 2026-01-02T03:04:05Z to end"},
		"made by hand":            {metav1.ObjectMeta{Name: "p"}, "pod p, which is no worker's (it belongs to nobody): delete it, or take its label redrive.dev/transport away"},
		"of something else":       {metav1.ObjectMeta{Name: "p", OwnerReferences: made("Job", "copy")}, "pod p, which is no worker's (it belongs to Job copy): delete it, or take its label redrive.dev/transport away"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := podText(transport, metav1.PartialObjectMetadata{ObjectMeta: tt.pod}); got != tt.want {
				t.Errorf("got %s", got)
			}
		})
	}
}
