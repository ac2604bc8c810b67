//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	confirmWithin = 10 * time.Second
	// sendWithin is how long a producer goes on trying: longer than a broker takes to restart.
	sendWithin = 2 * time.Minute
)

// parcel is a message to publish.
type parcel struct {
	id string
	// key is the routing key; empty for the queue orders.
	key string
	// answer and pause are rules for the partner.
	answer, pause string
	body          []byte
}

func (p parcel) publishing() amqp091.Publishing {
	headers := amqp091.Table{}
	if p.answer != "" {
		headers["e2e-answer"] = p.answer
	}
	if p.pause != "" {
		headers["e2e-pause"] = p.pause
	}
	return amqp091.Publishing{MessageId: p.id, Headers: headers, Body: p.body, DeliveryMode: amqp091.Persistent, ContentType: "application/json"}
}

// published are the messages that the broker confirmed, by id.
type published map[string]parcel

// producer publishes with confirms, and publishes again what was not confirmed, under the same id.
type producer struct {
	shop    *shop
	conn    *amqp091.Connection
	channel *amqp091.Channel
	returns chan amqp091.Return
}

// errReturned says that a message led to no queue, which trying again does not change.
var errReturned = errors.New("a message was returned")

// send returns when all are confirmed and none was returned.
func (p *producer) send(ctx context.Context, parcels []parcel) error {
	ctx, cancel := context.WithTimeout(ctx, sendWithin)
	defer cancel()
	retry := time.NewTicker(200 * time.Millisecond)
	defer retry.Stop()
	for {
		left, err := p.trySend(ctx, parcels)
		if len(left) == 0 || errors.Is(err, errReturned) {
			return err
		}
		p.close()
		parcels = left
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d messages are not confirmed: %w", len(left), err)
		case <-retry.C:
		}
	}
}

// trySend returns those that are not known to have arrived.
func (p *producer) trySend(ctx context.Context, parcels []parcel) ([]parcel, error) {
	if err := p.open(); err != nil {
		return parcels, err
	}
	confirms := make([]*amqp091.DeferredConfirmation, 0, len(parcels))
	for _, one := range parcels {
		key := one.key
		if key == "" {
			key = ordersQueue
		}
		confirm, err := p.channel.PublishWithDeferredConfirmWithContext(ctx, exchangeName, key, true, false, one.publishing())
		if err != nil {
			break
		}
		confirms = append(confirms, confirm)
	}
	ctx, cancel := context.WithTimeout(ctx, confirmWithin)
	defer cancel()
	left := map[string]parcel{}
	for i, one := range parcels {
		if i >= len(confirms) {
			left[one.id] = one
		} else if acked, err := confirms[i].WaitContext(ctx); err != nil || !acked {
			left[one.id] = one
		}
	}
	select {
	case r, open := <-p.returns: // before its confirm
		if open {
			return nil, fmt.Errorf("%w: %s: %s", errReturned, r.MessageId, r.ReplyText)
		}
	default:
	}
	if len(left) > 0 {
		return values(left), errors.New("the connection ended, or the broker did not confirm")
	}
	return nil, nil
}

func values(parcels map[string]parcel) []parcel {
	all := make([]parcel, 0, len(parcels))
	for _, one := range parcels {
		all = append(all, one)
	}
	return all
}

func (p *producer) open() error {
	if p.channel != nil && !p.channel.IsClosed() {
		return nil
	}
	conn, channel, err := p.shop.dial()
	if err != nil {
		return err
	}
	p.conn, p.channel = conn, channel
	p.returns = channel.NotifyReturn(make(chan amqp091.Return, 4096))
	if err := channel.Confirm(false); err != nil {
		return fmt.Errorf("confirm mode: %w", err)
	}
	return nil
}

func (p *producer) close() {
	if p.conn != nil {
		_ = p.conn.CloseDeadline(time.Now().Add(time.Second))
	}
	p.conn, p.channel = nil, nil
}

// dial as an administrator.
func (s *shop) dial() (*amqp091.Connection, *amqp091.Channel, error) {
	url, err := s.broker.url(s.vhost)
	if err != nil {
		return nil, nil, err
	}
	conn, err := amqp091.DialConfig(url, amqp091.Config{Heartbeat: 5 * time.Second, Dial: amqp091.DefaultDial(5 * time.Second)})
	if err != nil {
		return nil, nil, fmt.Errorf("connect to RabbitMQ: %w", err)
	}
	channel, err := conn.Channel()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open a channel: %w", err), conn.Close())
	}
	return conn, channel, nil
}

// publish some messages and wait until they are confirmed.
func (s *shop) publish(parcels ...parcel) published {
	s.t.Helper()
	p := producer{shop: s}
	defer p.close()
	must(s.t, p.send(s.t.Context(), parcels))
	all := published{}
	for _, one := range parcels {
		all[one.id] = one
	}
	return all
}

// load publishes at an even rate until it is stopped.
type load struct {
	t       *testing.T
	cancel  context.CancelFunc
	running sync.WaitGroup

	mu   sync.Mutex
	sent published
	err  error
}

// batches of a load in each second.
const batches = 10

// startLoad publishes so many messages a second.
func (s *shop) startLoad(perSecond int, next func(n int) parcel) *load {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	l := &load{t: s.t, cancel: cancel, sent: published{}}
	l.running.Go(func() { l.run(ctx, &producer{shop: s}, perSecond/batches, next) })
	s.t.Cleanup(func() {
		cancel()
		l.running.Wait()
	})
	return l
}

func (l *load) run(ctx context.Context, p *producer, each int, next func(n int) parcel) {
	defer p.close()
	tick := time.NewTicker(time.Second / batches)
	defer tick.Stop()
	for n := 0; ; {
		parcels := make([]parcel, each)
		for i := range parcels {
			parcels[i] = next(n)
			n++
		}
		// What was begun is finished, so that nothing is published of which the suite does not know.
		if err := p.send(context.WithoutCancel(ctx), parcels); err != nil {
			l.mu.Lock()
			l.err = err
			l.mu.Unlock()
			return
		}
		l.mu.Lock()
		for _, one := range parcels {
			l.sent[one.id] = one
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// stop returns what was published.
func (l *load) stop() published {
	l.t.Helper()
	l.cancel()
	l.running.Wait()
	if l.err != nil {
		l.t.Fatalf("the producer: %v", l.err)
	}
	return maps.Clone(l.sent)
}

// numbered makes ids.
func numbered(prefix string, n int) string { return prefix + "-" + strconv.Itoa(n) }

// mixed is the usual load: most succeed at once, one in five after one or two retries, one in twenty never, one in twenty
// is rejected.
func mixed(prefix string) func(n int) parcel {
	return func(n int) parcel {
		answers := map[int]string{
			1: "503,200", 6: "503,200", 11: "500,429,200", 16: "503,200",
			8: "503", 13: "422",
		}
		return parcel{id: numbered(prefix, n), answer: answers[n%20]}
	}
}

// slow is the usual load with a partner that takes its time, so that there is always something in hand.
func slow(prefix string, pause time.Duration) func(n int) parcel {
	next := mixed(prefix)
	return func(n int) parcel {
		p := next(n)
		p.pause = pause.String()
		return p
	}
}
