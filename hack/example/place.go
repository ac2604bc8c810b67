package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/credentials"
	envelope "redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
)

const (
	// nextLook is the time between two looks at the broker.
	nextLook = 200 * time.Millisecond
	// late is by how much the figures of the broker's queues may be.
	late = 6 * time.Second
)

// place is a vhost of the example's own.
type place struct {
	running *testbroker.Broker
	vhost   string
	// url of the vhost.
	url    string
	client *broker.Client
}

func newPlace(ctx context.Context, vhost string) (*place, error) {
	amqp, management := os.Getenv(testbroker.AMQPVariable), os.Getenv(testbroker.ManagementVariable)
	if amqp == "" || management == "" {
		return nil, errors.New("AMQP_URL and MANAGEMENT_URL must name a RabbitMQ; run.sh starts one where they are not set")
	}
	login, err := credentials.FromURLs(amqp, management)
	if err != nil {
		return nil, fmt.Errorf("AMQP_URL and MANAGEMENT_URL: %w", err)
	}
	end, err := login.Management()
	if err != nil {
		return nil, err
	}
	p := &place{vhost: vhost, url: login.AMQPURL(vhost)}
	if p.client, err = broker.New(broker.Config{
		ManagementURL: end.URL, Username: end.Username, Password: end.Password(), VHost: vhost, TLS: end.TLS,
	}); err != nil {
		return nil, fmt.Errorf("management API: %w", err)
	}
	if p.running, err = testbroker.At(login); err != nil {
		return nil, err
	}
	if err := p.running.AddVhost(ctx, vhost); err != nil {
		return nil, fmt.Errorf("make the vhost: %w", err)
	}
	return p, nil
}

func (p *place) leave(ctx context.Context) error {
	p.client.Close()
	if err := p.running.RemoveVhost(ctx, p.vhost); err != nil {
		return fmt.Errorf("delete the vhost: %w", err)
	}
	return nil
}

// publish waits for the exchange and publishes each message, confirmed and routed.
func (p *place) publish(ctx context.Context, all *script, trouble func() error) error {
	err := wait(ctx, "the exchange "+all.Exchange, trouble, func() bool {
		seen, err := p.client.Observe(ctx)
		_, there := seen.Exchanges[all.Exchange]
		return err == nil && there
	})
	if err != nil {
		return err
	}
	conn, err := amqp091.Dial(p.url)
	if err != nil {
		return errors.New("connect to the broker of AMQP_URL")
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err == nil {
		err = channel.Confirm(false)
	}
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	for i, m := range all.Messages {
		headers := amqp091.Table{}
		for name, value := range m.Headers {
			headers[name] = value
		}
		confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, all.Exchange, m.RoutingKey, true, false, amqp091.Publishing{
			DeliveryMode: amqp091.Persistent, ContentType: "application/json", MessageId: fmt.Sprintf("message-%d", i+1),
			Type: m.Type, Headers: headers, Body: m.Body,
		})
		if err != nil {
			return fmt.Errorf("publish message %d: %w", i+1, err)
		}
		ok, err := confirm.WaitContext(ctx)
		if err == nil && !ok {
			err = errors.New("it refused it")
		}
		if err != nil {
			return fmt.Errorf("the broker did not confirm message %d: %w", i+1, err)
		}
	}
	return nil
}

// account waits until nothing is in any queue but what was to fail.
func (p *place) account(ctx context.Context, all *script, trouble func() error) error {
	failing := all.failing()
	var since time.Time
	return wait(ctx, fmt.Sprintf("%d messages in the failure queue and none elsewhere", failing), trouble, func() bool {
		seen, err := p.client.Observe(ctx)
		settled := err == nil
		for name, queue := range seen.Queues {
			want := int64(0)
			if name == all.FailureQueue {
				want = int64(failing)
			}
			settled = settled && queue.Messages != nil && *queue.Messages == want
		}
		if !settled {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) > late
	})
}

// tell takes the messages of the failure queue and prints why they are there.
func (p *place) tell(all *script) error {
	failing := all.failing()
	conn, err := amqp091.Dial(p.url)
	if err != nil {
		return errors.New("connect to the broker of AMQP_URL")
	}
	defer func() { _ = conn.Close() }()
	channel, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	fmt.Printf("\n%d messages: %d handled, %d in the failure queue\n", len(all.Messages), len(all.Messages)-failing, failing)
	for range failing {
		d, ok, err := channel.Get(all.FailureQueue, true)
		if err == nil && !ok {
			err = errors.New("a message is missing")
		}
		if err != nil {
			return fmt.Errorf("read the failure queue: %w", err)
		}
		class, _ := d.Headers[envelope.HeaderErrorClass].(string) // not every error has one
		fmt.Printf("  %s: %v: %s %v\n", d.MessageId, d.Headers[envelope.HeaderReason], class, d.Headers[envelope.HeaderErrorMessage])
		if !expected(all, d.MessageId) {
			return fmt.Errorf("%s was to be handled", d.MessageId)
		}
	}
	return nil
}

func expected(all *script, id string) bool {
	for i, m := range all.Messages {
		if fmt.Sprintf("message-%d", i+1) == id {
			return m.Fails
		}
	}
	return false
}

// wait looks until it is as expected, a program of the example has ended, or ctx ends.
func wait(ctx context.Context, what string, trouble func() error, reached func() bool) error {
	tick := time.NewTicker(nextLook)
	defer tick.Stop()
	for !reached() {
		if err := trouble(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}
