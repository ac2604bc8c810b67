package amqp_test

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/testtransport"
)

// Many goroutines settle in any order and at any time, some dead-letter, and some never settle. When the session ends, the
// broker has settled what they settled, and nothing else.
func TestConsumer_SettlesExactlyWhatWasSettled(t *testing.T) {
	const messages, prefetch, kept, rejected = 3000, 200, 50, 40
	b := newBroker(t)
	b.queue(t, "dead", nil)
	b.queue(t, "q", amqp091.Table{"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
	all := make([]amqp091.Publishing, messages)
	for i := range all {
		all[i].MessageId = strconv.Itoa(i)
	}
	b.Publish("", "q", all...)

	var settling sync.WaitGroup
	var delivered atomic.Int64
	settling.Add(messages)
	consumer := amqp.NewConsumer(b.options(t))
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: prefetch}})
	consumer.Receive(true)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		consumer.Run(ctx, func(d *amqp.Delivery) {
			if delivered.Add(1) > messages || d.Redelivered { // the broker ends the channel of a settlement that comes twice
				t.Errorf("message %s is delivered again", d.MessageID)
				return
			}
			number, _ := strconv.Atoi(d.MessageID)
			settle := d.Ack
			switch {
			case number%kept == 7: // these hold up what may be acknowledged together
				settle = func() error { return nil }
			case number%rejected == 3:
				settle = d.DeadLetter
			}
			go func() {
				defer settling.Done()
				time.Sleep(rand.N(3 * time.Millisecond)) // a handler; the order of the settlements is the point
				if err := settle(); err != nil {
					t.Errorf("settle %s: %v", d.MessageID, err)
				}
			}()
		})
	})
	settling.Wait()
	stop()
	running.Wait()
	testtransport.Eventually(t, "the dead letters", func() bool { return b.Ready("dead") == messages/rejected })
	again := map[string]bool{}
	for _, d := range b.TakeAll("q") {
		again[d.MessageId] = true
	}
	for i := range messages {
		id := strconv.Itoa(i)
		switch {
		case i%kept == 7 && !again[id]:
			t.Errorf("message %s was never settled, and the broker does not have it any more", id)
		case i%kept != 7 && again[id]:
			t.Errorf("message %s was settled, and the broker has it again", id)
		}
	}
}
