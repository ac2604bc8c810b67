package amqp_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
)

// holder has messages in hand for a while, as a handler that takes its time, and gives back those that had no room.
type holder struct {
	room *amqp.Room
	hold func(id string) time.Duration
	// changed are the subscriptions that follow each other; nil where they stay.
	changed <-chan []amqp.Subscription

	back atomic.Int64
	done chan string

	mu          sync.Mutex
	bytes, most int64
}

// count counts what is in hand.
func (h *holder) count(bytes int) {
	h.room.Add(int64(bytes))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bytes += int64(bytes)
	h.most = max(h.most, h.bytes)
}

func (h *holder) take(ctx context.Context, t *testing.T, d *amqp.Delivery) {
	t.Helper()
	if d.NoRoom {
		h.back.Add(1)
		if len(d.Body) > 0 || d.LeftOut == 0 {
			t.Errorf("a message without room has a body of %d bytes, and %d are left out", len(d.Body), d.LeftOut)
		}
		h.room.Await(ctx, d.LeftOut)
		if err := d.GiveBack(); err != nil {
			t.Error(err)
		}
		return
	}
	time.Sleep(h.hold(d.MessageID))
	if err := d.Ack(); err != nil {
		t.Error(err)
	}
	h.count(-len(d.Body))
	h.done <- d.MessageID
}

// run consumes until so many different messages were handled, and counts how often the session began.
func (h *holder) run(t *testing.T, b *broker, subscriptions []amqp.Subscription, messages int) {
	t.Helper()
	options := b.options(t)
	options.Room = h.room
	var sessions atomic.Int64
	options.OnState = func(up bool) {
		if up {
			sessions.Add(1)
		}
	}
	consumer := amqp.NewConsumer(options)
	consumer.Subscribe(subscriptions)
	consumer.Receive(true)
	var handling sync.WaitGroup
	defer handling.Wait()
	run(t, func(ctx context.Context) {
		consumer.Run(ctx, func(d *amqp.Delivery) {
			h.count(len(d.Body))
			handling.Go(func() { h.take(ctx, t, d) })
		})
	})
	seen := map[string]bool{}
	timeout := time.After(3 * time.Minute)
	for len(seen) < messages {
		select {
		case id := <-h.done:
			if seen[id] {
				t.Errorf("message %s was handled twice", id)
			}
			seen[id] = true
		case next := <-h.changed:
			consumer.Subscribe(next)
			time.Sleep(50 * time.Millisecond)
		case <-timeout:
			t.Fatalf("%d messages were handled, want %d", len(seen), messages)
		}
	}
	if n := sessions.Load(); n != 1 {
		t.Errorf("%d sessions, want one: the broker has waited", n)
	}
	t.Logf("%d messages, %d times there was no room, at most %d bytes", messages, h.back.Load(), h.most)
}

// Large messages behind small ones, of which many may be on loan, took 345 MiB where 64 were allowed.
func TestConsumer_GetsMessagesAgainWhenThereIsRoom(t *testing.T) {
	b := newBroker(t)
	const queues, size, limit = 6, 600_000, 1 << 20
	var subscriptions []amqp.Subscription
	for i := range queues {
		name := "q" + strconv.Itoa(i)
		b.queue(t, name, amqp091.Table{"x-queue-type": "quorum", "x-single-active-consumer": i == 0})
		b.Publish("", name, amqp091.Publishing{MessageId: name, Body: make([]byte, size)})
		b.Publish("", name, amqp091.Publishing{MessageId: name + " small", Body: make([]byte, 10)})
		subscriptions = append(subscriptions, amqp.Subscription{Queue: name, Prefetch: 20, Strict: i == 0})
	}
	var first atomic.Bool
	h := &holder{room: amqp.NewRoom(limit), done: make(chan string, 100), hold: func(id string) time.Duration {
		// Which queue the broker serves first is chance, and behind the last one nobody would wait.
		if !strings.HasSuffix(id, "small") && first.CompareAndSwap(false, true) {
			return 20 * time.Second // longer than room is waited for
		}
		return 100 * time.Millisecond
	}}
	h.run(t, b, subscriptions, 2*queues)
	if h.back.Load() == 0 {
		t.Error("no message was without room: the test shows nothing")
	}
	if h.most > limit {
		t.Errorf("%d bytes in hand, want at most %d", h.most, limit)
	}
}

