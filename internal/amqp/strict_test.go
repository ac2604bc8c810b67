package amqp_test

import (
	"errors"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/testtransport"
)

// strict makes the strict queue q with messages of these bodies, whose publisher claims deliveries that never were.
func (b *broker) strict(t *testing.T, bodies ...string) amqp.Subscription {
	t.Helper()
	b.queue(t, "q", amqp091.Table{"x-queue-type": "quorum", "x-single-active-consumer": true, "x-delivery-limit": int32(1_000)})
	for _, body := range bodies {
		b.Publish("", "q", amqp091.Publishing{Body: []byte(body), Headers: amqp091.Table{"x-delivery-count": int64(7)}})
	}
	return amqp.Subscription{Queue: "q", Strict: true}
}

// next waits for one delivery, and checks that it is the only one.
func (i *inbox) next(t *testing.T, body string, count int64) *amqp.Delivery {
	t.Helper()
	all := i.wait(t, 1)
	d := all[0]
	if len(all) != 1 || string(d.Body) != body || d.DeliveryCount() != count {
		t.Fatalf("%d delivered, the first is %q, delivered %d times before; want %q alone, %d times", len(all), d.Body, d.DeliveryCount(), body, count)
	}
	return d
}

func TestStrict_ReturnsAMessageToTheFrontWithItsCountRaised(t *testing.T) {
	cases := map[string]func(b *broker, d *amqp.Delivery) error{
		"requeued":                   func(_ *broker, d *amqp.Delivery) error { return d.Requeue() },
		"abandoned":                  func(_ *broker, d *amqp.Delivery) error { return d.Abandon() },
		"held when its session ends": func(b *broker, _ *amqp.Delivery) error { b.proxy.Cut(); return nil },
	}
	for name, giveBack := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t)
			_, in := b.consume(t, b.strict(t, "first", "second"))
			for count := range int64(3) {
				if err := giveBack(b, in.next(t, "first", count)); err != nil {
					t.Fatal(err)
				}
			}
			if err := in.next(t, "first", 3).Ack(); err != nil {
				t.Fatal(err)
			}
			in.next(t, "second", 0)
		})
	}
}

func TestStrict_ReleasesAMessageToTheFrontUncountedWhereItCan(t *testing.T) {
	b := newBroker(t)
	strict := b.strict(t)
	for _, body := range []string{"first", "second"} {
		b.Publish("", "q", amqp091.Publishing{Body: []byte(body)})
	}
	_, in := b.consume(t, strict)
	counts := int64(1)
	if b.IsSince(4, 3) {
		counts = 0
	}
	for returns := range int64(5) {
		if err := in.next(t, "first", returns*counts).Release(); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.next(t, "first", 5*counts).Ack(); err != nil {
		t.Fatal(err)
	}
	in.next(t, "second", 0)
}

func TestStrict_IsNeededToGiveMessagesBack(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", quorum())
	b.fill(1)
	_, in := b.consume(t, amqp.Subscription{Queue: "q", Prefetch: 1})
	d := in.wait(t, 1)[0]
	for how, giveBack := range map[string]func() error{"requeue": d.Requeue, "release": d.Release, "abandon": d.Abandon} {
		if err := giveBack(); !errors.Is(err, amqp.ErrNotStrict) {
			t.Errorf("%s: %v", how, err)
		}
	}
	if !d.Live() || d.Ack() != nil {
		t.Error("the delivery is over")
	}
}

func TestStrict_KeepsTheQueueForALoanWhileReceivingEnds(t *testing.T) {
	ends := map[string]func(c *amqp.Consumer){
		"receiving is turned off":   func(c *amqp.Consumer) { c.Receive(false) },
		"the queue is unsubscribed": func(c *amqp.Consumer) { c.Subscribe([]amqp.Subscription{{Queue: "other", Prefetch: 1}}) },
	}
	settlements := map[string]struct {
		settle func(d *amqp.Delivery) error
		next   string
		count  int64
	}{
		"acknowledged":  {(*amqp.Delivery).Ack, "second", 0},
		"dead-lettered": {(*amqp.Delivery).DeadLetter, "second", 0},
		"requeued":      {(*amqp.Delivery).Requeue, "first", 1},
		"released":      {(*amqp.Delivery).Release, "first", 1},
		"abandoned":     {(*amqp.Delivery).Abandon, "first", 1},
	}
	for end, stop := range ends {
		for how, s := range settlements {
			t.Run(end+", then "+how, func(t *testing.T) {
				b := newBroker(t)
				b.queue(t, "other", nil)
				strict := b.strict(t, "first", "second")
				consumer, in := b.consume(t, strict, amqp.Subscription{Queue: "other", Prefetch: 1})
				held := in.next(t, "first", 0)
				testtransport.Eventually(t, "both queues to be consumed", func() bool { return consumer.Active() == 2 })
				waiting, after := b.consume(t, strict)
				testtransport.Eventually(t, "the consumer that waits", func() bool { return waiting.Active() == 1 })
				stop(consumer)
				time.Sleep(100 * time.Millisecond) // the message takes its time
				if early := after.take(); len(early) > 0 || consumer.Quiet() {
					t.Errorf("%d delivered to the other consumer while the first message is on loan", len(early))
				}
				if err := s.settle(held); err != nil {
					t.Fatal(err)
				}
				if err := after.next(t, s.next, s.count).Ack(); err != nil {
					t.Fatal(err)
				}
				if late := in.take(); len(late) > 0 {
					t.Errorf("%d delivered to the consumer that ended", len(late))
				}
			})
		}
	}
}

func TestStrict_KeepsTheQueueForALoanThroughARenewal(t *testing.T) {
	b := newBroker(t)
	consumer, in := b.consume(t, b.strict(t, "first", "second"))
	held := in.next(t, "first", 0)
	consumer.Renew()
	testtransport.Eventually(t, "both sessions", func() bool { return consumer.Channels() == 2 })
	if early := in.take(); len(early) > 0 || !held.Live() || held.Ack() != nil {
		t.Fatalf("%d delivered early, live %v", len(early), held.Live())
	}
	if d := in.next(t, "second", 0); !d.Live() || d.Ack() != nil {
		t.Error("the new session ended")
	}
	testtransport.Eventually(t, "the end of the session before", func() bool { return !held.Live() && consumer.Channels() == 1 })
}

func TestStrict_DeliversNothingMoreOnceReceivingIsOff(t *testing.T) {
	settlements := map[string]struct {
		settle func(d *amqp.Delivery) error
		left   int
	}{
		"acknowledged": {(*amqp.Delivery).Ack, 1},
		"requeued":     {(*amqp.Delivery).Requeue, 2},
		"released":     {(*amqp.Delivery).Release, 2},
		"abandoned":    {(*amqp.Delivery).Abandon, 2},
	}
	for how, s := range settlements {
		t.Run(how, func(t *testing.T) {
			b := newBroker(t)
			subscription := b.strict(t)
			consumer, in := b.consume(t, subscription)
			for range 20 {
				b.fill(2)
				consumer.Receive(true)
				held := in.wait(t, 1)[0]
				consumer.Receive(false)
				if err := s.settle(held); err != nil {
					t.Fatal(err)
				}
				testtransport.Eventually(t, "the end of receiving", consumer.Quiet)
				if more := in.take(); len(more) > 0 {
					t.Fatalf("%d delivered after that", len(more))
				}
				testtransport.Eventually(t, "what is left", func() bool { return b.Ready("q") == s.left })
				if _, err := b.Channel().QueuePurge("q", false); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
