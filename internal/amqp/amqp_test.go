package amqp_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"log/slog"
	"net/url"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

func TestMain(m *testing.M) {
	// The tests wait for the broker, and not for a processor. The command line still decides.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	testbroker.Main(m)
}

// broker is a vhost behind a proxy that can be cut, and a plain connection to it.
type broker struct {
	*testtransport.Broker
	proxy  *testtransport.Proxy
	target amqp.Target
}

func newBroker(t *testing.T) *broker {
	t.Helper()
	t.Parallel() // Each has its vhost.
	return brokerOf(t, testbroker.Shared(t))
}

// newBrokerAlone is newBroker for a test that looks at the whole process, or in which others would take the time that it measures.
func newBrokerAlone(t *testing.T) *broker {
	t.Helper()
	return brokerOf(t, testbroker.Shared(t))
}

func brokerOf(t *testing.T, shared *testbroker.Broker) *broker {
	t.Helper()
	vhost := shared.Vhost(t)
	proxy := testtransport.NewProxy(t, testtransport.Address(t, shared.AMQPURL))
	u, err := url.Parse(shared.AMQPURL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	return &broker{
		Broker: testtransport.Connect(t, shared.URL(vhost)),
		proxy:  proxy,
		target: amqp.Target{Address: proxy.Address, Username: u.User.Username(), Password: password, VHost: vhost},
	}
}

func (b *broker) options(t *testing.T) amqp.Options {
	t.Helper()
	return amqp.Options{
		Source: func() (amqp.Target, error) { return b.target, nil },
		Name:   t.Name(),
		Log:    slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

func (b *broker) queue(t *testing.T, name string, arguments amqp091.Table) {
	t.Helper()
	if _, err := b.Channel().QueueDeclare(name, true, false, false, false, arguments); err != nil {
		t.Fatal(err)
	}
}

// run runs f until the test ends, and waits for its end.
func run(t *testing.T, f func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
}

// All of them are in flight together, so returns have to be told apart: by the messages' own ids, without one, and where all have the same.
func TestPublisher_TellsRoutedFromUnroutable(t *testing.T) {
	for _, c := range []struct {
		name string
		id   func(i int) string
	}{
		{name: "Ids", id: strconv.Itoa},
		{name: "NoId", id: func(int) string { return "" }},
		{name: "OneIdForAll", id: func(int) string { return "same" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBroker(t)
			b.queue(t, "q", nil)
			publisher := amqp.NewPublisher(b.options(t))
			run(t, publisher.Run)
			b.publishEvenOnes(t, publisher, func(i int) *message.Message {
				return &message.Message{MessageID: c.id(i), Body: bytes.Repeat([]byte("x"), i%4*70_000)}
			})
		})
	}
}

// publishEvenOnes publishes 200 messages together, all for the same destination, each second one of which comes back from it. It is told of these, and the
// others are in the queue q.
func (b *broker) publishEvenOnes(t *testing.T, publisher *amqp.Publisher, made func(i int) *message.Message) {
	t.Helper()
	var all sync.WaitGroup
	for i := range 200 {
		m, want := made(i), error(nil)
		if m.RoutingKey = "q"; i%2 == 1 {
			m.RoutingKey, want = "nowhere", amqp.ErrUnroutable
		}
		if m.Headers == nil {
			m.Headers = map[string]any{}
		}
		m.Headers[message.HeaderLane] = "one for all"
		all.Go(func() {
			if err := publisher.Publish(t.Context(), m); !errors.Is(err, want) {
				t.Errorf("publish to %q: %v, want %v", m.RoutingKey, err, want)
			}
		})
	}
	all.Wait()
	if got := b.Ready("q"); got != 100 {
		t.Errorf("%d messages in the queue, want 100", got)
	}
}

// What came back was read whole, and more than once as it grew, beside all that messages on loan may take.
func TestPublisher_TakesLittleMemoryForAMessageThatComesBack(t *testing.T) {
	b := newBrokerAlone(t)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	m := &message.Message{RoutingKey: "nowhere", MessageID: "a", Body: make([]byte, 12<<20)}
	for range 2 { // the first one makes the session
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if err := publisher.Publish(t.Context(), m); !errors.Is(err, amqp.ErrUnroutable) {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 6<<20 {
			t.Errorf("%d MiB were taken for a message of 12 MiB", taken>>20)
		}
	}
}

func TestPublisher_KeepsPropertiesAndHeaderTypes(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	at := time.Unix(1_700_000_000, 0)
	sent := &message.Message{
		RoutingKey: "q", ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: 2, Priority: 3, CorrelationID: "c",
		ReplyTo: "r", Expiration: "600000", MessageID: "m", Timestamp: at, Type: "t", AppID: "a",
		Headers: map[string]any{
			"int32": int32(7), "nested": map[string]any{"list": []any{"x", map[string]any{"y": int64(1)}}}, "time": at,
			"decimal": message.Decimal{Scale: 2, Value: -5}, "decimals": []any{map[string]any{"d": message.Decimal{Value: 7}}},
		},
		Body: []byte("body"),
	}
	if err := publisher.Publish(t.Context(), sent); err != nil {
		t.Fatal(err)
	}
	got := b.Take("q")
	if got.ContentType != sent.ContentType || got.ContentEncoding != sent.ContentEncoding || got.Priority != 3 || got.CorrelationId != "c" ||
		got.ReplyTo != "r" || got.Expiration != "600000" || got.MessageId != "m" || !got.Timestamp.Equal(at) || got.Type != "t" || got.AppId != "a" {
		t.Errorf("properties changed on the way: %+v", got)
	}
	if got.Headers["int32"] != int32(7) {
		t.Errorf("int32 arrived as %T", got.Headers["int32"])
	}
	if want := (amqp091.Decimal{Scale: 2, Value: -5}); got.Headers["decimal"] != want {
		t.Errorf("the decimal arrived as %#v", got.Headers["decimal"])
	}
	if want := []any{amqp091.Table{"d": amqp091.Decimal{Value: 7}}}; !reflect.DeepEqual(got.Headers["decimals"], want) {
		t.Errorf("the decimals arrived as %#v", got.Headers["decimals"])
	}
	nested, _ := got.Headers["nested"].(amqp091.Table)
	list, _ := nested["list"].([]any)
	if len(list) != 2 {
		t.Errorf("nested table arrived as %#v", got.Headers["nested"])
	}
}

func TestPublisher_WaitsForABrokerThatIsAway(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	b.proxy.Refuse(true)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := publisher.Publish(short, &message.Message{RoutingKey: "q"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("publish without a broker: %v", err)
	}
	if ready, _ := publisher.Ready(); ready {
		t.Error("ready without a broker")
	}
	b.proxy.Refuse(false)
	if err := publisher.Publish(t.Context(), &message.Message{RoutingKey: "q"}); err != nil {
		t.Fatalf("publish after the broker came: %v", err)
	}
}

func TestPublisher_AnswersAllWhenTheConnectionIsCut(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	const messages = 2000
	var confirmed atomic.Int64
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range messages / 20 {
				for {
					err := publisher.Publish(t.Context(), &message.Message{RoutingKey: "q"})
					if err == nil {
						confirmed.Add(1)
						break
					}
					if !errors.Is(err, amqp.ErrUnconfirmed) {
						t.Errorf("publish: %v", err)
						return
					}
				}
			}
		})
	}
	for _, at := range []int64{100, 500, 900} {
		testtransport.Eventually(t, "publishes", func() bool { return confirmed.Load() >= at })
		b.proxy.Cut()
	}
	all.Wait()
	if got := b.Ready("q"); got < messages {
		t.Errorf("%d of %d confirmed messages are in the queue", got, messages)
	}
}

func TestPublisher_GoesOnAfterAMissingExchange(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	if err := publisher.Publish(t.Context(), &message.Message{Exchange: "missing", RoutingKey: "q"}); !errors.Is(err, amqp.ErrUnconfirmed) {
		t.Fatalf("publish to a missing exchange: %v", err)
	}
	if err := publisher.Publish(t.Context(), &message.Message{RoutingKey: "q"}); err != nil {
		t.Fatal(err)
	}
}

func TestPublisher_RefusesOnlyTheMessageThatAMQPCannotCarry(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	odd := &message.Message{RoutingKey: "q", Headers: map[string]any{"odd": struct{}{}}}
	if err := publisher.Publish(t.Context(), odd); !errors.Is(err, amqp.ErrUnpublishable) {
		t.Fatalf("publish of an odd header: %v", err)
	}
	if err := publisher.Publish(t.Context(), &message.Message{RoutingKey: "q"}); err != nil {
		t.Fatal(err)
	}
}

// inbox collects deliveries.
type inbox struct {
	mu  sync.Mutex
	all []*amqp.Delivery
}

func (i *inbox) deliver(d *amqp.Delivery) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.all = append(i.all, d)
}

func (i *inbox) take() []*amqp.Delivery {
	i.mu.Lock()
	defer i.mu.Unlock()
	all := i.all
	i.all = nil
	return all
}

func (i *inbox) wait(t *testing.T, n int) []*amqp.Delivery {
	t.Helper()
	var got []*amqp.Delivery
	testtransport.Eventually(t, "deliveries", func() bool {
		got = append(got, i.take()...)
		return len(got) >= n
	})
	return got
}

func (b *broker) consume(t *testing.T, subscriptions ...amqp.Subscription) (*amqp.Consumer, *inbox) {
	t.Helper()
	consumer, in := amqp.NewConsumer(b.options(t)), &inbox{}
	consumer.Subscribe(subscriptions)
	consumer.Receive(true)
	run(t, func(ctx context.Context) { consumer.Run(ctx, in.deliver) })
	return consumer, in
}

func (b *broker) fill(n int) {
	messages := make([]amqp091.Publishing, n)
	b.Publish("", "q", messages...)
}

func TestConsumer_BoundsLoansByThePrefetch(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	b.fill(10)
	_, in := b.consume(t, amqp.Subscription{Queue: "q", Prefetch: 4})
	got := in.wait(t, 4)
	testtransport.Eventually(t, "the rest to stay", func() bool { return b.Ready("q") == 6 })
	for _, d := range got {
		if err := d.Ack(); err != nil {
			t.Fatal(err)
		}
	}
	if next := in.wait(t, 4); len(got)+len(next) != 8 {
		t.Errorf("%d and %d delivered, want 4 and 4", len(got), len(next))
	}
}

func TestConsumer_KeepsLoansWhileReceivingIsPaused(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	b.fill(6)
	consumer, in := b.consume(t, amqp.Subscription{Queue: "q", Prefetch: 2})
	held := in.wait(t, 2)
	consumer.Receive(false)
	testtransport.Eventually(t, "the consumer's end", func() bool { return consumer.Active() == 0 })
	for _, d := range held {
		if !d.Live() || d.Ack() != nil {
			t.Error("a loan did not outlive the pause")
		}
	}
	if got := in.take(); len(got) != 0 || b.Ready("q") != 4 {
		t.Errorf("%d delivered while paused, %d left, want 0 and 4", len(got), b.Ready("q"))
	}
	consumer.Receive(true)
	for _, d := range in.wait(t, 2) {
		if d.Redelivered {
			t.Error("a message counts as redelivered after a pause")
		}
	}
}

func TestDelivery_SettlesNothingElseWhenItIsLate(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", amqp091.Table{"x-queue-type": "quorum"})
	b.fill(1)
	_, in := b.consume(t, amqp.Subscription{Queue: "q", Prefetch: 1})
	slow := in.wait(t, 1)[0]
	b.proxy.Cut()
	again := in.wait(t, 1)[0]
	if !again.Redelivered || !again.Live() || slow.Live() {
		t.Fatalf("redelivered %v, live %v and %v", again.Redelivered, again.Live(), slow.Live())
	}
	if err := slow.Ack(); !errors.Is(err, amqp.ErrSessionEnded) {
		t.Fatalf("late ack: %v", err)
	}
	if err := again.Ack(); err != nil {
		t.Fatal(err)
	}
}

func TestConsumer_TakesUpAMissingQueueWhenItComes(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	_, in := b.consume(t, amqp.Subscription{Queue: "later", Prefetch: 1}, amqp.Subscription{Queue: "q", Prefetch: 1})
	b.fill(1)
	if err := in.wait(t, 1)[0].Ack(); err != nil {
		t.Fatal(err)
	}
	b.queue(t, "later", nil)
	b.Publish("", "later", amqp091.Publishing{})
	if d := in.wait(t, 1)[0]; d.Queue != "later" {
		t.Errorf("delivered from %q", d.Queue)
	}
}

func TestConsumer_ConsumesADeletedQueueThatComesBack(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	consumer, in := b.consume(t, amqp.Subscription{Queue: "q", Prefetch: 1})
	testtransport.Eventually(t, "the consumer", func() bool { return consumer.Active() == 1 })
	if _, err := b.Channel().QueueDelete("q", false, false, false); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "the cancel", func() bool { return consumer.Active() == 0 })
	b.queue(t, "q", nil)
	b.fill(1)
	in.wait(t, 1)
}

