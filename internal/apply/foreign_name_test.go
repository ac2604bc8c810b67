package apply_test

import (
	"context"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
)

// renamedTo gives the queue "test" a name that somebody else's queue has, and looks a few times.
func (s *stage) renamedTo(name string) {
	s.t.Helper()
	queue := s.queue("test")
	queue.Name, queue.PreviousNames = name, []string{"test"}
	for range 4 {
		report, err := apply.Once(context.Background(), ahead{s.client, s.moved}, s.input(), keep)
		if err != nil || len(report.Conflicts) == 0 || len(report.Migrations) > 0 {
			s.t.Fatalf("%v, conflicts %v, exchanges %v", err, report.Conflicts, report.Migrations)
		}
		s.state.Keep(&report)
		s.later(11 * time.Second)
	}
	s.publish("async", "test", nil)
	s.counted("test", 1) // it is bound as before
}

// leftAlone checks that as many ways lead into a queue as did before.
func (s *stage) leftAlone(queue string, ways int) {
	s.t.Helper()
	if after := s.snapshot().BindingsTo(queue); len(after) != ways {
		s.t.Fatalf("want %d bindings to %s, got %v; to test: %v", ways, queue, after, s.snapshot().BindingsTo("test"))
	}
}

// All that led into the other's queue was led into ours, and its messages were handled by whoever they were not for.
func TestRename_TakesNothingFromAQueueOfAnotherTransport(t *testing.T) {
	s := newStage(t)
	s.once()
	other := s.beside("other")
	other.spec.Spec.Queues = []v1alpha1.Queue{{Name: "orders", BindingKeys: []string{"orders"}}}
	other.once()
	s.allCounted()
	before := len(s.snapshot().BindingsTo("orders"))
	s.renamedTo("orders")
	s.leftAlone("orders", before)
	s.publish("other", "orders", nil)
	s.counted("orders", 1)
}

func TestRename_TakesNothingFromAQueueOfAnApplication(t *testing.T) {
	s := newStage(t)
	s.queue("test").Limits = &v1alpha1.Limits{DropOldestAfter: new(int64(3))}
	s.once()
	if _, err := s.amqp.QueueDeclare("orders", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	if err := s.amqp.QueueBind("orders", "order.*", "amq.topic", false, nil); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		s.publish("amq.topic", "order.new", nil)
	}
	s.allCounted()
	s.consumed = []string{"lost", "lost.quarantine", "test", "test.quarantine"} // no worker has been told of the new name
	s.renamedTo("orders")
	s.leftAlone("orders", 1)
	s.holds("orders", 20)
}
