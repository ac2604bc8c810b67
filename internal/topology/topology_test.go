package topology_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

const owner = "c1/shop/async"

// async is the Transport of the project's samples: an exchange, the queues lost and test, unroutable messages to lost.
func async(change ...func(*v1alpha1.Transport)) *v1alpha1.Transport {
	transport := &v1alpha1.Transport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async"},
		Spec: v1alpha1.TransportSpec{
			Exchange: &v1alpha1.Exchange{Name: "async", Type: v1alpha1.ExchangeDirect, UnroutedTo: new("lost")},
			Queues: []v1alpha1.Queue{
				{Name: "lost", BindingKeys: []string{"lost"}},
				{Name: "test", BindingKeys: []string{"test"}},
			},
		},
	}
	for _, c := range change {
		c(transport)
	}
	return transport
}

func lanes() retry.Lanes { return retry.Lanes{time.Second, 5 * time.Second} }

func desired(t *testing.T, transport *v1alpha1.Transport) topology.Objects {
	t.Helper()
	objects, err := topology.Desired(transport, compile.Needs{Lanes: lanes()}, owner)
	if err != nil {
		t.Fatalf("Desired: %v", err)
	}
	return objects
}

// simulated is a broker in memory.
type simulated struct{ topology.Observed }

func emptyBroker() *simulated {
	return &simulated{topology.Observed{
		Identity:  topology.Identity{Cluster: "rabbit", VHost: "/"},
		Exchanges: map[string]topology.ExchangeState{},
		Queues:    map[string]topology.QueueState{},
		Policies:  map[string]topology.Policy{},
	}}
}

// throughJSON gives arguments the types that they come back with from the management API.
func throughJSON(arguments topology.Arguments) topology.Arguments {
	text, err := json.Marshal(arguments)
	if err != nil {
		panic(err)
	}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.UseNumber()
	back := topology.Arguments{}
	if err := decoder.Decode(&back); err != nil {
		panic(err)
	}
	return back
}

func (s *simulated) apply(step topology.Step) {
	switch {
	case step.Action == topology.ActionDelete && step.Policy != nil:
		delete(s.Policies, step.Policy.Name)
	case step.Action == topology.ActionDelete && step.Binding != nil:
		s.Bindings = slices.DeleteFunc(slices.Clone(s.Bindings), func(b topology.Binding) bool {
			return b.Name() == step.Binding.Name() && b.Arguments.Owner() == step.Binding.Arguments.Owner()
		})
	case step.Exchange != nil:
		exchange := *step.Exchange
		exchange.Role, exchange.Arguments = "", throughJSON(exchange.Arguments)
		s.Exchanges[exchange.Name] = topology.ExchangeState{Exchange: exchange}
	case step.Queue != nil:
		queue := *step.Queue
		queue.Role, queue.Arguments = "", throughJSON(queue.Arguments)
		s.Queues[queue.Name] = topology.QueueState{Queue: queue, Evidence: topology.Evidence{Messages: new(int64(0))}}
	case step.Binding != nil:
		binding := *step.Binding
		binding.Arguments = throughJSON(binding.Arguments)
		s.Bindings = append(s.Bindings, binding)
	case step.Policy != nil:
		policy := *step.Policy
		policy.Definition = throughJSON(policy.Definition)
		s.Policies[policy.Name] = policy
	}
}

// converge applies what is planned.
func (s *simulated) converge(objects topology.Objects, created ...string) topology.Difference {
	difference := topology.Diff(objects, s.Observed, created)
	for _, step := range topology.Plan(difference) {
		s.apply(step)
	}
	return difference
}

func (s *simulated) queue(name string, change func(*topology.QueueState)) {
	state := s.Queues[name]
	state.Name = name
	state.Arguments = maps.Clone(state.Arguments)
	if state.Arguments == nil {
		state.Arguments = topology.Arguments{}
	}
	change(&state)
	s.Queues[name] = state
}

func (s *simulated) exchange(name string, change func(*topology.ExchangeState)) {
	state := s.Exchanges[name]
	state.Name = name
	state.Arguments = maps.Clone(state.Arguments)
	if state.Arguments == nil {
		state.Arguments = topology.Arguments{}
	}
	change(&state)
	s.Exchanges[name] = state
}

func lines(steps []topology.Step) []string {
	texts := make([]string, len(steps))
	for i, step := range steps {
		texts[i] = step.String()
	}
	return texts
}
