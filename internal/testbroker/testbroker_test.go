package testbroker_test

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

func connect(t *testing.T, to string) *amqp091.Channel {
	t.Helper()
	conn, err := amqp091.Dial(to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) })
	channel, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return channel
}

// awaitCount waits until the queue q holds as many messages as given. A node answers by its own replica, whose count is old until
// it has caught up with the leader after a start.
func awaitCount(t *testing.T, at string, want int) {
	t.Helper()
	channel := connect(t, at)
	testtransport.Eventually(t, fmt.Sprintf("%d messages", want), func() bool {
		q, err := channel.QueueDeclarePassive("q", true, false, false, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		return q.Messages == want
	})
}

func TestBroker_KeepsItsMessagesThroughARestartAndAKill(t *testing.T) {
	first, second := testbroker.Private(t), testbroker.Private(t)
	vhost := first.Vhost(t)
	channel := connect(t, first.URL(vhost))
	if _, err := channel.QueueDeclare("q", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	if err := channel.Confirm(false); err != nil {
		t.Fatal(err)
	}
	confirm, err := channel.PublishWithDeferredConfirm("", "q", true, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent})
	if err != nil {
		t.Fatal(err)
	}
	if !confirm.Wait() {
		t.Fatal("not confirmed")
	}

	if err := first.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := first.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitCount(t, first.URL(vhost), 1)
	connect(t, second.AMQPURL)
}

func TestStop_FreesThePorts(t *testing.T) {
	b, err := testbroker.Start(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{b.AMQPURL, b.ManagementURL} {
		u, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("tcp", u.Host)
		if err != nil {
			t.Errorf("port of %s: %v", u.Host, err)
			continue
		}
		_ = listener.Close()
	}
}

func TestStopMember_KeepsAQueueFromConfirmingUntilItIsBack(t *testing.T) {
	b := testbroker.Private(t)
	vhost := b.Vhost(t)
	channel := connect(t, b.URL(vhost))
	if err := channel.Confirm(false); err != nil {
		t.Fatal(err)
	}
	publish := func(queue string) *amqp091.DeferredConfirmation {
		t.Helper()
		confirm, err := channel.PublishWithDeferredConfirm("", queue, true, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent})
		if err != nil {
			t.Fatal(err)
		}
		return confirm
	}
	for _, name := range []string{"it's ä", "other"} {
		if _, err := channel.QueueDeclare(name, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
			t.Fatal(err)
		}
		if !publish(name).Wait() { // a channel that has never used a queue without a leader is told at once
			t.Fatal("not confirmed")
		}
	}
	b.StopMember(t, vhost, "it's ä")
	waits, goesOn := publish("it's ä"), publish("other")
	if !goesOn.Wait() {
		t.Error("another queue does not confirm either")
	}
	if waits.Acked() {
		t.Error("a queue without a leader has confirmed")
	}
	b.StartMember(t, vhost, "it's ä")
	if !waits.Wait() {
		t.Error("refused after the member is back")
	}
}
