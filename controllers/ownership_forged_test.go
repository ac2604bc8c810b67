package controllers_test

import (
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

// Another team of the vhost declares a queue of its own with this Transport's mark, which it sees on each of its queues. The Transport's login has rights
// on its own names only, so that it cannot take the queue away.
func TestTransport_FollowsItsSpecBesideAQueueWithAForgedMark(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.team()
	transport := w.transport()
	transport.Spec.Exchange, transport.Spec.Prefix, transport.Spec.RetryPolicyRef = nil, new("b"), nil
	transport.Spec.Broker.SecretRef.Name = "team"
	transport.Spec.Queues = []v1alpha1.Queue{{Name: "b.work"}}
	w.create(transport)
	w.awaitReady(transport)
	_, err := w.amqp.Channel().QueueDeclare("evil", true, false, false, false, amqp091.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "b.failed", "redrive-owner": owner(t, w, transport),
	})
	must(t, err)
	must(t, w.amqp.Channel().QueueBind("evil", "x", "amq.direct", false, nil))
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonBrokerRefused)
	const advice = "if queue evil is this Transport's, grant the login rights on the names of this step; " +
		"if somebody else has made it with this Transport's mark, have it deleted"
	w.awaitMessage(transport, v1alpha1.ReadyCondition, `delete binding amq.direct -> evil "x": the user may not do this (401): Access refused.; `+advice)

	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "b.more"}) })
	testtransport.Eventually(t, "the workers to consume the new queue", func() bool { return w.published("b.more").Name != "" })

	must(t, w.client.Delete(t.Context(), transport))
	w.awaitMessage(transport, v1alpha1.ReadyCondition, advice+"; to delete the Transport without its broker, set spec.deletionPolicy to Retain")
	_, err = w.amqp.Channel().QueueDelete("evil", false, false, false)
	must(t, err)
	w.awaitGone(transport)
}
