package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

const (
	// laneDelay is that of the one retry.
	laneDelay = time.Second
	// retryConcurrency gives the consumers a prefetch of 256, and bareWindow lets as many publishes await their confirm.
	retryConcurrency = 128
	bareWindow       = 256
)

// errOnce is how the handler fails at the first attempt.
var errOnce = errors.New("not at the first attempt")

// failOnce fails each message at its first attempt.
func failOnce(_ context.Context, message *public.Message) error {
	if message.Attempt == 1 {
		return errOnce
	}
	return nil
}

// retried compares with a program that only publishes into the lane, each message with its confirm, and a consumer behind it. Whoever
// retries has more to do: each message is received, and acknowledged, once more, and has to carry what is known of it. So there are
// two more baselines: a bare program that receives, publishes and acknowledges, and the same with as many headers as ours.
func retried(ctx context.Context, b *bench) ([]result, error) {
	scene := play{concurrency: retryConcurrency, handler: inProcess(), delays: []time.Duration{laneDelay}}
	publisher := side{play: scene, unfilled: true, run: bareRetry}
	whole, err := versus(ctx, b, &contest{
		name: "retry: each message fails once, lane of 1 s", messages: b.messages / 2,
		bare: publisher,
		ours: side{play: scene, run: ours(failOnce)},
	}, 0.85)
	if err != nil {
		return nil, err
	}
	results := whole
	for _, other := range []struct {
		name    string
		headers func() amqp091.Table
		atLeast float64
	}{
		{name: "retry: the same, beside a bare program that retries", headers: leastHeaders},
		{name: "retry: the same, beside one that writes as many headers", headers: asManyHeaders, atLeast: 0.85},
	} {
		more, err := versus(ctx, b, &contest{
			name: other.name, messages: b.messages / 2,
			bare: side{play: scene, run: bareRetrier(other.headers)},
			ours: side{play: scene, run: ours(failOnce)},
		}, other.atLeast)
		if err != nil {
			return nil, err
		}
		results = append(results, more...)
	}
	return results, nil
}

// confirming opens a connection with a channel on which publications are confirmed.
func confirming(s *stage) (*amqp091.Connection, *amqp091.Channel, error) {
	conn, err := amqp091.Dial(s.url())
	if err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	channel, err := conn.Channel()
	if err == nil {
		err = channel.Confirm(false)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open a channel with confirms: %w", err), conn.Close())
	}
	return conn, channel, nil
}

// bareRetry publishes into the lane on one connection, and consumes on another one what comes out of it.
func bareRetry(ctx context.Context, s *stage, m *meter) error {
	conn, channel, err := confirming(s)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	returns := channel.NotifyReturn(make(chan amqp091.Return, bareWindow))
	var publishing sync.WaitGroup
	var failed error
	publishing.Go(func() {
		m.begin()
		failed = publish(ctx, channel, int(m.total), bareWindow, func(i int) (string, string, amqp091.Publishing) {
			p := letter(i)
			p.Headers = leastHeaders()
			return s.config.Exchanges.Fallback, key, p
		})
	})
	consumed := bare(2*retryConcurrency, 1, alike(handleNothing))(ctx, s, m)
	publishing.Wait()
	select {
	case r := <-returns:
		return fmt.Errorf("a message was returned: %s", r.ReplyText)
	default:
		return errors.Join(consumed, failed)
	}
}

// leastHeaders choose the lane, and tell a message that comes back from a new one.
func leastHeaders() amqp091.Table {
	return amqp091.Table{message.HeaderLane: retry.LaneKey(laneDelay), message.HeaderAttempts: int64(1)}
}

// asManyHeaders are of the number and size of those that the worker writes here.
func asManyHeaders() amqp091.Table {
	return amqp091.Table{
		message.HeaderLane: retry.LaneKey(laneDelay),
		message.HeaderHistory: fmt.Sprintf(`[{"attempt":1,"at":%d,"source":"Handler","class":"errorString","message":%q,"delay":1000}]`,
			time.Now().UnixMilli(), errOnce),
	}
}

// bareRetrier is the least that a retry takes: it receives a message, publishes it into the lane with the headers, and acknowledges
// it when that is confirmed. What comes back it acknowledges.
func bareRetrier(headers func() amqp091.Table) runner {
	return func(ctx context.Context, s *stage, m *meter) error { return retryBare(ctx, s, m, headers) }
}

func retryBare(ctx context.Context, s *stage, m *meter, headers func() amqp091.Table) error {
	m.begin()
	conn, channel, err := confirming(s)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	b, err := startBare(s, 2*retryConcurrency)
	if err != nil {
		return err
	}
	r := &retrier{
		bare: b, channel: channel, exchange: s.config.Exchanges.Fallback, meter: m,
		waiting: make(chan published, 2*retryConcurrency), headers: headers,
	}
	failed := make(chan error, 3)
	go func() { failed <- r.settle(ctx) }()
	go func() { failed <- r.receive(ctx) }()
	go func() { failed <- m.wait(ctx) }()
	if err := <-failed; err != nil {
		return errors.Join(err, b.conn.Close())
	}
	// What was handled is acknowledged before the connection is closed.
	err = b.channel.Cancel(bareTag, false)
	return errors.Join(err, <-failed, <-failed, b.conn.Close())
}

type retrier struct {
	bare     *bareConsumer
	channel  *amqp091.Channel
	exchange string
	meter    *meter
	waiting  chan published
	headers  func() amqp091.Table
}

// published is a message whose copy in the lane is not confirmed yet.
type published struct {
	original amqp091.Delivery
	confirm  *amqp091.DeferredConfirmation
}

// receive publishes what comes for the first time, until the consumer is cancelled.
func (r *retrier) receive(ctx context.Context) error {
	defer close(r.waiting)
	for d := range r.bare.deliveries {
		if d.Headers[message.HeaderLane] != nil {
			if err := d.Ack(false); err != nil {
				return fmt.Errorf("acknowledge: %w", err)
			}
			r.meter.tick()
			continue
		}
		copied := amqp091.Publishing{
			DeliveryMode: d.DeliveryMode, ContentType: d.ContentType, Type: d.Type, MessageId: d.MessageId, Timestamp: d.Timestamp, Body: d.Body,
			Headers: r.headers(),
		}
		confirm, err := r.channel.PublishWithDeferredConfirmWithContext(ctx, r.exchange, key, true, false, copied)
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		r.waiting <- published{original: d, confirm: confirm}
	}
	return nil
}

// settle acknowledges what is in the lane.
func (r *retrier) settle(ctx context.Context) error {
	for p := range r.waiting {
		if ok, err := p.confirm.WaitContext(ctx); err != nil || !ok {
			return errors.Join(errors.New("the broker did not confirm a message"), err)
		}
		if err := p.original.Ack(false); err != nil {
			return fmt.Errorf("acknowledge: %w", err)
		}
	}
	return nil
}
