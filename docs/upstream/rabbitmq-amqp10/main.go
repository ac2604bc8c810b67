// Command rabbitmq-amqp10 sends a message by AMQP 1.0 whose application properties have a uuid, and consumes it by AMQP 0-9-1.
//
// It makes the queue amqp10.uuid at AMQP_URL, and deletes it with its message in the end.
package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	amqp10 "github.com/Azure/go-amqp"
	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	queue = "amqp10.uuid"
	// patience is for an answer that takes milliseconds.
	patience = 10 * time.Second
)

func main() {
	if err := run(cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@127.0.0.1:5672/")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(to string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	conn, err := amqp091.Dial(to)
	if err != nil {
		return fmt.Errorf("connect by AMQP 0-9-1: %w", err)
	}
	defer func() { _ = conn.Close() }()
	fmt.Fprintln(os.Stdout, "RabbitMQ", conn.Properties["version"])
	channel, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	if _, err := channel.QueueDeclare(queue, true, false, false, false, amqp091.Table{amqp091.QueueTypeArg: amqp091.QueueTypeQuorum}); err != nil {
		return fmt.Errorf("declare the queue: %w", err)
	}
	defer drop(to)
	if err := send(ctx, to); err != nil {
		return fmt.Errorf("send by AMQP 1.0: %w", err)
	}
	fmt.Fprintln(os.Stdout, "sent by AMQP 1.0, with a uuid among the application properties")
	ended := conn.NotifyClose(make(chan *amqp091.Error, 1))
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	select {
	case d, ok := <-deliveries:
		if ok {
			fmt.Fprintln(os.Stdout, "delivered by AMQP 0-9-1 with", d.Headers)
			return nil
		}
		return fmt.Errorf("the connection ends: %w", <-ended)
	case <-time.After(patience):
		return fmt.Errorf("consume: no delivery within %s: %w", patience, context.DeadlineExceeded)
	}
}

// send publishes the message to the queue.
func send(ctx context.Context, to string) error {
	u, err := url.Parse(to)
	if err != nil {
		return err //nolint:wrapcheck // the caller says what for
	}
	password, _ := u.User.Password()
	conn, err := amqp10.Dial(ctx, "amqp://"+u.Host, &amqp10.ConnOptions{
		HostName: "vhost:" + cmp.Or(strings.TrimPrefix(u.Path, "/"), "/"), SASLType: amqp10.SASLTypePlain(u.User.Username(), password),
	})
	if err != nil {
		return err //nolint:wrapcheck // as above
	}
	defer func() { _ = conn.Close() }()
	session, err := conn.NewSession(ctx, nil)
	if err != nil {
		return err //nolint:wrapcheck // as above
	}
	sender, err := session.NewSender(ctx, "/queues/"+queue, nil)
	if err != nil {
		return err //nolint:wrapcheck // as above
	}
	message := amqp10.NewMessage([]byte("x"))
	message.ApplicationProperties = map[string]any{"id": amqp10.UUID{1, 2, 3}}
	return sender.Send(ctx, message, nil) //nolint:wrapcheck // as above
}

// drop deletes the queue, on a connection of its own.
func drop(to string) {
	conn, err := amqp091.Dial(to)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	if channel, err := conn.Channel(); err == nil {
		_, _ = channel.QueueDelete(queue, false, false, false)
	}
}
