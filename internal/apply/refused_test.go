package apply_test

import (
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

func TestReport_KeepsTheWorkersWhereTheyMayRelyOnWhatWasRefused(t *testing.T) {
	t.Parallel()
	queue := func(action topology.Action, name string) topology.Step {
		return topology.Step{Action: action, Queue: &topology.Queue{Name: name}}
	}
	binding := func(action topology.Action, destination string) topology.Step {
		return topology.Step{Action: action, Binding: &topology.Binding{Source: "x", Destination: destination}}
	}
	for name, c := range map[string]struct {
		refused topology.Step
		skipped []topology.Step
		keeps   bool
	}{
		"a queue is not made":        {refused: queue(topology.ActionCreate, "a"), keeps: true},
		"a policy is not changed":    {refused: topology.Step{Action: topology.ActionUpdate, Policy: &topology.Policy{Name: "p"}}, keeps: true},
		"a queue is not deleted":     {refused: queue(topology.ActionDelete, "a")},
		"an exchange is not deleted": {refused: topology.Step{Action: topology.ActionDelete, Exchange: &topology.Exchange{Name: "e"}}},
		"a binding is not removed":   {refused: binding(topology.ActionDelete, "a")},
		"a binding is not removed, nor another": {
			refused: binding(topology.ActionDelete, "a"), skipped: []topology.Step{binding(topology.ActionDelete, "b")},
		},
		"a binding is not removed, nor another made": {
			refused: binding(topology.ActionDelete, "a"), skipped: []topology.Step{binding(topology.ActionCreate, "b")}, keeps: true,
		},
		"a binding of a migrated queue stays":              {refused: binding(topology.ActionDelete, "moves"), keeps: true},
		"a binding of a stand-in stays":                    {refused: binding(topology.ActionDelete, "moves.standin"), keeps: true},
		"a migrated queue that was emptied is still there": {refused: queue(topology.ActionDelete, "moves"), keeps: true},
	} {
		report := apply.Report{
			Failures: []apply.Failure{{Step: c.refused, Err: broker.ErrForbidden}}, Skipped: c.skipped,
			Migrations: []v1alpha1.Migration{{Queue: "moves", Standin: "moves.standin"}},
		}
		if keeps := report.KeepsWorkers(); keeps != c.keeps {
			t.Errorf("%s: %t", name, keeps)
		}
	}
	if (apply.Report{}).KeepsWorkers() {
		t.Error("nothing was refused")
	}
}
