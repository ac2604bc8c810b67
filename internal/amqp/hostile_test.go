package amqp_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"maps"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
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

// nested is a list in a list, and so on.
func nested(levels int) any {
	var value any = "x"
	for range levels {
		value = []any{value}
	}
	return value
}

func numbered(entries int) amqp091.Table {
	table := amqp091.Table{}
	for i := range entries {
		table[strconv.Itoa(i)] = nil
	}
	return table
}

func TestConsumer_SurvivesHeadersThatTheLibraryCannotRead(t *testing.T) {
	cases := []struct {
		name       string
		headers    amqp091.Table
		unreadable bool
	}{
		{"lists as deep as can be read", amqp091.Table{"h": nested(32)}, false},
		{"lists one level deeper", amqp091.Table{"h": nested(33)}, true},
		{"lists very much deeper", amqp091.Table{"h": nested(2_000)}, true},
		{"a list as long as can be read", amqp091.Table{"h": make([]any, 8192)}, false},
		{"a list of one entry more", amqp091.Table{"h": make([]any, 8193)}, true},
		{"as many headers as can be read", numbered(8192), false},
		{"one header more", numbered(8193), true},
		{"all that fits a frame", amqp091.Table{"h": strings.Repeat("x", 130_900)}, false},
		{"a header that looks like our mark", amqp091.Table{"redrive-unreadable": true, "redrive-unreadable-": true}, false},
		{"every type", amqp091.Table{
			"t": true, "b": int8(-1), "B": uint8(1), "s": int16(-1), "u": uint16(1), "I": int32(-1), "i": uint32(1), "l": int64(-1), "f": float32(1),
			"d": 1.5, "D": amqp091.Decimal{Scale: 2, Value: -5}, "S": "s", "x": []byte{0, 1}, "V": nil, "T": time.Unix(-1, 0),
			"A": []any{amqp091.Table{"F": []any{}}}, "F": amqp091.Table{"": amqp091.Table{}},
		}, false},
	}
	b := newBroker(t)
	b.queue(t, "dead", nil)
	b.queue(t, "q", amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
	_, in := b.consume(t, amqp.Subscription{Queue: "q", Prefetch: 4})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			b.Publish("", "q", amqp091.Publishing{ContentType: "a/b", ContentEncoding: "c", Type: "d", MessageId: "m", Headers: c.headers, Body: []byte("body")})
			d := in.wait(t, 1)[0]
			if d.Unreadable != c.unreadable || d.Redelivered {
				t.Errorf("unreadable %v, redelivered %v", d.Unreadable, d.Redelivered)
			}
			if !c.unreadable && len(d.Headers) != len(c.headers) {
				t.Errorf("%d headers, want %d", len(d.Headers), len(c.headers))
			}
			if value, there := d.Headers["D"]; there && value != (message.Decimal{Scale: 2, Value: -5}) {
				t.Errorf("the decimal is %#v", value)
			}
			if d.ContentType != "a/b" || d.ContentEncoding != "c" || d.Type != "d" || d.MessageID != "m" || string(d.Body) != "body" {
				t.Errorf("the rest of the message changed: %+v", d.Message)
			}
			if err := d.DeadLetter(); err != nil {
				t.Fatal(err)
			}
		})
	}
	testtransport.Eventually(t, "all dead-lettered", func() bool { return b.Ready("dead") == len(cases) })
}

func TestConsumer_SurvivesHeadersTooLongForAFrame(t *testing.T) {
	newBroker(t).survivesHeadersOf(t, 130_900)
}

