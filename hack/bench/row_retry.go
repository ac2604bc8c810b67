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

// retried compares with a program that only publishes into the lane, each message with its confirm, and a consumer behind it. The
// worker has more to do: it receives each message once more, and decides.
func retried(ctx context.Context, b *bench) ([]result, error) {
	scene := play{concurrency: retryConcurrency, handler: inProcess(), delays: []time.Duration{laneDelay}}
	return versus(ctx, b, &contest{
		name: "retry: each message fails once, lane of 1 s", messages: b.messages / 2,
		bare: side{play: scene, unfilled: true, run: bareRetry},
		ours: side{play: scene, run: ours(failOnce)},
	}, 0.85)
}

// bareRetry publishes into the lane on one connection, and consumes on another one what comes out of it.
func bareRetry(ctx context.Context, s *stage, m *meter) error {
	conn, err := amqp091.Dial(s.url())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	if err := channel.Confirm(false); err != nil {
		return fmt.Errorf("switch confirms on: %w", err)
	}
	returns := channel.NotifyReturn(make(chan amqp091.Return, bareWindow))
	var publishing sync.WaitGroup
	var failed error
	publishing.Go(func() {
		m.begin()
		failed = publish(ctx, channel, int(m.total), bareWindow, func(i int) (string, string, amqp091.Publishing) {
			p := letter(i)
			p.Headers = amqp091.Table{message.HeaderLane: retry.LaneKey(laneDelay), message.HeaderAttempts: int64(1)}
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
