package apply_test

import (
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// A queue that an application has bound, too, leaves the spec: its workers empty it, also where the operator was started again before it looked.
func TestRetirement_OfASharedQueueGoesOnUnderAnotherOperator(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(map[bool]string{false: "one process", true: "a new process"}[restarts], func(t *testing.T) {
			play(t, func(s *scene) {
				s.looks(5)
				s.fill("test", 20)
				_ = s.b.bind(topology.Binding{Source: "amq.topic", Destination: "test", RoutingKey: "theirs"})
				s.looks(2)
				if restarts {
					s.state.Memory, s.state.Stamps, s.state.Doubts = apply.Memory{}, nil, nil // what the status does not have
				}
				if !s.state.Begun {
					t.Fatal("it has begun")
				}
				s.spec.Spec.Queues = []v1alpha1.Queue{other()}
				s.looks(1)
				for range 30 {
					next := working("other")
					s.workers = next.WithLeaving(s.workers, s.report.Leaving) // as controllers.followQueues
					s.looks(1)
				}
				unread := compile.Unread([]string{"test"}, []compile.Config{s.workers})
				if q := s.b.queues["test"]; len(unread) > 0 && q != nil && q.depth() > 0 {
					t.Errorf("%d messages stand in test, which nobody reads; told: %v", q.depth(), s.report.Warnings)
				}
			})
		})
	}
}
