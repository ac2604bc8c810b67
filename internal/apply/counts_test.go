package apply

import (
	"slices"
	"testing"

	"redrive.dev/redrive/internal/topology"
)

// A queue that was told twice took the metrics of all Transports away.
func TestAQueueIsCountedOnceWhateverItIsBesides(t *testing.T) {
	queue := func(name string) topology.QueueState { return topology.QueueState{Queue: topology.Queue{Name: name}} }
	p := &Prepared{
		Difference: topology.Difference{Migrations: []topology.Migration{
			{Queue: "a", Standin: "a.standin"}, {Queue: "b", Standin: "a.standin", Renames: true}, {Queue: "c", Standin: "b"},
		}},
		input: Input{Desired: topology.Objects{Queues: []topology.Queue{{Name: "a", Role: topology.RoleWork}, {Name: "b", Role: topology.RoleWork}}}},
		observed: topology.Observed{Queues: map[string]topology.QueueState{
			"a": queue("a"), "b": queue("b"), "a.standin": queue("a.standin"),
		}},
	}
	var names []string
	for _, count := range counts(p) {
		names = append(names, count.Name)
	}
	if want := []string{"a", "b", "a.standin"}; !slices.Equal(names, want) {
		t.Errorf("counted are %v, want %v", names, want)
	}
}