// survivesHeadersOf has the broker deliver headers that are longer than its frames by what it has added to those of so many bytes. All but
// them arrives, and the session goes on.
func (b *broker) survivesHeadersOf(t *testing.T, size int) {
	t.Helper()
	b.queue(t, "dead", nil)
	b.queue(t, "q", amqp091.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
	b.queue(t, "expiring", amqp091.Table{"x-message-ttl": int32(0), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"})
	_, in := b.consume(t, amqp.Subscription{Queue: "q", Prefetch: 1})
	b.Publish("", "expiring", amqp091.Publishing{
		ContentType: "a/b", ContentEncoding: "c", Type: "d", MessageId: "poison", Headers: amqp091.Table{"h": strings.Repeat("x", size)}, Body: []byte("body"),
	})
	d := in.wait(t, 1)[0]
	if !d.Unreadable || d.Redelivered || len(d.Headers) != 1 {
		t.Errorf("unreadable %v, redelivered %v, %d headers", d.Unreadable, d.Redelivered, len(d.Headers))
	}
	if d.ContentType != "a/b" || d.ContentEncoding != "c" || d.Type != "d" || d.MessageID != "poison" || string(d.Body) != "body" {
		t.Errorf("the rest of the message changed: %+v", d.Message)
	}
	if err := d.DeadLetter(); err != nil {
		t.Fatal(err)
	}
	b.fill(1)
	if next := in.wait(t, 1)[0]; next.Unreadable || next.Redelivered || next.Ack() != nil || !d.Live() {
		t.Errorf("the session did not go on: unreadable %v, redelivered %v, live %v", next.Unreadable, next.Redelivered, d.Live())
	}
	testtransport.Eventually(t, "the dead letter", func() bool { return b.Ready("dead") == 1 })
}

// manyKeys are CC keys of so many bytes together, which the broker repeats in x-death for each queue that dead-letters.
func manyKeys(size int) amqp091.Table {
	var keys []any
	for ; size > 0; size -= 250 {
		keys = append(keys, strings.Repeat("k", 245))
	}
	return amqp091.Table{"CC": keys}
}

// dyingTo makes a queue of which every message is dead-lettered at once, with all its keys, to another queue.
func (b *broker) dyingTo(t *testing.T, name, next string) {
	t.Helper()
	exchange := name + ".dead"
	if err := b.Channel().ExchangeDeclare(exchange, "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := b.Channel().QueueBind(next, "", exchange, false, nil); err != nil {
		t.Fatal(err)
	}
	b.queue(t, name, amqp091.Table{"x-message-ttl": int32(0), "x-dead-letter-exchange": exchange})
}

func TestConsumer_SurvivesHeadersThatGrowByDeadLettering(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	b.queue(t, "other", nil)
	b.dyingTo(t, "second", "q")
	b.dyingTo(t, "first", "second")
	b.Publish("", "first", amqp091.Publishing{MessageId: "poison", Headers: manyKeys(118 << 10)})
	testtransport.Eventually(t, "the poison", func() bool { return b.Ready("q") == 1 })
	_, in := b.consume(t, amqp.Subscription{Queue: "q", Prefetch: 1}, amqp.Subscription{Queue: "other", Prefetch: 1})
	d := in.wait(t, 1)[0]
	if !d.Unreadable || d.Redelivered || d.MessageID != "poison" {
		t.Errorf("unreadable %v, redelivered %v, id %q", d.Unreadable, d.Redelivered, d.MessageID)
	}
	b.Publish("", "other", amqp091.Publishing{})
	if next := in.wait(t, 1)[0]; next.Redelivered || next.Ack() != nil || !d.Live() {
		t.Errorf("the session did not go on: redelivered %v, the poison still on loan %v", next.Redelivered, d.Live())
	}
}

func TestConsumer_SurvivesHeadersLongerThanTheBrokersFrames(t *testing.T) {
	own := testbroker.Private(t)
	if err := own.Control(t.Context(), "eval", "application:set_env(rabbit, frame_max, 65536)."); err != nil {
		t.Fatal(err)
	}
	brokerOf(t, own).survivesHeadersOf(t, 65_400)
}

func TestPublisher_FindsTheMessageThatTheBrokerNeverTakes(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	const messages = 100
	var refused, confirmed atomic.Int64
	var all sync.WaitGroup
	for i := range messages {
		m := &message.Message{RoutingKey: "q"}
		if i == messages/2 {
			m.Expiration = "never" // a precondition that fails
		}
		all.Go(func() {
			for {
				err := publisher.Publish(t.Context(), m)
				switch {
				case errors.Is(err, amqp.ErrUnconfirmed):
					continue
				case err == nil && m.Expiration == "":
					confirmed.Add(1)
				case errors.Is(err, amqp.ErrUnpublishable) && m.Expiration != "":
					refused.Add(1)
				default:
					t.Errorf("publish: %v", err)
				}
				return
			}
		})
	}
	all.Wait()
	if confirmed.Load() != messages-1 || refused.Load() != 1 {
		t.Errorf("%d confirmed, %d refused; want all but one, and one", confirmed.Load(), refused.Load())
	}
}

// Each ends a channel. Those of other messages would be opened after pauses that grow to 15 s.
func TestPublisher_HoldsUpNothingBesideMessagesNeverTaken(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	publish := func(m *message.Message) error {
		err := amqp.ErrUnconfirmed
		for errors.Is(err, amqp.ErrUnconfirmed) {
			err = publisher.Publish(t.Context(), m)
		}
		return err
	}
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			if err := publish(&message.Message{RoutingKey: "q", Expiration: "never"}); !errors.Is(err, amqp.ErrUnpublishable) {
				t.Errorf("publish: %v, want one that cannot be published", err)
			}
		})
	}
	time.Sleep(50 * time.Millisecond) // they go first
	began := time.Now()
	if err := publish(&message.Message{RoutingKey: "q"}); err != nil {
		t.Errorf("publish: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("a message for the same queue waited for %s", took)
	}
	all.Wait()
}

// RabbitMQ would end the channel. It takes such a message from a producer that speaks AMQP 1.0.
func TestPublisher_RefusesAReplyToThatRabbitMQWouldNotTake(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	if err := publisher.Publish(t.Context(), &message.Message{RoutingKey: "q", ReplyTo: "amq.rabbitmq.reply-to"}); !errors.Is(err, amqp.ErrUnpublishable) {
		t.Errorf("publish: %v, want one that cannot be published", err)
	}
	if problems := publisher.Problems(); len(problems) > 0 {
		t.Errorf("problems: %v", problems)
	}
}

func TestPublisher_FindsAReturnedMessageWithoutItsMark(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	const messages = 100
	var unroutable, confirmed atomic.Int64
	var all sync.WaitGroup
	for i := range messages {
		key, headers := "q", map[string]any{}
		if i == messages/2 {
			key, headers = "gone", numbered(8192) // with the mark they are more than can be read
		}
		all.Go(func() {
			for {
				err := publisher.Publish(t.Context(), &message.Message{RoutingKey: key, Headers: maps.Clone(headers)})
				switch {
				case errors.Is(err, amqp.ErrUnconfirmed):
					continue
				case err == nil && key == "q":
					confirmed.Add(1)
				case errors.Is(err, amqp.ErrUnroutable) && key != "q":
					unroutable.Add(1)
				default:
					t.Errorf("publish to %s: %v", key, err)
				}
				return
			}
		})
	}
	all.Wait()
	if confirmed.Load() != messages-1 || unroutable.Load() != 1 {
		t.Errorf("%d confirmed, %d unroutable; want all but one, and one", confirmed.Load(), unroutable.Load())
	}
}

// A message that somebody took from a lane and published again has the mark of its last publication, and may come back while others are in flight.
func TestPublisher_IgnoresAMarkOfAnotherPublication(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	b.publishEvenOnes(t, publisher, func(i int) *message.Message {
		return &message.Message{MessageID: strconv.Itoa(i), Headers: map[string]any{message.HeaderPublishID: "1"}}
	})
}

func TestRun_EndsThoughTheBrokerDoesNotAnswer(t *testing.T) {
	b := newBrokerAlone(t)
	b.queue(t, "q", nil)
	b.fill(1)
	publisher, consumer, in := amqp.NewPublisher(b.options(t)), amqp.NewConsumer(b.options(t)), &inbox{}
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 1}})
	consumer.Receive(true)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { publisher.Run(ctx) })
	running.Go(func() { consumer.Run(ctx, in.deliver) })
	in.wait(t, 1)
	if err := publisher.Publish(t.Context(), &message.Message{RoutingKey: "q"}); err != nil {
		t.Fatal(err)
	}
	b.proxy.Freeze()
	consumer.Receive(false) // a call to the broker that is never answered
	held := make(chan error, 1)
	go func() { held <- publisher.Publish(ctx, &message.Message{RoutingKey: "q"}) }()
	time.AfterFunc(100*time.Millisecond, cancel)
	began := time.Now()
	running.Wait()
	if took := time.Since(began); took > 6*time.Second {
		t.Errorf("the end took %s", took)
	}
	if err := <-held; err == nil {
		t.Error("a publish into the void counts as confirmed")
	}
}

