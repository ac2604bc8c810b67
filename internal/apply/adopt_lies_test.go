package apply_test

import (
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/topology"
)

// letGoBy is a stage whose queue test was made by the Transport, then adopted, bound by its owner, and has left the spec.
func letGoBy(t *testing.T) *stage {
	t.Helper()
	s := newStageOn(t, testbroker.Shared(t))
	s.once()
	s.queue("test").Adopt = new(true)
	s.once()
	if err := s.amqp.QueueBind("test", "orders", "amq.topic", false, nil); err != nil {
		t.Fatal(err)
	}
	s.spec.Spec.Queues = s.spec.Spec.Queues[:1]
	return s
}

// lied is a look by lists that lack the queue.
func (s *stage) lied(l lie) {
	s.t.Helper()
	report, err := apply.Once(s.t.Context(), s.through(l), s.input(), keep)
	if err != nil {
		s.t.Fatal(err)
	}
	s.state.Counted = report.Counted
	s.state.Created, s.state.Adopted, s.state.Retiring, s.state.Deletions = report.Created, report.Adopted, report.Retiring, report.Deletions
	if !slices.Contains(s.state.Adopted, "queue/test") {
		s.t.Errorf("adopted are %q after a list that lacks the queue", s.state.Adopted)
	}
}

// isLeft fails where the queue is gone, or what its owner has bound.
func (s *stage) isLeft() {
	s.t.Helper()
	if got := s.bindings("test"); !s.exists("test") || !slices.Contains(got, `amq.topic -> test "orders"`) {
		s.t.Errorf("it exists: %t; into it lead %q", s.exists("test"), got)
	}
}

// Nothing but the status tells such a queue from one of the Transport's own. Once forgotten, it was unbound and deleted by honest lists.
func TestAdoption_RemembersAQueueThatAListLacks(t *testing.T) {
	t.Parallel()
	s := letGoBy(t)
	s.eventually("all to be let go", func() bool {
		s.later(time.Minute)
		s.once()
		return len(s.state.Retiring) == 0
	})
	s.lied(listWithout("queues", "name", "test"))
	for range 3 {
		s.once()
		s.later(16 * time.Second)
	}
	s.isLeft()
}

func TestAdoption_UnbindsNothingOfAQueueThatIsLetGoAndThatAListLacks(t *testing.T) {
	t.Parallel()
	s := letGoBy(t)
	s.waits = topology.DefaultWaits()
	s.once()
	if err := s.amqp.QueueUnbind("test", "test", "async.return", map[string]any{topology.OwnerArgument: s.owner}); err != nil { // an operator was ended here
		t.Fatal(err)
	}
	s.eventually("the unbinding", func() bool { return !slices.Contains(s.bindings("test"), `async.return -> test "test"`) })
	for range 2 {
		s.lied(listWithout("queues", "name", "test"))
		s.later(11 * time.Second)
	}
	s.isLeft()
	if _, err := s.amqp.QueueDelete("test", false, false, false); err != nil {
		t.Fatal(err)
	}
	s.once()
	if len(s.state.Retiring) > 0 && s.retiring("test").Queue != "" {
		t.Errorf("a queue that is gone is let go: %+v", s.state.Retiring)
	}
}
