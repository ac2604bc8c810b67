package apply_test

import (
	"slices"
	"testing"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

const stagingQueue, logQueue = "async.replay.r-0123abcd", "async.replay.r-0123abcd.log"

// replayed makes what a replay makes that nobody carries on: so many messages are staged, and its log has a checkpoint.
func (s *stage) replayed(staged int) {
	s.t.Helper()
	objects := topology.ReplayObjects(compile.Names{Prefix: "async"}, s.owner, "r-0123abcd")
	for _, policy := range objects.Policies {
		if _, err := s.client.Apply(s.t.Context(), topology.Step{Action: topology.ActionCreate, Policy: &policy}); err != nil {
			s.t.Fatal(err)
		}
	}
	for _, queue := range objects.Queues {
		s.declare(queue.Name, amqp091.Table(queue.Arguments))
	}
	for _, b := range objects.Bindings {
		if err := s.amqp.QueueBind(b.Destination, b.RoutingKey, b.Source, false, amqp091.Table(b.Arguments)); err != nil {
			s.t.Fatal(err)
		}
	}
	for range staged {
		s.publish("async.return", stagingQueue, nil)
	}
	s.publish("async.fallback", "", amqp091.Table{"redrive-outcome": "r-0123abcd"})
	s.counted(stagingQueue, int64(staged))
	s.counted(logQueue, 1)
}

// The failure queue stays until then: what is staged is taken back into it.
func TestDeletion_WaitsForWhatIsStagedAndLeavesNothingOfReplays(t *testing.T) {
	s := newStage(t)
	s.once()
	s.replayed(2)
	s.allCounted()
	s.remove(false, false)
	s.untilDrained()
	report := s.untilBlocked()
	if want := []apply.Blocked{{Queue: stagingQueue, Messages: 2}}; !slices.Equal(report.Blocked, want) {
		t.Fatalf("want %v, got %+v", want, report)
	}
	observed := s.allCounted()
	for _, queue := range []string{stagingQueue, logQueue, "async.failed"} {
		if _, exists := observed.Queues[queue]; !exists {
			t.Errorf("%s is gone already", queue)
		}
	}
	s.take(stagingQueue)
	s.take(stagingQueue)
	s.counted(stagingQueue, 0)
	if report := s.untilBlocked(); !report.Done {
		t.Fatalf("not done: %+v", report)
	}
	s.nothingIsLeft()
}

func TestDeletion_TakesReplaysWithItWhereItIsForced(t *testing.T) {
	s := newStage(t)
	s.once()
	s.replayed(2)
	s.remove(false, true)
	s.remove(true, true) // the policy stays as long as its queue is seen
	if report := s.remove(true, true); !report.Done || len(report.Left) != 0 {
		t.Errorf("not done: %+v", report)
	}
	s.nothingIsLeft()
}

// A replay goes on while the operator applies a Transport.
func TestApply_LetsTheQueuesOfAReplayBe(t *testing.T) {
	s := newStage(t)
	s.once()
	s.replayed(2)
	s.allCounted()
	if report := s.once(); len(report.Steps) != 0 || len(report.Retiring) != 0 {
		t.Errorf("it changes %v, and %v are to go", report.Steps, report.Retiring)
	}
	s.counted(stagingQueue, 2)
	s.counted(logQueue, 1)
}
