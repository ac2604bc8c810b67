package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const bareTag = "bare"

// bareConsumer is the consumer of a program that a team writes for itself with the same client library.
type bareConsumer struct {
	conn       *amqp091.Connection
	channel    *amqp091.Channel
	deliveries <-chan amqp091.Delivery
}

func startBare(s *stage, prefetch int) (*bareConsumer, error) {
	conn, err := amqp091.Dial(s.url())
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	b := &bareConsumer{conn: conn}
	if b.channel, err = conn.Channel(); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := b.channel.Qos(prefetch, 0, false); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if b.deliveries, err = b.channel.Consume(key, bareTag, false, false, false, false, nil); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return b, nil
}

// bareHandler is how one goroutine of a bare program handles messages.
type bareHandler struct {
	handle func(d *amqp091.Delivery) error
	// end, if any, is called at last.
	end func() error
}

// alike gives each goroutine the same way to handle messages.
func alike(handle func(d *amqp091.Delivery) error) func() (bareHandler, error) {
	return func() (bareHandler, error) { return bareHandler{handle: handle}, nil }
}

// bare is a program that handles messages in so many goroutines, and acknowledges them one by one. It does no more: it has no retry,
// no reconnect, no metric and no timeout.
func bare(prefetch, concurrency int, start func() (bareHandler, error)) runner {
	return func(ctx context.Context, s *stage, m *meter) error {
		b, err := startBare(s, prefetch)
		if err != nil {
			return err
		}
		failed := make(chan error, concurrency+1)
		var running sync.WaitGroup
		for range concurrency {
			running.Go(func() {
				if err := b.work(m, start); err != nil {
					failed <- err
				}
			})
		}
		go func() { failed <- m.wait(ctx) }()
		err = <-failed
		// What was handled is acknowledged before the connection is closed.
		err = errors.Join(err, b.channel.Cancel(bareTag, false))
		running.Wait()
		return errors.Join(err, b.conn.Close())
	}
}

func (b *bareConsumer) work(m *meter, start func() (bareHandler, error)) error {
	h, err := start()
	if err != nil {
		return err
	}
	for d := range b.deliveries {
		if err = h.handle(&d); err != nil {
			break
		}
		if err = d.Ack(false); err != nil {
			break
		}
		m.tick()
	}
	if h.end != nil {
		err = errors.Join(err, h.end())
	}
	return err
}

// handleNothing is the work that takes no time.
func handleNothing(*amqp091.Delivery) error { return nil }