func TestWhileLive_EndsWithTheSession(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	b.fill(1)
	_, in := b.consume(t, amqp.Subscription{Queue: "q", Prefetch: 1})
	d := in.wait(t, 1)[0]
	ctx, cancel := d.WhileLive(t.Context())
	defer cancel()
	if ctx.Err() != nil {
		t.Fatal("over while the delivery is live")
	}
	b.proxy.Cut()
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), amqp.ErrSessionEnded) {
		t.Errorf("cause: %v", context.Cause(ctx))
	}
}

func TestConsumer_DeliversNothingOnceItIsQuiet(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	b.fill(200)
	var quiet atomic.Bool
	consumer := amqp.NewConsumer(b.options(t))
	consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 1}})
	run(t, func(ctx context.Context) {
		consumer.Run(ctx, func(d *amqp.Delivery) {
			if quiet.Load() {
				t.Error("delivered while quiet")
			}
			go func() { _ = d.Ack() }()
		})
	})
	for range 30 {
		quiet.Store(false)
		consumer.Receive(true)
		testtransport.Eventually(t, "a start", func() bool { return !consumer.Quiet() })
		consumer.Receive(false)
		testtransport.Eventually(t, "quiet", consumer.Quiet)
		quiet.Store(true)
	}
}

func TestPublisher_WorksOverTLS(t *testing.T) {
	b := newBroker(t)
	b.queue(t, "q", nil)
	certified := httptest.NewTLSServer(nil) // for its certificate
	t.Cleanup(certified.Close)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", certified.TLS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", b.proxy.Address)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client) }()
			go func() { _, _ = io.Copy(client, server) }()
		}
	}()
	trusted := x509.NewCertPool()
	trusted.AddCert(certified.Certificate())
	b.target.Address, b.target.TLS = listener.Addr().String(), &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}
	publisher := amqp.NewPublisher(b.options(t))
	run(t, publisher.Run)
	if err := publisher.Publish(t.Context(), &message.Message{RoutingKey: "q"}); err != nil {
		t.Fatal(err)
	}
}
