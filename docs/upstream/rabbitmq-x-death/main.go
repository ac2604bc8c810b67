// Command rabbitmq-x-death lets a message with an odd x-death expire in a quorum queue that dead-letters at-least-once, and then an ordinary one in
// another such queue, and tells which of them arrive.
//
// It makes the queues odd, ordinary and dead at AMQP_URL, and deletes them in the end. On RabbitMQ 3.10 no quorum queue of the node dead-letters
// at-least-once after that, until the node has been restarted: run it on a broker of its own.
package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	dead = "dead"
	// patience is for messages that expire at once.
	patience = 10 * time.Second
)

func main() {
	if err := run(cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@127.0.0.1:5672/")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(to string) error {
	conn, err := amqp091.Dial(to)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close() }()
	fmt.Fprintln(os.Stdout, "RabbitMQ", conn.Properties["version"])
	channel, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	arguments := amqp091.Table{"x-queue-type": "quorum"}
	for _, queue := range []string{dead, "ordinary", "odd"} {
		if _, err := channel.QueueDeclare(queue, true, false, false, false, arguments); err != nil {
			return fmt.Errorf("declare queue %s: %w", queue, err)
		}
		defer func() { _, _ = channel.QueueDelete(queue, false, false, false) }()
		arguments = amqp091.Table{
			"x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead,
			"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
		}
	}
	for _, one := range []struct {
		queue   string
		headers amqp091.Table
	}{{"ordinary", nil}, {"odd", amqp091.Table{"x-death": []any{"no table"}}}, {"ordinary", nil}} {
		if err := expire(channel, one.queue, one.headers); err != nil {
			return err
		}
	}
	return nil
}

// expire publishes a message that expires, and tells whether it arrives.
func expire(channel *amqp091.Channel, queue string, headers amqp091.Table) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := channel.PublishWithContext(ctx, "", queue, true, false, amqp091.Publishing{Headers: headers, Expiration: "100"})
	if err != nil {
		return fmt.Errorf("publish to queue %s: %w", queue, err)
	}
	for ctx.Err() == nil {
		_, arrived, err := channel.Get(dead, true)
		if err != nil {
			return fmt.Errorf("read queue %s: %w", dead, err)
		}
		if arrived {
			fmt.Fprintf(os.Stdout, "the message in queue %q was dead-lettered\n", queue)
			return nil
		}
		time.Sleep(patience / 100)
	}
	fmt.Fprintf(os.Stdout, "the message in queue %q was NOT dead-lettered within %s\n", queue, patience)
	return nil
}
