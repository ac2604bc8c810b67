package drift

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/topology"
)

func TestTracker_TellsWhatMayPassOnceItStays(t *testing.T) {
	d, transport, now := NewTracker(), types.NamespacedName{Name: "async"}, time.Now()
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
		if got := d.Staying(transport, look.seen, now.Add(look.after)); len(got) != look.want {
			t.Errorf("look %d: %v", i, got)
		}
	}
	d.Forget(transport)
	if got := d.Staying(transport, []topology.Finding{lane}, now.Add(2*time.Minute)); len(got) != 0 {
		t.Errorf("a new Transport of that name: %v", got)
	}
}

// A server may list other queues at each look.
func TestTracker_ForgetsTheCountsOfQueuesThatAreNotWanted(t *testing.T) {
	d, transport := NewTracker(), types.NamespacedName{Name: "async"}
	wanted := []topology.Queue{{Name: "work"}}
	count := func(name string) map[string]int64 { return map[string]int64{name: 7} }
	d.See(transport, count("work"), wanted)
	for i := range 1000 {
		d.See(transport, count(fmt.Sprint("forged-", i)), wanted)
	}
	if kept := d.messages[transport]; len(kept) != 1 {
		t.Errorf("%d counts are kept, want that of one queue", len(kept))
	}
	if told := d.lost(transport, "work"); told != "work (7 when last seen)" {
		t.Errorf("of the queue that is gone it tells %s", told)
	}
}

func TestTracker_RemembersABoundedNumberOfFindings(t *testing.T) {
	d, transport, now := NewTracker(), types.NamespacedName{Name: "async"}, time.Now()
	var findings []topology.Finding
	for i := range 2 * mostPassing {
		findings = append(findings, topology.Finding{Object: topology.Ref{Kind: topology.KindQueue, Name: strconv.Itoa(i)}, Passing: true})
	}
	d.Staying(transport, findings, now)
	if kept := len(d.passing[transport]); kept != mostPassing {
		t.Errorf("%d findings are remembered, want %d", kept, mostPassing)
	}
	if staying := d.Staying(transport, findings[:mostPassing], now.Add(stallPatience)); len(staying) != mostPassing {
		t.Errorf("%d findings stay, want %d", len(staying), mostPassing)
	}
}

func TestTracker_TellsFirstWhatIsLost(t *testing.T) {
	var steps []topology.Step
	for i := range 12 {
		steps = append(steps, topology.Step{Action: topology.ActionCreate, Queue: &topology.Queue{Name: fmt.Sprintf("q%02d", i)}})
	}
	steps = append(steps, topology.Step{
		Action: topology.ActionUpdate, Policy: &topology.Policy{Name: "p"}, Fields: []topology.FieldChange{{Field: "message-ttl", From: 1000, To: 2000}},
	})
	want := "deleted with the messages in them: q00 (3 when last seen); created again: queue q00, queue q01, queue q02, queue q03, queue q04, " +
		"queue q05, queue q06, queue q07, queue q08, queue q09, and 2 more; changed back: policy p message-ttl: 1000 -> 2000"
	if got := text(steps, []string{"q00 (3 when last seen)"}); got != want {
		t.Errorf("got %s", got)
	}
}
