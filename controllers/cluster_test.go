package controllers_test

import (
	"strings"
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// The manager asks the first node, which says 0 of each queue that another one leads.
func TestDeletion_KeepsQueuesOfThreeNodesWithoutStatistics(t *testing.T) {
	c := testbroker.PrivateCluster(t, 3, "management.disable_stats = true", "management.enable_queue_totals = true")
	w := newWorldOn(t, c.Nodes[0])
	transport := w.ready()
	c.MoveLeader(t, w.vhost, c.Nodes[1], testtransport.Queue)
	const messages = 20
	w.amqp.Publish("async", testtransport.Queue, make([]amqp091.Publishing, messages)...)
	w.deleteAll(transport)
	testtransport.Eventually(t, "the Transport to say why it stays", func() bool {
		told := w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeleting)
		return strings.Contains(told, "has not counted the messages in") && strings.Contains(told, testtransport.Queue)
	})
	for range 5 { // looks, each longer than the waits of this operator
		before := w.proxy.reads.Load()
		testtransport.Eventually(t, "the operator to look again", func() bool { return w.proxy.reads.Load() > before+20 })
	}
	if got := w.amqp.Ready(testtransport.Queue); got != messages || !w.get(transport) {
		t.Errorf("%d of %d messages are in the queue", got, messages)
	}
}
