package amqp_test

import (
	"context"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/testtransport"
)

// The broker counts each time that a message is given back for want of room, and dead-lettered it, never handled, after twenty of them.
func TestConsumer_ReadsAMessageBeforeItIsGivenBackTooOften(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "dead", quorum())
	b.queue(t, "q", amqp091.Table{
		"x-queue-type": "quorum", "x-delivery-limit": int32(20), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	})
	room := amqp.NewRoom(1 << 20)
	room.Add(1 << 20) // and none comes free
	options := b.options(t)
	options.Room = room
	consumer := amqp.NewConsumer(options)
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 10}})
	consumer.Receive(true)
	back, got := make(chan struct{}, 100), make(chan *amqp.Delivery, 100)
	run(t, func(ctx context.Context) {
		consumer.Run(ctx, func(d *amqp.Delivery) {
			if !d.NoRoom {
				got <- d
				return
			}
			back <- struct{}{}
			if err := d.GiveBack(); err != nil {
				t.Error(err)
			}
		})
	})
	b.Publish("", "q", amqp091.Publishing{MessageId: "1", Body: make([]byte, 100_000), Headers: amqp091.Table{"a": amqp091.Table{"b": "c"}}})
	testtransport.EventuallyWithin(t, time.Minute, "it is read, or dead-lettered", func() bool { return len(got) > 0 || b.Ready("dead") > 0 })
	if len(got) == 0 {
		t.Fatalf("it was dead-lettered after it was given back %d times", len(back))
	}
	if d := <-got; d.MessageID != "1" || len(d.Body) != 100_000 || len(back) != 10 || d.DeliveryCount() != 10 {
		t.Errorf("message %s with %d bytes, which came back %d times by the broker's count, and by ours %d", d.MessageID, len(d.Body), d.DeliveryCount(), len(back))
	}
}
