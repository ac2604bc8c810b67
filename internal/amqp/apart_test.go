package amqp_test

import (
	"context"
	"errors"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// own is a vhost of a broker that this test may break.
func own(t *testing.T) (*broker, *testbroker.Broker) {
	t.Helper()
	node := testbroker.Private(t)
	vhost := node.Vhost(t)
	u, err := url.Parse(node.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	proxy := testtransport.NewProxy(t, testtransport.Address(t, node.AMQPURL))
	return &broker{
		Broker: testtransport.Connect(t, node.URL(vhost)), proxy: proxy,
		target: amqp.Target{Address: proxy.Address, Username: u.User.Username(), Password: password, VHost: vhost},
	}, node
}

// persist publishes until the broker has confirmed a message or ctx ends, as a worker does.
func persist(ctx context.Context, publisher *amqp.Publisher, exchange, key string) error {
	for {
		err := publisher.Publish(ctx, &message.Message{Exchange: exchange, RoutingKey: key, DeliveryMode: amqp091.Persistent})
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func many(n int, f func()) *sync.WaitGroup {
	var all sync.WaitGroup
	for range n {
		all.Go(f)
	}
	return &all
}

func TestPublisher_HoldsUpNothingBesideAnExchangeItCannotUse(t *testing.T) {
	cases := map[string]func(t *testing.T, b *broker){
		"it is missing": func(*testing.T, *broker) {},
		"a right is missing": func(t *testing.T, b *broker) {
			t.Helper()
			if err := b.Channel().ExchangeDeclare("failed", "fanout", true, false, false, false, nil); err != nil {
				t.Fatal(err)
			}
			name := b.target.VHost + "-user"
			b.target.Password = testbroker.Shared(t).User(t, name, "", b.target.VHost, "", "work", ".*")
			b.target.Username = name
		},
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			b := newBroker(t)
			prepare(t, b)
			b.queue(t, "q", quorum())
			if err := b.Channel().ExchangeDeclare("work", "fanout", true, false, false, false, nil); err != nil {
				t.Fatal(err)
			}
			if err := b.Channel().QueueBind("q", "", "work", false, nil); err != nil {
				t.Fatal(err)
			}
			publisher := amqp.NewPublisher(b.options(t))
			run(t, publisher.Run)
			ctx, cancel := context.WithCancel(t.Context())
			held := many(5, func() { _ = persist(ctx, publisher, "failed", "") })
			const rounds, messages = 20, 10
			for range rounds {
				many(messages, func() {
					if err := publisher.Publish(t.Context(), &message.Message{Exchange: "work"}); err != nil {
						t.Errorf("publish beside it: %v", err)
					}
				}).Wait()
			}
			testtransport.Eventually(t, "the problem", func() bool { return len(publisher.Problems()) == 1 })
			if got := publisher.Problems()[0].Destination.Exchange; got != "failed" {
				t.Errorf("the problem is said to be that of exchange %q", got)
			}
			if ready, _ := publisher.Ready(); !ready {
				t.Error("not ready, for one exchange")
			}
			cancel()
			held.Wait()
			if got := b.Ready("q"); got != rounds*messages {
				t.Errorf("%d messages in the queue, want %d", got, rounds*messages)
			}
		})
	}
}

// silence stops the member of the queue "stuck" while beside publishes to another queue, over the channel on which messages for "stuck" went before. That
// channel has to stay open: the publisher closes one that is idle for a minute, and rabbitmqctl takes longer on a busy machine. On another channel, which
// has never used the queue, RabbitMQ would refuse at once what it leaves unconfirmed here. It returns how many messages were published beside it.
func silence(t *testing.T, b *broker, node *testbroker.Broker, beside func() error) (published int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all := many(1, func() {
		for ctx.Err() == nil {
			if err := beside(); err != nil {
				t.Errorf("publish beside the queue that loses its leader: %v", err)
				return
			}
			published++
			time.Sleep(10 * time.Millisecond)
		}
	})
	node.StopMember(t, b.target.VHost, "stuck")
	cancel()
	all.Wait()
	return published
}

// stuck is a publisher, the queues "other" and "stuck", and messages that the latter, which has lost its leader, does not confirm.
type stuck struct {
	*broker

	node      *testbroker.Broker
	publisher *amqp.Publisher
	// others is the number of messages in "other", confirmed that of those which "stuck" has confirmed since, and held waits for all of these.
	others    int
	confirmed atomic.Int64
	held      *sync.WaitGroup
}

func newStuck(t *testing.T, waiting int) *stuck {
	t.Helper()
	s := &stuck{}
	s.broker, s.node = own(t)
	s.queue(t, "stuck", quorum())
	s.queue(t, "other", quorum())
	s.publisher = amqp.NewPublisher(s.options(t))
	run(t, s.publisher.Run)
	for _, key := range []string{"stuck", "other"} {
		if err := s.publisher.Publish(t.Context(), &message.Message{RoutingKey: key}); err != nil {
			t.Fatal(err)
		}
	}
	s.others = 1 + silence(t, s.broker, s.node, func() error {
		return s.publisher.Publish(t.Context(), &message.Message{RoutingKey: "other", Headers: map[string]any{message.HeaderLane: "stuck"}})
	})
	s.held = many(waiting, func() {
		if persist(t.Context(), s.publisher, "", "stuck") == nil {
			s.confirmed.Add(1)
		}
	})
	return s
}

// again lets the queue go on, and waits for what it has to confirm.
func (s *stuck) again(t *testing.T) {
	t.Helper()
	s.node.StartMember(t, s.target.VHost, "stuck")
	s.held.Wait()
}

func TestProblems_NamesAMissingQueueWhereThereIsNoOtherWay(t *testing.T) {
	b := newBroker(t)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	gone := &message.Message{RoutingKey: "gone"}
	if err := publisher.PublishUnlessStalled(t.Context(), gone); !errors.Is(err, amqp.ErrUnroutable) {
		t.Fatalf("a message that can go elsewhere: %v", err)
	}
	if got := publisher.Problems(); len(got) != 0 {
		t.Errorf("the problems are %v, though the message can go elsewhere", got)
	}
	if err := publisher.Publish(t.Context(), gone); !errors.Is(err, amqp.ErrUnroutable) {
		t.Fatalf("a message with nowhere to go: %v", err)
	}
	if got := publisher.Problems(); len(got) != 1 || got[0].Destination.Key != "gone" || !errors.Is(got[0].Err, amqp.ErrUnroutable) {
		t.Errorf("the problems are %v", got)
	}
	b.queue(t, "gone", quorum())
	if err := publisher.Publish(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "the end of the problem", func() bool { return len(publisher.Problems()) == 0 })
}

func TestPublisher_HoldsUpNothingBesideAQueueThatDoesNotConfirm(t *testing.T) {
	const waiting, messages = 600, 1000 // many more than RabbitMQ takes from a connection when one of its channels hangs
	s := newStuck(t, waiting)
	many(messages, func() {
		if err := s.publisher.Publish(t.Context(), &message.Message{RoutingKey: "other"}); err != nil {
			t.Errorf("publish to another queue: %v", err)
		}
	}).Wait()
	if got := s.confirmed.Load(); got != 0 {
		t.Fatalf("%d confirmed by a queue without a leader", got)
	}
	testtransport.Eventually(t, "the problem", func() bool { return len(s.publisher.Problems()) == 1 })
	if got := s.publisher.Problems()[0].Destination.Key; got != "stuck" {
		t.Errorf("the problem is said to be that of %q", got)
	}
	if err := s.publisher.PublishUnlessStalled(t.Context(), &message.Message{RoutingKey: "stuck"}); !errors.Is(err, amqp.ErrStalled) {
		t.Errorf("a message that can go elsewhere: %v", err)
	}
	s.again(t)
	testtransport.Eventually(t, "the end of the problem", func() bool { return len(s.publisher.Problems()) == 0 })
	if got, other := s.Ready("stuck"), s.Ready("other"); got != 1+waiting || other != s.others+messages {
		t.Errorf("%d and %d messages, want %d and %d", got, other, 1+waiting, s.others+messages)
	}
}

func TestPublisher_RepeatsNothingConfirmedWhenASessionEnds(t *testing.T) {
	testtransport.Long(t)
	const waiting, messages = 5, 100
	s := newStuck(t, waiting)
	for range 3 {
		many(messages, func() { _ = persist(t.Context(), s.publisher, "", "other") }).Wait()
		s.proxy.Cut()
	}
	s.again(t)
	if got := s.Ready("other"); got != s.others+3*messages {
		t.Errorf("%d messages, want %d", got, s.others+3*messages)
	}
}

func TestPublisher_OutlastsAnAlarmUnderLargeBodies(t *testing.T) {
	testtransport.Long(t)
	b, node := own(t)
	b.queue(t, "q", quorum())
	options := b.options(t)
	var sessions atomic.Int64
	options.OnState = func(up bool) {
		if up {
			sessions.Add(1)
		}
	}
	publisher := amqp.NewPublisher(options)
	run(t, publisher.Run)
	testtransport.Eventually(t, "the session", func() bool { ready, _ := publisher.Ready(); return ready })
	alarm := func(watermark string) {
		t.Helper()
		if err := node.Control(t.Context(), "set_vm_memory_high_watermark", watermark); err != nil {
			t.Fatal(err)
		}
	}
	alarm("0")
	const messages = 40
	body := make([]byte, 1<<20)
	held := many(messages, func() {
		for errors.Is(publisher.Publish(t.Context(), &message.Message{RoutingKey: "q", DeliveryMode: amqp091.Persistent, Body: body}), amqp.ErrUnconfirmed) {
			time.Sleep(10 * time.Millisecond)
		}
	})
	testtransport.Eventually(t, "the alarm to be seen", func() bool { ready, _ := publisher.Ready(); return !ready })
	alarm("0.6")
	held.Wait()
	testtransport.Eventually(t, "the end of the alarm", func() bool { ready, _ := publisher.Ready(); return ready })
	if got := b.Ready("q"); got != messages || sessions.Load() != 1 {
		t.Errorf("%d messages by %d sessions, want %d by 1", got, sessions.Load(), messages)
	}
}

func TestPublisher_FindsTheMessageThatEndsTheConnection(t *testing.T) {
	testtransport.Long(t)
	b, node := own(t)
	if err := node.Control(t.Context(), "eval", "application:set_env(rabbit, frame_max, 65536)."); err != nil {
		t.Fatal(err)
	}
	b.queue(t, "q", nil)
	b.queue(t, "r", nil)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	var refused atomic.Int64
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			m := &message.Message{RoutingKey: []string{"q", "r"}[i%2]}
			if i == 30 {
				m.Headers = map[string]any{"h": string(make([]byte, 70_000))}
			}
			err := amqp.ErrUnconfirmed
			for errors.Is(err, amqp.ErrUnconfirmed) {
				err = publisher.Publish(t.Context(), m)
			}
			switch {
			case i == 30 && errors.Is(err, amqp.ErrUnpublishable):
				refused.Add(1)
			case i == 30 || err != nil:
				t.Errorf("publish of message %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if refused.Load() != 1 {
		t.Errorf("%d refused, want 1", refused.Load())
	}
}

func TestPublisher_ServesAllDestinationsAgainAfterASearch(t *testing.T) {
	testtransport.Long(t)
	b, node := own(t)
	if err := node.Control(t.Context(), "eval", "application:set_env(rabbit, frame_max, 65536)."); err != nil {
		t.Fatal(err)
	}
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	// Each goes on until all have published many, so that none leaves its channel to the others by being idle.
	const queues, most = 5, 1000
	var done atomic.Int64
	var gone atomic.Bool
	var all sync.WaitGroup
	for i := range queues {
		key := string(rune('a' + i))
		b.queue(t, key, nil)
		var published atomic.Int64
		for range 3 {
			all.Go(func() {
				for done.Load() < queues && !t.Failed() {
					err := publisher.Publish(t.Context(), &message.Message{RoutingKey: key})
					if err == nil && gone.Load() && published.Add(1) == most {
						done.Add(1)
					}
				}
			})
		}
	}
	// It is looked for, one message at a time, and does not come again.
	var err error
	for !errors.Is(err, amqp.ErrUnconfirmed) {
		err = publisher.Publish(t.Context(), &message.Message{RoutingKey: "a", Headers: map[string]any{"h": string(make([]byte, 70_000))}})
	}
	gone.Store(true)
	testtransport.Eventually(t, "all destinations to have published", func() bool { return done.Load() == queues })
	all.Wait()
}

func TestPublisher_HoldsUpNothingBehindALateConfirm(t *testing.T) {
	const messages = 1500
	b, node := own(t)
	if err := b.Channel().ExchangeDeclare("both", "headers", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	for _, queue := range []string{"stuck", "other"} {
		b.queue(t, queue, quorum())
		if err := b.Channel().QueueBind(queue, "", "both", false, amqp091.Table{"to": queue}); err != nil {
			t.Fatal(err)
		}
	}
	options := b.options(t)
	var sessions atomic.Int64
	options.OnState = func(up bool) {
		if up {
			sessions.Add(1)
		}
	}
	publisher := amqp.NewPublisher(options)
	run(t, publisher.Run)
	publish := func(to string) error {
		return publisher.Publish(t.Context(), &message.Message{Exchange: "both", DeliveryMode: amqp091.Persistent, Headers: map[string]any{"to": to}})
	}
	if err := publish("stuck"); err != nil {
		t.Fatal(err)
	}
	before := silence(t, b, node, func() error { return publish("other") })
	var confirmed atomic.Int64
	all := many(1, func() {
		if err := publish("stuck"); err != nil {
			t.Errorf("publish to the queue without a leader: %v", err)
		}
	})
	others := many(messages, func() {
		if err := publish("other"); err != nil {
			t.Errorf("publish to the other queue: %v", err)
		}
		confirmed.Add(1)
	})
	testtransport.Eventually(t, "more to be confirmed behind it than are in flight", func() bool { return confirmed.Load() > 300 })
	node.StartMember(t, b.target.VHost, "stuck")
	all.Wait()
	others.Wait()
	if got, other := b.Ready("stuck"), b.Ready("other"); got != 2 || other != before+messages || sessions.Load() != 1 {
		t.Errorf("%d and %d messages by %d sessions, want 2 and %d by 1", got, other, sessions.Load(), before+messages)
	}
}

func TestPublisher_SharesTheChannelsThatTheBrokerAllows(t *testing.T) {
	own := testbroker.Private(t)
	own.SetEnvironment(t, "channel_max", 16)
	b := brokerOf(t, own)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	testtransport.Eventually(t, "the session", func() bool { ready, _ := publisher.Ready(); return ready })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for i := range 40 {
		queue := "q" + strconv.Itoa(i)
		b.queue(t, queue, nil)
		all.Go(func() {
			if err := persist(ctx, publisher, "", queue); err != nil {
				t.Errorf("publish to %s: %v", queue, err)
			}
		})
	}
	all.Wait()
	if problems := publisher.Problems(); len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
}

// The limit max-channels of a user is not announced: RabbitMQ ends the whole connection with the channel that is too many.
func TestPublisher_TakesTurnsOnTheChannelsThatAUserMayHave(t *testing.T) {
	own := testbroker.Private(t)
	b := brokerOf(t, own)
	const allowed, destinations, messages = 6, 40, 5
	for i := range destinations {
		b.queue(t, "q"+strconv.Itoa(i), nil)
	}
	b.target.Username = "limited"
	b.target.Password = own.User(t, b.target.Username, "", b.target.VHost, "", ".*", "")
	own.LimitChannels(t, b.target.Username, allowed)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	var all sync.WaitGroup
	for i := range destinations * messages {
		all.Go(func() {
			if err := persist(t.Context(), publisher, "", "q"+strconv.Itoa(i%destinations)); err != nil {
				t.Errorf("publish: %v", err)
			}
		})
	}
	all.Wait()
	for i := range destinations {
		if got := b.Ready("q" + strconv.Itoa(i)); got < messages {
			t.Errorf("queue q%d has %d messages, want %d", i, got, messages)
		}
	}
}
