package apply_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

// silentAbout is a broker that does not answer when a binding of a key is deleted, and may carry that out later.
type silentAbout struct {
	apply.Port

	key string
}

func (s silentAbout) Apply(ctx context.Context, step topology.Step) (bool, error) {
	if step.Action == topology.ActionDelete && step.Binding != nil && step.Binding.RoutingKey == s.key {
		return false, broker.ErrUnreachable
	}
	return s.Port.Apply(ctx, step)
}

// The lists of a broker are shared for some seconds. A deletion without an answer is carried out after they were read, and just before it is too late
// for that: by these lists the binding is there.
func TestDoubts_LastAsLongAsListsMayBeOfBeforeTheDeletion(t *testing.T) {
	play(t, func(s *scene) {
		queues := func(test, other []string) []v1alpha1.Queue {
			return []v1alpha1.Queue{{Name: "test", BindingKeys: test}, {Name: "other", BindingKeys: other}}
		}
		s.spec.Spec.Queues = queues([]string{"test", "k"}, []string{"other"})
		s.looks(4)
		s.spec.Spec.Queues = queues([]string{"test"}, []string{"other", "k"})
		_ = s.look(silentAbout{s, "k"})
		if len(s.state.Deletions) != 1 {
			t.Fatalf("the deletions without an answer are %+v", s.state.Deletions)
		}
		s.spec.Spec.Queues = queues([]string{"test", "k"}, []string{"other"})
		ends := s.state.Deletions[0].Written.Add(topology.DefaultWaits().Request)
		for time.Until(ends) > 20*time.Second {
			s.looks(1)
		}
		s.pass(time.Until(ends) - 3*time.Second)
		old, err := s.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		old.Began = time.Now()
		s.pass(time.Second)
		for _, b := range slices.Clone(s.b.bindings) {
			if b.Destination == "test" && b.RoutingKey == "k" {
				s.b.unbind(b)
			}
		}
		s.pass(3 * time.Second)
		for range 2 { // the next look may have the same lists
			if err := s.look(snapshotOf{s, old}); err != nil {
				t.Fatal(err)
			}
			if to := s.b.route("async", simulatedMessage{key: "k"}); len(to) == 0 || isFailure(to[0]) {
				t.Errorf("k goes to %v by %v", to, s.report.Steps)
			}
			s.pass(time.Second)
		}
	})
}
