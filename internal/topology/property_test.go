package topology_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

// randomTransport draws a valid Transport. Queues keep their type by their name, so that any two specs differ only in
// what can be changed.
func randomTransport(t *rapid.T, label string) (*v1alpha1.Transport, retry.Lanes) {
	transport := async()
	exchangeType := v1alpha1.ExchangeTopic
	transport.Spec.Exchange = &v1alpha1.Exchange{Name: "async", Type: exchangeType}
	transport.Spec.Queues = nil
	names := rapid.SliceOfNDistinct(rapid.IntRange(0, 9), 1, 6, rapid.ID[int]).Draw(t, label+" queues")
	for _, n := range names {
		queue := v1alpha1.Queue{Name: fmt.Sprintf("q %d/ü", n)}
		switch {
		case n%3 == 0:
			queue.Type = new(v1alpha1.QueueClassic)
		case n%4 == 1:
			queue.Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
		}
		queue.BindingKeys = rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"", "a", "#", "b.*"}), 0, 3, rapid.ID[string]).Draw(t, label+" keys")
		if rapid.Bool().Draw(t, label+" limited") {
			queue.Limits = &v1alpha1.Limits{DropOldestAfter: new(rapid.Int64Range(1, 9).Draw(t, label+" limit"))}
		}
		if rapid.Bool().Draw(t, label+" foreign") {
			queue.Bindings = []v1alpha1.Binding{{Exchange: "events", Keys: []string{"x", "y"}}}
		}
		transport.Spec.Queues = append(transport.Spec.Queues, queue)
	}
	if rapid.Bool().Draw(t, label+" unrouted") {
		transport.Spec.Exchange.UnroutedTo = new(transport.Spec.Queues[0].Name)
	}
	var lanes retry.Lanes
	for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(1, 9), 0, 5, rapid.ID[int]).Draw(t, label+" lanes") {
		lanes = append(lanes, time.Duration(n)*time.Second)
	}
	slices.Sort(lanes)
	return transport, lanes
}

func TestPlan_LeavesNoDifferenceWhenCarriedOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		broker := emptyBroker()
		broker.Exchanges["events"] = topology.ExchangeState{Exchange: topology.Exchange{Name: "events", Type: "topic", Durable: true}}
		var created []string
		for _, label := range []string{"first", "second"} {
			transport, lanes := randomTransport(t, label)
			objects, err := topology.Desired(transport, compile.Needs{Lanes: lanes}, owner)
			if err != nil {
				t.Fatal(err)
			}
			for _, ref := range topology.Diff(objects, broker.Observed, created).Unmarked {
				created = append(created, ref.String())
			}
			convergesFully(t, broker, objects, created)
		}
	})
}

// convergesFully applies one plan, retires what is extra, and expects nothing to be left.
func convergesFully(t *rapid.T, broker *simulated, objects topology.Objects, created []string) {
	broker.converge(objects, created...)
	rest := topology.Diff(objects, broker.Observed, created)
	if plan := topology.Plan(rest); len(plan) > 0 {
		t.Fatalf("the second plan is not empty: %v", lines(plan))
	}
	if len(rest.Conflicts)+len(rest.Problems)+len(rest.Withheld)+len(rest.Adopted) > 0 {
		t.Fatalf("%v %v %v %v", rest.Conflicts, rest.Problems, rest.Withheld, rest.Adopted)
	}
	for _, queue := range rest.ExtraQueues {
		for _, binding := range broker.BindingsTo(queue.Name) {
			broker.apply(topology.Step{Action: topology.ActionDelete, Binding: &binding})
		}
		delete(broker.Queues, queue.Name)
	}
	broker.converge(objects, created...)
	if rest := topology.Diff(objects, broker.Observed, created); !rest.Empty() {
		t.Fatalf("a difference is left when the queues are retired: %+v", rest)
	}
}

func TestPlan_LeadsToNothingThatIsNotThereYet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		transport, lanes := randomTransport(t, "spec")
		objects, err := topology.Desired(transport, compile.Needs{Lanes: lanes}, owner)
		if err != nil {
			t.Fatal(err)
		}
		broker := emptyBroker()
		broker.Exchanges["events"] = topology.ExchangeState{Exchange: topology.Exchange{Name: "events", Type: "topic", Durable: true}}
		for _, step := range topology.Plan(topology.Diff(objects, broker.Observed, nil)) {
			for _, need := range needs(step) {
				_, isExchange := broker.Exchanges[need.Name]
				_, isQueue := broker.Queues[need.Name]
				if (need.Kind == topology.KindExchange && !isExchange) || (need.Kind == topology.KindQueue && !isQueue) {
					t.Fatalf("%s: %s is not there yet", step, need)
				}
			}
			broker.apply(step)
		}
	})
}

// needs are the objects that a step refers to.
func needs(step topology.Step) []topology.Ref {
	var names []any
	var refs []topology.Ref
	switch {
	case step.Queue != nil:
		names = append(names, step.Queue.Arguments["x-dead-letter-exchange"])
	case step.Exchange != nil:
		names = append(names, step.Exchange.Arguments["alternate-exchange"])
	case step.Policy != nil:
		names = append(names, step.Policy.Definition["alternate-exchange"])
	case step.Binding != nil:
		names = append(names, step.Binding.Source)
		refs = append(refs, topology.Ref{Kind: topology.KindQueue, Name: step.Binding.Destination})
	}
	for _, name := range names {
		if text, ok := name.(string); ok {
			refs = append(refs, topology.Ref{Kind: topology.KindExchange, Name: text})
		}
	}
	return refs
}
