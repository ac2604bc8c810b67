package amqp_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/testtransport"
)

func quorum() amqp091.Table { return amqp091.Table{"x-queue-type": "quorum"} }

// load publishes over and over until the returned function is called, which waits for the end.
func load(publish func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for ctx.Err() == nil {
			publish()
		}
	})
	return func() {
		cancel()
		publishing.Wait()
	}
}

// backlog keeps messages waiting in the queue q.
func (b *broker) backlog() {
	if b.Ready("q") < 2_000 {
		b.fill(200)
	}
}

// flow publishes to the queue q at most 1,000 messages a second.
func (b *broker) flow() {
	b.fill(10)
	time.Sleep(10 * time.Millisecond)
}

// crew handles messages, each for a few milliseconds, and counts them.
type crew struct {
	handled, redelivered, onLoan atomic.Int64
	// alone counts the deliveries in a row that were the only one on loan; most is the most on loan.
	alone, most atomic.Int64
}

func (c *crew) deliver(d *amqp.Delivery) {
	if d.Redelivered {
		c.redelivered.Add(1)
	}
	on := c.onLoan.Add(1)
	if on == 1 {
		c.alone.Add(1)
	} else {
		c.alone.Store(0)
	}
	for most := c.most.Load(); on > most; most = c.most.Load() {
		if c.most.CompareAndSwap(most, on) {
			break
		}
	}
	time.AfterFunc(5*time.Millisecond, func() {
		c.onLoan.Add(-1)
		c.handled.Add(1)
		_ = d.Ack()
	})
}

func TestConsumer_CancelsUnderLoadWithoutRedeliveries(t *testing.T) {
	cases := map[string]struct {
		prefetch, cancels int
		publish           func(b *broker)
	}{
		"a backlog that fills the consumer": {100, 25, (*broker).backlog},
		"a flow that does not fill it soon": {2_000, 5, (*broker).flow},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t)
			b.queue(t, "q", quorum())
			all := &crew{}
			stop := load(func() { c.publish(b) })
			var cancelling sync.WaitGroup
			for range 2 {
				consumer := amqp.NewConsumer(b.options(t))
				consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: c.prefetch}})
				run(t, func(ctx context.Context) { consumer.Run(ctx, all.deliver) })
				cancelling.Go(func() {
					for range c.cancels {
						before := all.handled.Load()
						consumer.Receive(true)
						testtransport.Eventually(t, "messages", func() bool { return consumer.Active() == 1 && all.handled.Load() > before+50 })
						consumer.Receive(false)
						testtransport.Eventually(t, "the cancel", consumer.Quiet)
					}
					consumer.Receive(true)
				})
			}
			cancelling.Wait()
			stop()
			testtransport.Eventually(t, "the rest", func() bool { return b.Ready("q") == 0 && all.onLoan.Load() == 0 })
			if n := all.redelivered.Load(); n != 0 {
				t.Errorf("%d of %d messages count as redelivered", n, all.handled.Load())
			}
		})
	}
}

func TestConsumer_FollowsAPrefetchThatChangesUnderLoad(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", quorum())
	stop := load(b.backlog)
	all := &crew{}
	consumer := amqp.NewConsumer(b.options(t))
	consumer.Receive(true)
	run(t, func(ctx context.Context) { consumer.Run(ctx, all.deliver) })
	for range 5 {
		consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 50}})
		testtransport.Eventually(t, "many on loan", func() bool { return all.onLoan.Load() > 25 })
		consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 1}})
		testtransport.Eventually(t, "one on loan at a time", func() bool { return all.alone.Load() > 50 })
	}
	stop()
	if all.most.Load() > 100 || all.redelivered.Load() != 0 {
		t.Errorf("at most %d on loan, %d redelivered; want twice the prefetch, and none", all.most.Load(), all.redelivered.Load())
	}
}

func TestConsumer_SendsSettlementsThatItKeptForACancel(t *testing.T) {
	// The broker ends the channel of a settlement that comes twice, before it delivers anything more there.
	goesOn := func(t *testing.T, b *broker, consumer *amqp.Consumer, in *inbox, held []*amqp.Delivery) {
		t.Helper()
		consumer.Receive(true)
		b.fill(3)
		for _, d := range in.wait(t, 3) { // as many as the prefetch, so nothing else is on loan
			if d.Redelivered || !held[0].Live() || d.Ack() != nil {
				t.Errorf("redelivered %v, and the session stands: %v", d.Redelivered, held[0].Live())
			}
		}
	}
	cases := map[string]func(t *testing.T, b *broker, consumer *amqp.Consumer, in *inbox, held []*amqp.Delivery){
		"after the cancel": func(t *testing.T, b *broker, consumer *amqp.Consumer, in *inbox, held []*amqp.Delivery) {
			t.Helper()
			testtransport.Eventually(t, "the cancel", consumer.Quiet)
			if left := b.Ready("q"); left != 0 {
				t.Errorf("%d messages came back", left)
			}
			goesOn(t, b, consumer, in, held)
		},
		"when receiving is turned on again": goesOn,
		"when the process stops":            func(*testing.T, *broker, *amqp.Consumer, *inbox, []*amqp.Delivery) {},
	}
	for name, then := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t)
			b.queue(t, "q", quorum())
			b.fill(2)
			consumer, in := amqp.NewConsumer(b.options(t)), &inbox{}
			consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 3}})
			consumer.Receive(true)
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { consumer.Run(ctx, in.deliver) })
			end := func() {
				cancel()
				running.Wait()
			}
			defer end()
			held := in.wait(t, 2)
			consumer.Receive(false)
			for _, d := range held {
				if err := d.Ack(); err != nil {
					t.Error(err)
				}
			}
			then(t, b, consumer, in, held)
			end()
			if left := b.Ready("q"); left != 0 {
				t.Errorf("%d messages came back", left)
			}
		})
	}
}

// What is settled when the process is about to stop, and not sent yet, is sent before its channel is closed.
func TestConsumer_SendsTheLastSettlementsWhenItStops(t *testing.T) {
	const queues = 12 // each sees the end of the process before its settlement, or the other way round
	b := newBroker(t)
	subscriptions := make([]amqp.Subscription, queues)
	for i := range subscriptions {
		name := fmt.Sprint("q", i)
		b.queue(t, name, quorum())
		b.Publish("", name, amqp091.Publishing{})
		subscriptions[i] = amqp.Subscription{Queue: name, Prefetch: 2}
	}
	consumer, in, stands := amqp.NewConsumer(b.options(t)), &inbox{}, make(chan struct{})
	consumer.Subscribe(subscriptions)
	consumer.Receive(true)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		consumer.Run(ctx, func(d *amqp.Delivery) {
			in.deliver(d)
			<-stands // no channel sends a settlement meanwhile
		})
	})
	for _, d := range in.wait(t, queues) {
		if err := d.Ack(); err != nil {
			t.Error(err)
		}
	}
	cancel()
	close(stands)
	running.Wait()
	for _, s := range subscriptions {
		if left := b.Ready(s.Queue); left != 0 {
			t.Errorf("the message of queue %s came back", s.Queue)
		}
	}
}
