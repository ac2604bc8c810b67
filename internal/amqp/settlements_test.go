package amqp_test

import (
	"context"
	"runtime"
	"testing"
	"weak"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/testtransport"
)

// The last messages of each queue stayed in memory until others of that queue were settled: 25 quiet queues with a large one each had a worker killed.
func TestConsumer_KeepsNoMessageThatIsSettled(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	b.Publish("", "q", amqp091.Publishing{Body: make([]byte, 1<<20), Headers: amqp091.Table{"deep": []any{amqp091.Table{}}}})
	options, in := b.options(t), &inbox{}
	options.Room = amqp.NewRoom(64 << 20)
	consumer := amqp.NewConsumer(options)
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 4}})
	consumer.Receive(true)
	run(t, func(ctx context.Context) { consumer.Run(ctx, in.deliver) })
	body, headers := func() (weak.Pointer[byte], weak.Pointer[any]) {
		d := in.wait(t, 1)[0]
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
		return weak.Make(&d.Body[0]), weak.Make(&d.Headers["deep"].([]any)[0])
	}()
	testtransport.Eventually(t, "its body and its headers to be free", func() bool {
		runtime.GC()
		return body.Value() == nil && headers.Value() == nil
	})
}

// A settlement waits for its session, for seconds where a consumer is left, and the room of the message is free by then: the bodies of two rooms and more
// were in memory while a worker stopped under load, and it was killed.
func TestConsumer_KeepsNoMessageOfWhichTheSettlementWaits(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	large := amqp091.Publishing{Body: make([]byte, 1<<20)}
	b.Publish("", "q", large, large)
	options, in, stands := b.options(t), &inbox{}, make(chan struct{})
	options.Room = amqp.NewRoom(64 << 20)
	consumer := amqp.NewConsumer(options)
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 4}})
	consumer.Receive(true)
	delivered := 0
	run(t, func(ctx context.Context) {
		consumer.Run(ctx, func(d *amqp.Delivery) {
			in.deliver(d)
			if delivered++; delivered == 2 {
				<-stands // it sends no settlement meanwhile
			}
		})
	})
	defer close(stands)
	body := func() weak.Pointer[byte] {
		d := in.wait(t, 2)[0]
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
		return weak.Make(&d.Body[0])
	}()
	testtransport.Eventually(t, "its body to be free", func() bool {
		runtime.GC()
		return body.Value() == nil
	})
}
