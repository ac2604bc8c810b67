package apply

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// Two operators, of which one decided by the lists that another Transport's look had left, took the last way of a key away.
func TestBeginsToRetire_IsTrueOfAQueueThatIsNotOnItsWayOutYet(t *testing.T) {
	queue := topology.QueueState{Queue: topology.Queue{Name: "orders"}}
	known := []v1alpha1.Retirement{{Queue: "orders", Since: &metav1.Time{}}}
	for name, c := range map[string]struct {
		state      State
		difference topology.Difference
		want       bool
	}{
		"no queue":        {State{}, topology.Difference{}, false},
		"a new one":       {State{}, topology.Difference{ExtraQueues: []topology.QueueState{queue}}, true},
		"one on its way":  {State{Retiring: known}, topology.Difference{ExtraQueues: []topology.QueueState{queue}}, false},
		"one that stayed": {State{Retiring: []v1alpha1.Retirement{{Queue: "orders"}}}, topology.Difference{ExtraQueues: []topology.QueueState{queue}}, true},
		"one that stays":  {State{}, topology.Difference{ExtraQueues: []topology.QueueState{queue}, Deferred: []string{"orders"}}, false},
		"beside an older": {State{Retiring: known}, topology.Difference{ExtraQueues: []topology.QueueState{queue, {}}}, true},
	} {
		if got := c.state.BeginsToRetire(c.difference); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
