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
