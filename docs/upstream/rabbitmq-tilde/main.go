// Command rabbitmq-tilde binds a queue with an argument and a key that has a tilde in it, and lists the bindings of the vhost.
//
// It makes the queue tilde at AMQP_URL, asks the management API at MANAGEMENT_URL, and deletes the queue with its binding in the end.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	queue = "tilde"
	// patience is for an answer that takes milliseconds.
	patience = 10 * time.Second
)

func main() {
	err := run(
		cmp.Or(os.Getenv("AMQP_URL"), "amqp://guest:guest@127.0.0.1:5672/"),
		cmp.Or(os.Getenv("MANAGEMENT_URL"), "http://guest:guest@127.0.0.1:15672"),
	)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(to, management string) error {
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
	if _, err := channel.QueueDeclare(queue, true, false, false, false, nil); err != nil {
		return fmt.Errorf("declare the queue: %w", err)
	}
	defer func() { _, _ = channel.QueueDelete(queue, false, false, false) }()
	for _, key := range []string{"ab", "a~b"} {
		if err := channel.QueueBind(queue, key, "amq.direct", false, amqp091.Table{"note": "x"}); err != nil {
			return fmt.Errorf("bind: %w", err)
		}
		status, err := list(management, conn.Config.Vhost)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "bound by %q; the list of bindings: %s\n", key, status)
	}
	return nil
}

// list asks for the bindings of a vhost, and tells the status of the answer.
func list(management, vhost string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	at := management + "/api/bindings/" + url.PathEscape(vhost)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, http.NoBody) //nolint:gosec // the address is the user's own
	if err != nil {
		return "", fmt.Errorf("ask for the bindings: %w", err)
	}
	response, err := http.DefaultClient.Do(request) //nolint:gosec // the address is the user's own
	if err != nil {
		return "", fmt.Errorf("ask for the bindings: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.Status, nil
}
