// Command rabbitmq-drop-head delays more messages of a quorum queue than its length limit allows, and looks whether the queue still answers.
//
// It makes the queue drop-head.hangs at AMQP_URL and leaves it there: a queue that hangs is to be looked at, and then deleted.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	queue = "drop-head.hangs"
	// limit is the most that the queue holds, and delayed is how many are held back in it.
	limit, delayed = 5, 20
	// patience is for an answer that takes milliseconds.
	patience = 20 * time.Second
)

var errHangs = errors.New("no answer: the queue hangs")

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	conn, err := amqp091.Dial(cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@127.0.0.1:5672/"))
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }()
	sayf("RabbitMQ %v", conn.Properties["version"])
	channel, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("channel: %w", err)
	}
	if err := channel.Confirm(false); err != nil {
		return fmt.Errorf("confirms: %w", err)
	}
	const minute = int32(60_000) // milliseconds: longer than this program runs, so that what was rejected stays delayed
	_, err = channel.QueueDeclare(queue, true, false, false, false, amqp091.Table{
		"x-queue-type": "quorum", "x-max-length": int32(limit), "x-overflow": "drop-head",
		"x-delayed-retry-type": "all", "x-delayed-retry-min": minute, "x-delayed-retry-max": minute,
	})
	if err != nil {
		return fmt.Errorf("declare %s: %w", queue, err)
	}
	taken := make([]amqp091.Delivery, 0, delayed)
	for len(taken) < delayed { // one at a time, for more than the limit would be dropped at once
		if err := publish(channel); err != nil {
			return err
		}
		delivery, ok, err := channel.Get(queue, false)
		if err != nil || !ok {
			return fmt.Errorf("get message %d: %t, %w", len(taken)+1, ok, err)
		}
		taken = append(taken, delivery)
	}
	sayf("%d messages are taken, of a queue that holds %d", len(taken), limit)
	for _, delivery := range taken {
		if err := delivery.Reject(true); err != nil {
			return fmt.Errorf("reject: %w", err)
		}
	}
	sayf("all are rejected, with requeue: they are delayed")
	if err := publish(channel); err != nil {
		return err
	}
	sayf("queue unblocked")
	return nil
}

// publish waits until the queue has confirmed a message.
func publish(channel *amqp091.Channel) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, "", queue, false, false, amqp091.Publishing{DeliveryMode: amqp091.Persistent})
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	if _, err := confirm.WaitContext(ctx); err != nil {
		return fmt.Errorf("publish: no confirm within %s: %w", patience, errHangs)
	}
	return nil
}

func sayf(format string, args ...any) { _, _ = fmt.Fprintf(os.Stdout, format+"\n", args...) }
