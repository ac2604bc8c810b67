package apply_test

import (
	"testing"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/topology"
)

// A queue of ours may stand with arguments that no spec asked for: somebody or an older build made it so.
func TestMigration_ReplacesAQueueWithOtherDeadLettering(t *testing.T) {
	s := newStage(t)
	s.stand()
	s.remake("test", amqp091.Table{
		"x-queue-type": topology.TypeQuorum, "x-dead-letter-exchange": "elsewhere", "x-overflow": "reject-publish", topology.OwnerArgument: owner,
	})
	f := newFlow(s, true, "test")
	f.begin()
	s.migratedOnce(f)
	arguments := s.snapshot().Queues["test"].Arguments
	if arguments["x-dead-letter-exchange"] != "async.failed" || arguments["x-dead-letter-strategy"] != "at-least-once" {
		t.Errorf("the queue has the arguments %v", arguments)
	}
}

// remake puts a queue with other arguments in the place of one that stands, with its bindings.
func (s *stage) remake(name string, arguments amqp091.Table) {
	s.t.Helper()
	ways := s.snapshot().BindingsTo(name)
	if _, err := s.amqp.QueueDelete(name, false, false, false); err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.amqp.QueueDeclare(name, true, false, false, false, arguments); err != nil {
		s.t.Fatal(err)
	}
	for _, way := range ways {
		if err := s.amqp.QueueBind(name, way.RoutingKey, way.Source, false, amqp091.Table(way.Arguments)); err != nil {
			s.t.Fatal(err)
		}
	}
	s.allCounted()
}
