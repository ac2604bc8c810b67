package apply_test

import (
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// RabbitMQ does not apply a policy to a classic queue that has a delivery limit. That of a queue which was to become one of type Quorum had it from the
// beginning, so that a policy of others took its place, and expired the queue with its messages while nobody consumed it.
func TestMigration_KeepsAPolicyOfOthersFromAClassicQueue(t *testing.T) {
	s := newStage(t)
	const expires = 2 * time.Second
	_, err := s.client.Apply(t.Context(), topology.Step{Action: topology.ActionCreate, Policy: &topology.Policy{
		Name: "theirs", Pattern: "^test$", ApplyTo: "queues", Priority: 1, Definition: topology.Arguments{"expires": expires.Milliseconds()},
	}})
	if err != nil {
		t.Fatal(err)
	}
	queue := &s.spec.Spec.Queues[1]
	queue.Type, queue.Limits = new(v1alpha1.QueueClassic), &v1alpha1.Limits{MessageTTL: v1alpha1.NewDuration(time.Hour)}
	s.once()
	if err := s.amqp.Publish("async", "test", false, false, amqp091.Publishing{MessageId: "1"}); err != nil {
		t.Fatal(err)
	}
	for _, limits := range []*v1alpha1.Limits{queue.Limits, nil} {
		queue.Type, queue.Limits = nil, limits
		s.once()
		s.once()
		time.Sleep(2 * expires)
		if _, err := s.client.Queue(t.Context(), "test"); err != nil {
			t.Fatalf("with limits %v: %v", limits, err)
		}
	}
}
