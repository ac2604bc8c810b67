package amqp_test

import (
	"context"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
)

// A message without a body waits for room too, since its headers may be large. It came then as one whose headers nobody can read: it went to the
// failure queue and was never handled.
func TestConsumer_GetsAnEmptyMessageAgainWhenThereIsRoom(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", amqp091.Table{"x-queue-type": "quorum"})
	options := b.options(t)
	const limit = 1 << 20
	options.Room = amqp.NewRoom(limit)
	options.Room.Add(2 * limit) // what is on loan has more than it may, such as one message that is larger than all together may be
	b.Publish("", "q", amqp091.Publishing{MessageId: "m-1"})
	consumer := amqp.NewConsumer(options)
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 10}})
	consumer.Receive(true)
	deliveries := make(chan *amqp.Delivery, 1)
	run(t, func(ctx context.Context) { consumer.Run(ctx, func(d *amqp.Delivery) { deliveries <- d }) })
	next := func() *amqp.Delivery {
		select {
		case d := <-deliveries:
			return d
		case <-time.After(time.Minute):
			t.Fatal("it does not come")
			return nil
		}
	}
	d := next()
	if !d.NoRoom || d.LeftOut != 0 {
		t.Fatalf("it came as one that has room: %+v", d.Message)
	}
	options.Room.Add(-2 * limit)
	if !options.Room.Await(t.Context(), d.LeftOut) || d.GiveBack() != nil {
		t.Fatal("it cannot be given back")
	}
	if d = next(); d.Unreadable || d.MessageID != "m-1" {
		t.Errorf("it came again as %+v", d.Message)
	}
	_ = d.Ack()
}
