package amqp_test

import (
	"context"
	"errors"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// consumeWithin consumes queue q of a broker that waits so long for a settlement.
func (b *broker) consumeWithin(t *testing.T, timeout time.Duration, prefetch int) *inbox {
	t.Helper()
	options := b.options(t)
	options.ConsumerTimeout = func() time.Duration { return timeout }
	consumer, in := amqp.NewConsumer(options), &inbox{}
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: prefetch}})
	consumer.Receive(true)
	run(t, func(ctx context.Context) { consumer.Run(ctx, in.deliver) })
	return in
}

// Up to RabbitMQ 4.2 the channel ends. 4.3 cancels the consumer, and goes on with the channel as if nothing were wrong. In the second
// round the queue has a connection of its own, on which the consumer that follows has the channel of the one before.
func TestDelivery_EndsWhenTheBrokerTakesItBackByTimeout(t *testing.T) {
	testtransport.Long(t)
	const timeout = 3 * time.Second
	own := testbroker.Private(t)
	own.SetEnvironment(t, "consumer_timeout", int(timeout.Milliseconds()))
	own.SetEnvironment(t, "channel_tick_interval", 300)
	b := brokerOf(t, own)
	b.queue(t, "q", quorum())
	in := b.consumeWithin(t, timeout, 1)
	b.fill(1)
	for range 2 {
		late := in.wait(t, 1)[0]
		ctx, cancel := late.WhileLive(t.Context())
		defer cancel()
		again := in.wait(t, 1)[0] // as another worker would get it
		if again.Queue != "q" || late.Live() || ctx.Err() == nil || !errors.Is(late.Ack(), amqp.ErrSessionEnded) {
			t.Errorf("the message has come again, and the one before is live: %v, %v", late.Live(), ctx.Err())
		}
		if !again.Live() || again.Ack() != nil {
			t.Error("what came again is not live")
		}
		testtransport.Eventually(t, "the end of the message", func() bool { return b.Ready("q") == 0 })
		b.fill(1)
	}
	if next := in.wait(t, 1)[0]; next.Ack() != nil || next.Redelivered {
		t.Error("the next message was delivered before")
	}
}

func TestDelivery_OutlivesABrokersCancelUnlessOverdue(t *testing.T) {
	const timeout = 3 * time.Second
	b := newBroker(t)
	b.queue(t, "q", nil)
	in := b.consumeWithin(t, timeout, 2)
	b.fill(1)
	late := in.wait(t, 1)[0]
	time.Sleep(timeout)
	b.fill(1)
	young := in.wait(t, 1)[0]
	if !late.Live() {
		t.Error("a loan has ended before the broker said anything")
	}
	if _, err := b.Channel().QueueDelete("q", false, false, false); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "the end of the loan", func() bool { return !late.Live() })
	if err := late.Ack(); !errors.Is(err, amqp.ErrSessionEnded) {
		t.Errorf("a late settlement: %v", err)
	}
	if !young.Live() || young.Ack() != nil {
		t.Error("the younger loan has ended")
	}
	b.queue(t, "q", amqp091.Table{})
	b.fill(1)
	in.wait(t, 1)
}
