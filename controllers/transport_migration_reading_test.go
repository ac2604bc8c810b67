package controllers_test

import (
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
)

// takeName makes a queue as somebody else does, of a kind that no work queue may have.
func (w *world) takeName(queue string) {
	w.Helper()
	_, err := w.amqp.Channel().QueueDeclare(queue, true, false, false, false, nil)
	must(w.T, err)
}

// draining makes a Transport whose queue "test" is migrated in order, with a message in the old queue and one in its stand-in.
func (w *world) draining() *v1alpha1.Transport {
	w.Helper()
	transport := w.ready()
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "older"})
	w.awaitCount("test", 1)
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues[0].SingleActiveConsumer = new(true) })
	w.eventually("the queue to be emptied", func() bool {
		return w.get(transport) && len(transport.Status.Migrations) == 1 && transport.Status.Migrations[0].Step == v1alpha1.MigrationDrain
	})
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "newer"})
	w.awaitCount("test.migrating", 1)
	return transport
}

// The migration of a queue goes on while another queue is in conflict, and the workers have to follow: nobody would consume the stand-in.
func TestMigration_LetsWorkersFollowBesideAConflict(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	w := newWorld(t)
	transport := w.draining()
	w.takeName("taken")
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "taken"}) })
	w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonConflict)
	w.consumeOne("test")
	testtransport.Eventually(t, "the stand-in to be consumed", func() bool { return w.published("test").Reads == compile.ReadsStandin })
	w.consumeOne("test.migrating")
	w.eventually("the exchange to be over", func() bool {
		return w.get(transport) && len(transport.Status.Migrations) == 0 && w.published("test").Standin == ""
	})
	if w.observed().Queues["test"].Arguments["x-single-active-consumer"] != true || w.hasQueue("test.migrating") {
		t.Errorf("the queues are %v", w.observed().Queues)
	}
	if queue := w.published("taken"); queue.Name != "" {
		t.Errorf("the workers are told of more than how to read: %+v", queue)
	}
	w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonConflict)
}

// Without its policy a Transport takes no step on the broker. The workers go on to the queue that has the messages all the same.
func TestMigration_LetsWorkersReadOnWithoutAPolicy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.draining()
	policy := w.policy("policy", time.Second, 2*time.Second)
	must(t, w.client.Delete(t.Context(), policy.DeepCopy()))
	w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonPolicyNotFound)
	w.awaitLooks(4)
	if queue := w.published("test"); queue.Reads != compile.ReadsQueue {
		t.Errorf("while the older message is there, %s is consumed", queue.Reads)
	}
	w.consumeOne("test")
	testtransport.Eventually(t, "the stand-in to be consumed", func() bool { return w.published("test").Reads == compile.ReadsStandin })
	w.consumeOne("test.migrating")
	w.create(policy)
	w.awaitReady(transport)
	w.eventually("the exchange to be over", func() bool {
		return w.get(transport) && len(transport.Status.Migrations) == 0 && w.published("test").Standin == ""
	})
}

// Workers are told of a new name when nothing is in the way. Until then the old queue has all, and nobody waits.
func TestMigration_RenamesNoQueueBesideAConflict(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.takeName("taken")
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Name, t.Spec.Queues[0].PreviousNames = "orders", []string{"test"}
		t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "taken"})
	})
	w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonConflict)
	w.awaitLooks(4)
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "new"})
	w.amqp.Publish("async.return", "test", amqp091.Publishing{MessageId: "from a lane"})
	if ready := w.amqp.Ready("test"); ready != 2 || w.hasQueue("orders") || w.published("test").Name == "" {
		t.Errorf("%d messages are in the queue that is consumed, the other one is there: %v", ready, w.hasQueue("orders"))
	}
	_, err := w.amqp.Channel().QueueDelete("taken", false, false, false)
	must(t, err)
	w.amqp.Take("test")
	w.amqp.Take("test")
	w.awaitReady(transport)
	testtransport.Eventually(t, "the new queue to have taken over", func() bool {
		return w.get(transport) && len(transport.Status.Migrations) == 0 && w.published("orders").Standin == "" && !w.hasQueue("test")
	})
}
