package controllers

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/topology"
)

func TestTheTextNamesTheQueuesThatTheStatusTellsOf(t *testing.T) {
	retiring := []v1alpha1.Retirement{{Queue: "a", Messages: ptr.To[int64](100)}, {Queue: "b", Messages: ptr.To[int64](0)}, {Queue: "c"}}
	seen := []apply.Blocked{{Queue: "a", Messages: 97}, {Queue: "b", Messages: 2}}
	if got := listed(holding(retiring, seen), blockedText); got != "a (100)" {
		t.Errorf("got %s", got)
	}
	if got := listed(holding(retiring[1:], seen), blockedText); got != "a (97); b (2)" {
		t.Errorf("got %s", got)
	}
}

func TestWhatMayPassIsToldOnceItStays(t *testing.T) {
	d, transport, now := newDrift(), types.NamespacedName{Name: "async"}, time.Now()
	lane := topology.Finding{Object: topology.Ref{Kind: topology.KindQueue, Name: "lane"}, Passing: true}
	lasting := topology.Finding{Object: topology.Ref{Kind: topology.KindQueue, Name: "other"}}
	for i, look := range []struct {
		after time.Duration
		seen  []topology.Finding
		want  int
	}{
		{0, []topology.Finding{lane, lasting}, 1},
		{29 * time.Second, []topology.Finding{lane, lasting}, 1},
		{30 * time.Second, []topology.Finding{lane, lasting}, 2},
		{40 * time.Second, []topology.Finding{lasting}, 1},
		{50 * time.Second, []topology.Finding{lane}, 0},
		{90 * time.Second, []topology.Finding{lane}, 1},
	} {
		if got := d.staying(transport, look.seen, now.Add(look.after)); len(got) != look.want {
			t.Errorf("look %d: %v", i, got)
		}
	}
	d.forget(transport)
	if got := d.staying(transport, []topology.Finding{lane}, now.Add(2*time.Minute)); len(got) != 0 {
		t.Errorf("a new Transport of that name: %v", got)
	}
}

// A server may list other queues at each look.
func TestTheCountsOfQueuesThatAreNotWantedAreForgotten(t *testing.T) {
	d, transport := newDrift(), types.NamespacedName{Name: "async"}
	wanted := []topology.Queue{{Name: "work"}}
	count := func(name string) apply.QueueCount { return apply.QueueCount{Name: name, Messages: ptr.To[int64](7)} }
	d.see(transport, []apply.QueueCount{count("work")}, wanted)
	for i := range 1000 {
		d.see(transport, []apply.QueueCount{count(fmt.Sprint("forged-", i))}, wanted)
	}
	if kept := d.messages[transport]; len(kept) != 1 {
		t.Errorf("%d counts are kept, want that of one queue", len(kept))
	}
	if told := d.lost(transport, "work"); told != "work (7 when last seen)" {
		t.Errorf("of the queue that is gone it tells %s", told)
	}
}

func TestWhatIsRememberedOfPassingFindingsIsBounded(t *testing.T) {
	d, transport, now := newDrift(), types.NamespacedName{Name: "async"}, time.Now()
	var findings []topology.Finding
	for i := range 2 * mostPassing {
		findings = append(findings, topology.Finding{Object: topology.Ref{Kind: topology.KindQueue, Name: strconv.Itoa(i)}, Passing: true})
	}
	d.staying(transport, findings, now)
	if kept := len(d.passing[transport]); kept != mostPassing {
		t.Errorf("%d findings are remembered, want %d", kept, mostPassing)
	}
	if staying := d.staying(transport, findings[:mostPassing], now.Add(stallPatience)); len(staying) != mostPassing {
		t.Errorf("%d findings stay, want %d", len(staying), mostPassing)
	}
}

func TestTheWorstWarningComesFirstAndGivesTheReason(t *testing.T) {
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

func TestARepairTellsFirstWhatIsLost(t *testing.T) {
	var steps []topology.Step
	for i := range 12 {
		steps = append(steps, topology.Step{Action: topology.ActionCreate, Queue: &topology.Queue{Name: fmt.Sprintf("q%02d", i)}})
	}
	steps = append(steps, topology.Step{
		Action: topology.ActionUpdate, Policy: &topology.Policy{Name: "p"}, Fields: []topology.FieldChange{{Field: "message-ttl", From: 1000, To: 2000}},
	})
	want := "deleted with the messages in them: q00 (3 when last seen); created again: queue q00, queue q01, queue q02, queue q03, queue q04, " +
		"queue q05, queue q06, queue q07, queue q08, queue q09, and 2 more; changed back: policy p message-ttl: 1000 -> 2000"
	if got := repairText(steps, []string{"q00 (3 when last seen)"}); got != want {
		t.Errorf("got %s", got)
	}
}

func TestThePodsThatAreStillThereAreNamed(t *testing.T) {
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
