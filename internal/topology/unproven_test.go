package topology_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// forged is a queue of somebody else with our mark.
func forged(messages *int64) func(*topology.QueueState) {
	return func(q *topology.QueueState) {
		q.Type, q.Durable, q.Messages = topology.TypeQuorum, true, messages
		q.Arguments = topology.Arguments{"x-queue-type": "quorum", topology.OwnerArgument: owner}
	}
}

// Each of 400 of them got a policy before the spec was looked at, for each of which RabbitMQ looks at all queues of the vhost.
func TestPlan_HasNothingForAnEmptyQueueThatOnlyAMarkSaysIsOurs(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.queue("evil", forged(new(int64(0))))
	if plan := topology.Plan(topology.Diff(desired(t, async()), broker.Observed, nil)); len(plan) != 0 {
		t.Errorf("got %v", lines(plan))
	}
}

// A former failure queue after its policy was lost: with the status the way into it may be gone as well.
func TestPlan_PinsAFormerFailureQueueThatMayHoldMessages(t *testing.T) {
	const pin = "+ policy redrive.async:failure:async.failed"
	renamed := func(tr *v1alpha1.Transport) {
		tr.Spec.Failure = &v1alpha1.Failure{Queue: new("failures")}
		tr.Spec.Queues = append(tr.Spec.Queues, v1alpha1.Queue{Name: "more"})
	}
	for name, c := range map[string]struct {
		messages *int64
		bound    bool
		pinned   bool
	}{
		"it is empty and unbound": {messages: new(int64(0))},
		"it holds some":           {messages: new(int64(1)), pinned: true},
		"nobody has counted them": {pinned: true},
		"it gets some":            {messages: new(int64(0)), bound: true, pinned: true},
	} {
		t.Run(name, func(t *testing.T) {
			broker := emptyBroker()
			broker.converge(desired(t, async()))
			broker.queue("async.failed", func(q *topology.QueueState) { q.Messages = c.messages })
			delete(broker.Policies, "redrive.async:failure:async.failed")
			if !c.bound {
				broker.Bindings = slices.DeleteFunc(broker.Bindings, func(b topology.Binding) bool { return b.Destination == "async.failed" })
			}
			plan := topology.Plan(topology.Diff(desired(t, async(renamed)), broker.Observed, nil))
			if at := position(plan, pin); at >= 0 != c.pinned {
				t.Errorf("want pinned %v, got %v", c.pinned, lines(plan))
			}
		})
	}
	t.Run("its policy is there", func(t *testing.T) {
		broker := emptyBroker()
		broker.converge(desired(t, async()))
		broker.queue("async.failed", func(q *topology.QueueState) { q.Messages = new(int64(0)) })
		broker.converge(desired(t, async(renamed)))
		broker.converge(desired(t, async(renamed)))
		if _, stays := broker.Policies["redrive.async:failure:async.failed"]; !stays {
			t.Error("it goes before the queue")
		}
	})
}

// What concerns them came before what the spec asks for.
func TestPlan_TakesWhatOnlyAMarkSaysIsOursLast(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.queue("evil", forged(new(int64(1))))
	broker.queue("theirs", func(q *topology.QueueState) { q.Type = topology.TypeClassic })
	broker.Bindings = append(broker.Bindings, topology.Binding{
		Source: "amq.direct", Destination: "theirs", RoutingKey: "x", Arguments: topology.Arguments{topology.OwnerArgument: owner}, PropertiesKey: "x",
	})
	broker.Policies["redrive.async:failure:gone"] = topology.Policy{Name: "redrive.async:failure:gone", Pattern: "^gone$", ApplyTo: "queues"}
	more := func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].BindingKeys = []string{"another"} }
	plan := topology.Plan(topology.Diff(desired(t, async(more)), broker.Observed, nil))
	first, rest := topology.Making(plan, "async")
	var proven, unproven []string
	for _, step := range slices.Concat(first, rest) {
		if step.IsUnproven() {
			unproven = append(unproven, strings.Fields(step.String())[2])
		} else if proven = append(proven, step.String()); len(unproven) > 0 {
			t.Errorf("%s comes after one that is unproven", step)
		}
	}
	if want := []string{"redrive.async:failure:evil", "amq.direct", "redrive.async:failure:gone"}; !slices.Equal(unproven, want) {
		t.Errorf("unproven are %v, want %v", unproven, want)
	}
	if want := []string{`+ binding async -> test "another"`, `- binding async -> test "test"`}; !slices.Equal(proven, want) {
		t.Errorf("proven are %v, want %v", proven, want)
	}
}

func TestDiff_TakesNoQueueOfOursForUnproven(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	for i := range 3 {
		broker.queue(fmt.Sprint("evil", i), forged(new(int64(0))))
	}
	left := async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues = tr.Spec.Queues[:1]
		tr.Spec.Failure = &v1alpha1.Failure{Queue: new("failures")}
	})
	objects := desired(t, left)
	objects.Queues = slices.DeleteFunc(objects.Queues, func(q topology.Queue) bool { return q.Name == "async.fallback.5s" })
	d := topology.DiffSince(objects, broker.Observed, topology.Past{Retiring: []string{"gone"}})
	unproven := map[string]bool{"gone": true, "evil0": true, "evil1": true, "evil2": true}
	for _, queue := range d.ExtraQueues {
		if d.Unproven[queue.Name] != unproven[queue.Name] {
			t.Errorf("%s is unproven: %v", queue.Name, d.Unproven[queue.Name])
		}
	}
	if len(d.Unproven) != len(unproven) || len(d.ExtraQueues) < 6 {
		t.Errorf("unproven are %v of %d", d.Unproven, len(d.ExtraQueues))
	}
}

// What others had bound to a queue of their own with our marks was led into the work queue that it named.
func TestStandinFor_BelievesNoQueueOfAnotherName(t *testing.T) {
	arguments := topology.Arguments{"redrive-migration-of": "test"}
	if work := topology.StandinFor(topology.Queue{Name: "test.migrating", Arguments: arguments}); work != "test" {
		t.Errorf("test.migrating stands in for %q", work)
	}
	if work := topology.StandinFor(topology.Queue{Name: "evil", Arguments: arguments}); work != "" {
		t.Errorf("evil stands in for %q", work)
	}
}