func TestConsumer_LeavesAnUnsubscribedQueueOnceLoansAreSettled(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	b.fill(2)
	consumer, in := b.consume(t, amqp.Subscription{Queue: "q", Prefetch: 1})
	loan := in.wait(t, 1)[0]
	consumer.Subscribe(nil)
	testtransport.Eventually(t, "the consumer's end", func() bool { return consumer.Active() == 0 })
	if err := loan.Ack(); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "the session's end", func() bool { return !loan.Live() })
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 1}})
	if again := in.wait(t, 1)[0]; again.Redelivered {
		t.Error("the message left behind counts as redelivered")
	}
}

func TestPublisher_UsesNewCredentialsInTheNextSession(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	right := b.target
	var mu sync.Mutex
	current := right
	current.Password = "not-the-password"
	var log strings.Builder
	options := b.options(t)
	options.Log = slog.New(slog.NewTextHandler(&locked{w: &log, mu: &mu}, nil))
	options.Source = func() (amqp.Target, error) {
		mu.Lock()
		defer mu.Unlock()
		return current, nil
	}
	publisher := amqp.NewPublisher(options)
	run(t, publisher.Run)
	text := func() string {
		mu.Lock()
		defer mu.Unlock()
		return log.String()
	}
	testtransport.Eventually(t, "the refusal", func() bool { return strings.Contains(text(), "retryIn") })
	mu.Lock()
	current = right
	mu.Unlock()
	if err := publisher.Publish(t.Context(), &message.Message{RoutingKey: "q"}); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text(), "not-the-password") {
		t.Error("the log holds the password")
	}
}

// locked is a writer that a test reads beside its writers.
type locked struct {
	w  *strings.Builder
	mu *sync.Mutex
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

func TestRun_LeavesNothingRunning(t *testing.T) {
	b := newBrokerAlone(t)
	b.queue(t, "q", nil)
	ignore := goleak.IgnoreCurrent()
	ctx, cancel := context.WithCancel(context.Background())
	publisher, consumer := amqp.NewPublisher(b.options(t)), amqp.NewConsumer(b.options(t))
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 1}})
	consumer.Receive(true)
	var running sync.WaitGroup
	running.Go(func() { publisher.Run(ctx) })
	running.Go(func() { consumer.Run(ctx, func(*amqp.Delivery) {}) })
	testtransport.Eventually(t, "both sessions", func() bool {
		ready, _ := publisher.Ready()
		return ready && consumer.Active() == 1
	})
	cancel()
	running.Wait()
	goleak.VerifyNone(t, ignore)
}
