package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
)

// partner is what the handlers of all workers stand for: good at first, then slow, then down, then good again.
type partner struct {
	listener net.Listener
	server   *http.Server
	// script gives its mood; nil before the play begins.
	script atomic.Pointer[func() mood]
}

// mood is how a partner answers: how long it takes, and how many of a hundred calls end with which status.
type mood struct {
	takes                time.Duration
	refuses, unavailable int
}

func startPartner() (*partner, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the server
	if err != nil {
		return nil, fmt.Errorf("start the partner: %w", err)
	}
	p := &partner{listener: listener}
	p.server = &http.Server{Handler: http.HandlerFunc(p.answer), ReadHeaderTimeout: time.Minute}
	go func() { _ = p.server.Serve(listener) }()
	return p, nil
}

func (p *partner) url() string { return "http://" + p.listener.Addr().String() + "/messages" }

func (p *partner) stop() { _ = p.server.Close() }

// begin lets its moods change over the play.
func (p *partner) begin(begin time.Time, lasts time.Duration) {
	script := func() mood {
		switch passed := time.Since(begin).Seconds() / lasts.Seconds(); {
		case passed < 0.25:
			return mood{takes: 40 * time.Millisecond, refuses: 1, unavailable: 2}
		case passed < 0.40:
			return mood{takes: 250 * time.Millisecond, refuses: 1, unavailable: 25}
		case passed < 0.58:
			return mood{takes: 20 * time.Millisecond, unavailable: 100}
		default:
			return mood{takes: 30 * time.Millisecond, refuses: 1, unavailable: 1}
		}
	}
	p.script.Store(&script)
}

func (p *partner) answer(rw http.ResponseWriter, r *http.Request) {
	now := mood{}
	if script := p.script.Load(); script != nil {
		now = (*script)()
	}
	// Most calls take about as long, and a few much longer.
	takes := time.Duration(float64(now.takes) * (0.5 + rand.ExpFloat64()/2)) //nolint:gosec // not for secrets
	select {
	case <-time.After(takes):
	case <-r.Context().Done():
	}
	switch n := rand.IntN(100); { //nolint:gosec // as above
	case n < now.unavailable:
		rw.WriteHeader(http.StatusServiceUnavailable)
	case n < now.unavailable+now.refuses:
		rw.WriteHeader(http.StatusUnprocessableEntity)
	}
}

// play publishes messages until the end. On the way a policy is edited, and somebody deletes an exchange.
func play(ctx context.Context, broker *testbroker.Broker, c *cluster, begin time.Time, lasts time.Duration) error {
	connection, err := amqp091.Dial(broker.AMQPURL)
	if err != nil {
		return fmt.Errorf("connect the publisher: %w", err)
	}
	defer func() { _ = connection.Close() }()
	channel, err := connection.Channel()
	if err != nil {
		return fmt.Errorf("open the publisher's channel: %w", err)
	}
	incidents := []incident{
		{at: lasts * 7 / 10, do: func() error { return editPolicy(ctx, c.client) }},
		{at: lasts * 8 / 10, do: func() error { return channel.ExchangeDelete("mail.fallback", false, false) }},
	}
	for n := 0; time.Since(begin) < lasts; n++ {
		for len(incidents) > 0 && time.Since(begin) >= incidents[0].at {
			if err := incidents[0].do(); err != nil {
				return fmt.Errorf("an incident of the play: %w", err)
			}
			incidents = incidents[1:]
		}
		if err := publish(ctx, channel, n); err != nil {
			return err
		}
		if !wait(ctx, 30*time.Millisecond) {
			return fmt.Errorf("the play was stopped: %w", ctx.Err())
		}
	}
	return nil
}

// incident is what somebody does during the play.
type incident struct {
	at time.Duration
	do func() error
}

// publish sends the message with a number: two of three are orders that are placed.
func publish(ctx context.Context, channel *amqp091.Channel, n int) error {
	exchange, key := "orders", "placed"
	switch n % 6 {
	case 1, 4:
		key = "paid"
	case 2:
		exchange, key = "mail", "sent"
	}
	partner := "acme"
	if n%9 == 0 {
		partner = "globex"
	}
	err := channel.PublishWithContext(ctx, exchange, key, false, false, amqp091.Publishing{
		DeliveryMode: amqp091.Persistent, MessageId: strconv.Itoa(n), Body: []byte(`{}`), Headers: amqp091.Table{"partner": partner},
	})
	if err != nil {
		return fmt.Errorf("publish: %w", err)
	}
	return nil
}

func editPolicy(ctx context.Context, c client.Client) error {
	policy := &v1alpha1.RetryPolicy{}
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "patient"}, policy); err != nil {
		return fmt.Errorf("read the policy: %w", err)
	}
	before := policy.DeepCopy()
	policy.Spec.MaxRetries = new(int32(4))
	if err := c.Patch(ctx, policy, client.MergeFrom(before)); err != nil {
		return fmt.Errorf("edit the policy: %w", err)
	}
	return nil
}
