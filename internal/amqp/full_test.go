package amqp_test

import (
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/message"
)

// The queue is full most of the time, so RabbitMQ refuses some messages while it has not confirmed others before them, and then confirms
// both those and some behind with one frame.
func TestPublisher_ConfirmsNothingThatAFullQueueRefused(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", amqp091.Table{"x-max-length": int32(5), "x-overflow": "reject-publish"})
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	if err := b.Channel().Qos(1, 0, false); err != nil {
		t.Fatal(err)
	}
	deliveries, err := b.Channel().Consume("q", "all", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	received := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for d := range deliveries {
			received++
			if err := d.Ack(false); err != nil {
				t.Errorf("acknowledge: %v", err)
			}
		}
	}()
	var confirmed, refused atomic.Int64
	const publishers, each = 100, 200
	many(publishers, func() {
		for range each {
			m := &message.Message{RoutingKey: "q", DeliveryMode: amqp091.Persistent, Body: []byte("x")}
			if publisher.Publish(t.Context(), m) == nil {
				confirmed.Add(1)
			} else {
				refused.Add(1)
			}
		}
	}).Wait()
	if err := b.Channel().Cancel("all", false); err != nil {
		t.Fatal(err)
	}
	<-done
	if there := received + b.Ready("q"); there != int(confirmed.Load()) || refused.Load() == 0 {
		t.Errorf("%d messages arrived, %d were confirmed and %d refused", there, confirmed.Load(), refused.Load())
	}
}

// RabbitMQ refuses at once, so nobody waits for it whenever somebody looks: the message that is held is between two tries.
func TestProblems_NamesAFullQueueWhileAMessageIsTriedAgain(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", amqp091.Table{"x-max-length": int32(1), "x-overflow": "reject-publish"})
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	publish := func() error {
		return publisher.Publish(t.Context(), &message.Message{RoutingKey: "q", Body: []byte("x")})
	}
	if err := publish(); err != nil {
		t.Fatal(err)
	}
	var since time.Time
	for range 5 {
		if publish() == nil {
			t.Fatal("the queue is not full")
		}
		for next := time.Now().Add(4 * time.Second); time.Now().Before(next); time.Sleep(200 * time.Millisecond) {
			problems := publisher.Problems()
			if len(problems) != 1 {
				t.Fatalf("the problems are %v, want that of the queue", problems)
			}
			if since.IsZero() {
				since = problems[0].Since
			}
			if !problems[0].Since.Equal(since) {
				t.Fatalf("the problem is there since %s, and was since %s", problems[0].Since, since)
			}
		}
	}
}