// RabbitMQ ends a connection to which it can send nothing for 15 s, and everything on loan comes again as if the worker had crashed.
func TestRoom_KeepsTheSessionThroughSuccessiveWaits(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", amqp091.Table{"x-queue-type": "quorum"})
	const messages, size = 24, 1 << 20
	for i := range messages {
		b.Publish("", "q", amqp091.Publishing{MessageId: strconv.Itoa(i), Body: make([]byte, size)})
	}
	h := &holder{room: amqp.NewRoom(4 * size), done: make(chan string, messages), hold: func(string) time.Duration { return 7 * time.Second }}
	h.run(t, b, []amqp.Subscription{{Queue: "q", Prefetch: 100}}, messages)
	if h.back.Load() > messages {
		t.Errorf("%d times a message of %d was given back, want each to wait there for its room", h.back.Load(), messages)
	}
}

// Hundreds of small messages are read at once. While each of them waited for room of its own, nothing was read for minutes.
func TestRoom_KeepsTheSessionUnderSmallMessages(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", amqp091.Table{"x-queue-type": "quorum"})
	const size, large, small = 1 << 20, 4, 30
	const messages = 2*large + small
	for i := range messages {
		body := make([]byte, size)
		if i >= large && i < large+small {
			body = body[:24<<10] // those that come first have room, an eighth of it, and the others have not
		}
		b.Publish("", "q", amqp091.Publishing{MessageId: strconv.Itoa(i), Body: body})
	}
	h := &holder{room: amqp.NewRoom(large * size), done: make(chan string, messages), hold: func(id string) time.Duration {
		if i, _ := strconv.Atoi(id); i < large {
			return 25 * time.Second
		}
		return 0
	}}
	h.run(t, b, []amqp.Subscription{{Queue: "q", Prefetch: 100}}, messages)
}

// The broker answers a change of a prefetch behind the bodies that it has sent. Who waited for the answer took no deliveries, so that no
// room came free, nothing was read any more, and after some seconds as much again: three times what was allowed.
func TestRoom_BoundsWhatIsReadWhileAPrefetchChanges(t *testing.T) {
	b := newBroker(t)
	const queues, messages, size, limit = 20, 12, 512 << 10, 8 << 20
	subscriptions := make([]amqp.Subscription, queues)
	for i := range subscriptions {
		name := "q" + strconv.Itoa(i)
		b.queue(t, name, amqp091.Table{"x-queue-type": "classic"})
		for j := range messages {
			b.Publish("", name, amqp091.Publishing{MessageId: name + " " + strconv.Itoa(j), Body: make([]byte, size)})
		}
		subscriptions[i] = amqp.Subscription{Queue: name, Prefetch: 200}
	}
	changed := make(chan []amqp.Subscription)
	ended := make(chan struct{})
	go func() {
		defer close(changed)
		for prefetch := 10; ; prefetch = 210 - prefetch {
			next := slices.Clone(subscriptions)
			for i := range next {
				next[i].Prefetch = prefetch
			}
			select {
			case changed <- next:
			case <-ended:
				return
			}
		}
	}()
	h := &holder{room: amqp.NewRoom(limit), done: make(chan string, queues*messages), hold: func(string) time.Duration { return 200 * time.Millisecond }}
	h.changed = changed
	h.run(t, b, subscriptions, queues*messages)
	close(ended)
	// A body that takes seconds from the socket to here, as on a busy machine, is taken to be dropped, and gives its room to another one.
	if h.most > limit*5/4 {
		t.Errorf("%d bytes were in hand, of %d", h.most, limit)
	}
}
