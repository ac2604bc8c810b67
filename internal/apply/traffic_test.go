package apply_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
)

// traffic is what producers and workers do on a stage while it changes, and a ledger of what became of each message.
type traffic struct {
	s *stage
	// took and done count messages that the broker took and that a worker has dealt with, refused those that came back.
	took, done, refused atomic.Int64
	mu                  sync.Mutex
	ledger              map[string]string
	workers             sync.WaitGroup
	// publishers end with stop, or when their exchange is gone.
	publishers sync.WaitGroup
	stop       chan struct{}
}

// States of a message in the ledger.
const (
	confirmed = "confirmed"
	returned  = "returned"
	handled   = "handled"
)

// maxBacklog is how far the publishers may be ahead of the workers.
const maxBacklog = 2000

// manyReturned is after how many messages that came back the publishers slow down: nothing new is to be seen then.
const manyReturned = 10_000

func newTraffic(s *stage) *traffic {
	tr := &traffic{s: s, ledger: map[string]string{}, stop: make(chan struct{})}
	s.t.Cleanup(tr.end)
	return tr
}

// end stops the publishers and waits for their last confirms.
func (tr *traffic) end() {
	select {
	case <-tr.stop:
	default:
		close(tr.stop)
	}
	tr.publishers.Wait()
}

// note enters a state; of two the one that decides more stays.
func (tr *traffic) note(id, state string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if tr.ledger[id] != handled && (tr.ledger[id] != returned || state == handled) {
		tr.ledger[id] = state
	}
}

// count is the number of messages in a state.
func (tr *traffic) count(state string) (n int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, is := range tr.ledger {
		if is == state {
			n++
		}
	}
	return n
}

// lost are the messages that the broker took, that nobody has handled, and that are in no queue any more. It empties all
// queues that are left.
func (tr *traffic) lost() []string {
	tr.s.t.Helper()
	tr.end()
	for name := range tr.s.snapshot().Queues {
		tr.takeOut(name)
	}
	var lost []string
	for _, id := range slices.Sorted(maps.Keys(tr.ledger)) {
		if tr.ledger[id] == confirmed {
			lost = append(lost, id)
		}
	}
	return lost
}

// takeOut takes all messages out of a queue, as a person does.
func (tr *traffic) takeOut(queue string) {
	tr.s.t.Helper()
	if strings.HasSuffix(queue, compile.QuarantineSuffix) {
		tr.takeOutQuarantine(queue)
		return
	}
	for {
		delivery, ok, err := tr.s.amqp.Get(queue, true)
		if err != nil {
			tr.s.t.Fatal(err)
		}
		if !ok {
			return
		}
		tr.note(delivery.MessageId, handled)
	}
}

// takeOutQuarantine takes them as the only consumer, or lets the worker that is it come to an end.
func (tr *traffic) takeOutQuarantine(queue string) {
	tr.s.t.Helper()
	state := tr.passive(queue)
	if state.Consumers > 0 {
		tr.s.eventually("the workers to handle the quarantined messages", func() bool { return tr.passive(queue).Messages == 0 })
		return
	}
	tr.s.handle(queue, state.Messages, func(d amqp091.Delivery) error {
		tr.note(d.MessageId, handled)
		return d.Ack(false)
	})
}

func (tr *traffic) passive(queue string) amqp091.Queue {
	tr.s.t.Helper()
	state, err := tr.s.amqp.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		tr.s.t.Fatal(err)
	}
	return state
}

// publisher publishes to an exchange with each of the keys in turn, with confirms and mandatory, as fast as the broker
// confirms; slowly once its messages come back, or where the workers do not keep up.
func (tr *traffic) publisher(name, exchange string, keys ...string) {
	tr.s.t.Helper()
	channel := tr.s.channel()
	returns := channel.NotifyReturn(make(chan amqp091.Return, 1024))
	refused := make(chan struct{})
	tr.publishers.Go(func() {
		defer close(refused)
		for back := range returns {
			tr.refused.Add(1)
			tr.note(back.MessageId, returned)
		}
	})
	tr.publishers.Go(func() {
		defer func() {
			_ = channel.Close()
			<-refused // All returns are in the ledger.
		}()
		tr.publish(channel, name, exchange, keys)
	})
}

