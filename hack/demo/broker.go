package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/local"
	envelope "redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
)

// place is a vhost of the demo's own, on a broker of its own or on the one that the environment names.
type place struct {
	broker      *testbroker.Broker
	credentials credentials.Credentials
	vhost       string
	// private is true where the broker was started for the demo.
	private bool
}

// findPlace takes the broker of AMQP_URL and MANAGEMENT_URL, or starts one.
func findPlace(ctx context.Context, log io.Writer) (*place, error) {
	p := &place{vhost: "redrive-demo-" + strings.ToLower(rand.Text()[:6])}
	amqpURL, managementURL := os.Getenv(local.EnvAMQP), os.Getenv(local.EnvManagement)
	if p.private = amqpURL == ""; p.private {
		broker, err := testbroker.Start(ctx, log)
		if err != nil {
			return nil, fmt.Errorf("start RabbitMQ: %w", err)
		}
		p.broker, amqpURL, managementURL = broker, broker.AMQPURL, broker.ManagementURL
	}
	var err error
	if p.credentials, err = credentials.FromURLs(amqpURL, managementURL); err != nil {
		return nil, fmt.Errorf("%s and %s: %w", local.EnvAMQP, local.EnvManagement, err)
	}
	if !p.private {
		if p.broker, err = testbroker.At(p.credentials); err != nil {
			return nil, err
		}
	}
	if err := p.broker.AddVhost(ctx, p.vhost); err != nil {
		return nil, errors.Join(fmt.Errorf("make the vhost %s: %w", p.vhost, err), p.leave(context.WithoutCancel(ctx)))
	}
	return p, nil
}

// leave removes everything that the demo made.
func (p *place) leave(ctx context.Context) error {
	if p.private {
		return p.broker.Stop(ctx)
	}
	if err := p.broker.RemoveVhost(ctx, p.vhost); err != nil {
		return fmt.Errorf("delete the vhost %s: %w", p.vhost, err)
	}
	return nil
}

// getenv names the demo's broker to whatever reads AMQP_URL and MANAGEMENT_URL.
func (p *place) getenv(name string) string {
	return map[string]string{local.EnvAMQP: p.broker.AMQPURL, local.EnvManagement: p.broker.ManagementURL}[name]
}

// dial opens a channel in the demo's vhost.
func (p *place) dial() (*amqp091.Connection, *amqp091.Channel, error) {
	tls, err := p.credentials.TLS()
	if err != nil {
		return nil, nil, err
	}
	conn, err := amqp091.DialConfig(p.credentials.AMQPURL(p.vhost), amqp091.Config{TLSClientConfig: tls, Heartbeat: 10 * time.Second})
	if err != nil {
		return nil, nil, fmt.Errorf("connect to %s: %w", p.credentials.Address(), err)
	}
	channel, err := conn.Channel()
	if err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("open a channel: %w", err)
	}
	return conn, channel, nil
}

// publish publishes all messages, persistent, and returns when the broker has confirmed each of them.
func (p *place) publish(ctx context.Context, exchange string, all []scenario, messages []message) error {
	conn, channel, err := p.dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := channel.Confirm(false); err != nil {
		return fmt.Errorf("switch confirms on: %w", err)
	}
	confirms := make([]*amqp091.DeferredConfirmation, 0, len(messages))
	for i, m := range messages {
		confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, exchange, all[m.scenario].key, true, false, amqp091.Publishing{
			DeliveryMode: amqp091.Persistent, MessageId: m.id, Type: "order.placed", ContentType: "application/json",
			Timestamp: time.Now(), Body: fmt.Appendf(nil, `{"order": %q, "number": %d}`, m.id, i+1),
		})
		if err != nil {
			return fmt.Errorf("publish %s: %w", m.id, err)
		}
		confirms = append(confirms, confirm)
	}
	for i, confirm := range confirms {
		if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
			return fmt.Errorf("the broker did not confirm %s: %w", messages[i].id, err)
		}
	}
	return nil
}

// failure is a message in the failure queue.
type failure struct {
	id, queue, reason, explanation string
	status                         string
	attempts                       string
}

// takeFailures reads the failure queue until it is empty.
func (p *place) takeFailures(queue string) ([]failure, error) {
	conn, channel, err := p.dial()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	var failures []failure
	for {
		delivery, ok, err := channel.Get(queue, false)
		if err != nil {
			return nil, fmt.Errorf("read the failure queue: %w", err)
		}
		if !ok {
			return failures, nil
		}
		header := func(name string) string {
			if value, ok := delivery.Headers[name]; ok {
				return fmt.Sprint(value)
			}
			return "-"
		}
		failures = append(failures, failure{
			id: delivery.MessageId, queue: header(envelope.HeaderQueue), reason: header(envelope.HeaderReason),
			explanation: header(envelope.HeaderExplanation), status: header(envelope.HeaderErrorStatus),
			attempts: header(envelope.HeaderAttempts),
		})
		if err := delivery.Ack(false); err != nil {
			return nil, fmt.Errorf("take from the failure queue: %w", err)
		}
	}
}
