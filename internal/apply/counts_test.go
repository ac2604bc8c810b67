package apply

import (
	"fmt"
	"slices"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// A queue that was told twice took the metrics of all Transports away.
func TestCounts_HasEachQueueOnce(t *testing.T) {
	queue := func(name string) topology.QueueState { return topology.QueueState{Queue: topology.Queue{Name: name}} }
	p := &Prepared{
		Difference: topology.Difference{Migrations: []topology.Migration{
			{Queue: "a", Standin: "a.migrating"}, {Queue: "b", Standin: "a.migrating", Renames: true}, {Queue: "c", Standin: "b"},
		}},
		input: Input{Desired: topology.Objects{Queues: []topology.Queue{{Name: "a", Role: topology.RoleWork}, {Name: "b", Role: topology.RoleWork}}}},
		observed: topology.Observed{Queues: map[string]topology.QueueState{
			"a": queue("a"), "b": queue("b"), "a.migrating": queue("a.migrating"),
		}},
	}
	if want, got := []string{"a", "b", "a.migrating"}, namesOf(counts(p)); !slices.Equal(got, want) {
		t.Errorf("counted are %v, want %v", got, want)
	}
}

// marked is a queue that calls itself that of the quarantine of a work queue.
func marked(name, work string) topology.QueueState {
	return topology.QueueState{Queue: topology.Queue{Name: name, Arguments: topology.Arguments{"redrive-quarantine-of": work}}}
}

// What is counted is kept until the next look: it must not be as much as a server likes to list.
func TestCounts_HasOnlyKnownQuarantineQueues(t *testing.T) {
	p := &Prepared{
		input: Input{
			Desired: topology.Objects{Queues: []topology.Queue{{Name: "wanted", Role: topology.RoleWork}}},
			State:   State{Retiring: []v1alpha1.Retirement{{Queue: "leaving"}}},
		},
		consumed: []string{"consumed", "z.quarantine"},
		observed: topology.Observed{Queues: map[string]topology.QueueState{}},
	}
	for i := range 1000 {
		p.Difference.ExtraQueues = append(p.Difference.ExtraQueues, marked(fmt.Sprint("forged-", i), "nobodys"))
	}
	for _, work := range []string{"wanted", "leaving", "consumed"} {
		p.Difference.ExtraQueues = append(p.Difference.ExtraQueues, marked(work+".quarantine", work))
	}
	p.Difference.ExtraQueues = append(p.Difference.ExtraQueues, marked("z.quarantine", "z"))
	if want, got := []string{"z.quarantine", "wanted.quarantine", "leaving.quarantine", "consumed.quarantine"}, namesOf(counts(p)); !slices.Equal(got, want) {
		t.Errorf("counted are %v, want %v", got, want)
	}
	for i := range 1000 {
		p.Difference.ExtraQueues = slices.Insert(p.Difference.ExtraQueues, 0, marked(fmt.Sprint("a-", i), "wanted"))
	}
	if got := namesOf(counts(p)); len(got) != mostLeavingQuarantine || !slices.Contains(got, "z.quarantine") {
		t.Errorf("%d are counted, want %d, among them what workers consume: %v", len(got), mostLeavingQuarantine, got)
	}
}

func TestCounts_BoundsTheLanes(t *testing.T) {
	p := &Prepared{observed: topology.Observed{Queues: map[string]topology.QueueState{}}}
	for i := range 1024 {
		lane := topology.Queue{Name: fmt.Sprint("lane-", i), Role: topology.RoleLane}
		p.input.Desired.Queues = append(p.input.Desired.Queues, lane)
		p.observed.Queues[lane.Name] = topology.QueueState{Queue: lane}
	}
	work := topology.Queue{Name: "work", Role: topology.RoleWork}
	p.input.Desired.Queues = append(p.input.Desired.Queues, work)
	p.observed.Queues[work.Name] = topology.QueueState{Queue: work}
	if got := namesOf(counts(p)); len(got) != mostCountedLanes+1 || !slices.Contains(got, "work") {
		t.Errorf("%d are counted, want %d lanes and the work queue", len(got), mostCountedLanes)
	}
}

// A deletion finds its queues by their marks alone, and a server may list any number of them.
func TestDeletion_BoundsWhatItCounts(t *testing.T) {
	r := &removal{}
	for i := range 2000 {
		r.found.Lanes = append(r.found.Lanes, topology.QueueState{Queue: topology.Queue{
			Name: fmt.Sprint("lane-", i), Arguments: topology.Arguments{"x-message-ttl": 1000},
		}})
		r.found.Work = append(r.found.Work, topology.QueueState{Queue: topology.Queue{
			Name: fmt.Sprint("work-", i), Arguments: topology.Arguments{"x-dead-letter-exchange": "async.failed"},
		}})
	}
	r.found.Failure = []topology.QueueState{{Queue: topology.Queue{Name: "async.failed"}}}
	got := namesOf(r.counts())
	if len(got) != mostCounted || !slices.Contains(got, "async.failed") || !slices.Contains(got, "lane-0") || !slices.Contains(got, "work-0") {
		t.Errorf("%d are counted, want %d of all kinds", len(got), mostCounted)
	}
}

func namesOf(counts []QueueCount) (names []string) {
	for _, count := range counts {
		names = append(names, count.Name)
	}
	return names
}
