package testbroker_test

import (
	"testing"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/testbroker"
)

func TestThreeNodes_KeepAMessageWhileOneIsKilledOrFrozen(t *testing.T) {
	c := testbroker.PrivateCluster(t, 3)
	first := c.Nodes[0]
	vhost := first.Vhost(t)
	channel := connect(t, first.URL(vhost))
	if _, err := channel.QueueDeclare("q", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	if err := channel.Confirm(false); err != nil {
		t.Fatal(err)
	}
	publish := func() {
		t.Helper()
		confirm, err := channel.PublishWithDeferredConfirm("", "q", true, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent})
		if err != nil {
			t.Fatal(err)
		}
		if !confirm.Wait() {
			t.Fatal("not confirmed")
		}
	}
	publish()
	second := c.Nodes[1]
	c.MoveLeader(t, vhost, second, "q")
	if leader := c.Leader(t, vhost, "q"); leader != second {
		t.Fatalf("the leader is %s, want %s", leader.Name, second.Name)
	}
	if err := second.Freeze(); err != nil {
		t.Fatal(err)
	}
	publish() // by the leader that the others have chosen
	if err := second.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := second.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	publish()
	if err := c.Resume(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitCount(t, second.URL(vhost), 3)
}