func (tr *traffic) publish(channel *amqp091.Channel, name, exchange string, keys []string) {
	type pending struct {
		id      string
		confirm *amqp091.DeferredConfirmation
	}
	window := make(chan pending, 512)
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		for p := range window {
			if p.confirm.Wait() {
				tr.took.Add(1)
				tr.note(p.id, confirmed)
			}
		}
	}()
	defer func() { <-settled }()
	defer close(window)
	pace, breath := time.NewTicker(20*time.Millisecond), time.NewTicker(time.Millisecond)
	defer pace.Stop()
	defer breath.Stop()
	for n := 0; ; n++ {
		id := fmt.Sprintf("%s-%06d", name, n)
		confirm, err := channel.PublishWithDeferredConfirm(exchange, keys[n%len(keys)], true, false, amqp091.Publishing{
			MessageId: id, DeliveryMode: amqp091.Persistent,
		})
		if err != nil {
			return // The exchange is gone.
		}
		select {
		case window <- pending{id, confirm}:
		case <-tr.stop:
			window <- pending{id, confirm}
			return
		}
		switch {
		case tr.refused.Load() > manyReturned:
			<-pace.C
		case tr.took.Load()-tr.done.Load() > maxBacklog:
			<-breath.C
		}
	}
}

// worker consumes queues as Redrive's does: of its messages some are parked in a lane first, some are quarantined messages, and some
// fail.
func (tr *traffic) worker(ctx context.Context, queues ...string) {
	tr.s.t.Helper()
	deliveries, out := tr.s.channel(), tr.s.channel()
	if err := deliveries.Qos(20, 0, false); err != nil {
		tr.s.t.Fatal(err)
	}
	all := make(chan amqp091.Delivery)
	var consumers sync.WaitGroup
	for _, queue := range queues {
		from, err := deliveries.ConsumeWithContext(ctx, queue, queue, false, false, false, false, nil)
		if err != nil {
			tr.s.t.Fatal(err)
		}
		consumers.Go(func() {
			for delivery := range from {
				all <- delivery
			}
		})
	}
	go func() {
		consumers.Wait()
		close(all)
	}()
	tr.workers.Go(func() {
		defer func() { _ = deliveries.Close() }()
		returns := out.NotifyReturn(make(chan amqp091.Return, 1))
		n := 0
		for delivery := range all {
			n++
			tr.settle(ctx, delivery, out, returns, n)
		}
	})
}

// settle handles a message, parks it or lets it fail. What cannot be published stays unsettled.
func (tr *traffic) settle(ctx context.Context, d amqp091.Delivery, out *amqp091.Channel, returns <-chan amqp091.Return, n int) {
	publish := func(exchange, key string, headers amqp091.Table) bool {
		confirm, err := out.PublishWithDeferredConfirm(exchange, key, true, false, amqp091.Publishing{
			MessageId: d.MessageId, DeliveryMode: amqp091.Persistent, Headers: headers,
		})
		if err != nil {
			return false
		}
		acked, err := confirm.WaitContext(context.WithoutCancel(ctx))
		select {
		case <-returns: // It comes before the confirm.
			return false
		default:
			return err == nil && acked
		}
	}
	_, parked := d.Headers[message.HeaderLane]
	switch {
	case !parked && n%40 == 0:
		if !publish("async.fallback", d.ConsumerTag, amqp091.Table{message.HeaderLane: "1s"}) {
			return
		}
	case n%30 == 2 && !strings.HasSuffix(d.ConsumerTag, compile.QuarantineSuffix):
		if !publish("async.return", d.ConsumerTag+compile.QuarantineSuffix, nil) {
			return
		}
	case n%50 == 1:
		if !publish("async.failed", d.RoutingKey, nil) {
			return
		}
	default:
		tr.note(d.MessageId, handled)
	}
	tr.done.Add(1)
	_ = d.Ack(false)
}

func checkNothingLost(t *testing.T, tr *traffic) {
	t.Helper()
	lost := tr.lost()
	took := tr.count(handled) + len(lost)
	t.Logf("the broker kept %d messages and returned %d", took, tr.count(returned))
	if len(lost) > 0 {
		t.Errorf("%d of %d confirmed messages are lost: %v", len(lost), took, lost[:min(len(lost), 20)])
	}
	if took < 500 || tr.count(returned) == 0 {
		t.Error("nothing was published before the queues went, or after")
	}
}
