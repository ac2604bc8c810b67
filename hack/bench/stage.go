package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/topology"
)

const (
	exchange = "async"
	// key of the first queue, which is also its name.
	key = "test"
	// confirmWindow is how many publishes of one fill await their confirm.
	confirmWindow = 1000
)

// body of every message: a small JSON document, as events are.
const body = `{"order": "A-2026-000123", "customer": 4711, "items": [{"sku": "B-17", "count": 2}, {"sku": "C-4", "count": 1}]}`

// broker is where everything runs.
type broker struct {
	*testbroker.Broker

	credentials credentials.Credentials
}

// stage is a vhost with one Transport's topology on it.
type stage struct {
	broker  *broker
	vhost   string
	config  compile.Config
	objects topology.Objects
	conn    *amqp091.Connection
	channel *amqp091.Channel
}

// play is what a stage is set up for.
type play struct {
	concurrency int32
	// queues is their number; 0 stands for one.
	queues int
	// delays of the retries; without them there are none.
	delays  []time.Duration
	handler v1alpha1.Handler
	// strategies of the policy.
	strategies []v1alpha1.Strategy
}

// transport is the Transport of a play.
func (p *play) transport() *v1alpha1.Transport {
	t := &v1alpha1.Transport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: exchange},
		Spec: v1alpha1.TransportSpec{
			Broker:         v1alpha1.Broker{SecretRef: &v1alpha1.LocalReference{Name: "rabbitmq"}},
			Exchange:       &v1alpha1.Exchange{Name: exchange, Type: v1alpha1.ExchangeDirect},
			RetryPolicyRef: &v1alpha1.PolicyReference{Name: "policy"},
			Workers:        []v1alpha1.Worker{{Name: "default", Concurrency: &p.concurrency, Handler: p.handler}},
		},
	}
	for i := range max(1, p.queues) {
		name := queueName(i)
		t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: name, BindingKeys: []string{name}})
	}
	return t
}

func queueName(i int) string {
	if i == 0 {
		return key
	}
	return fmt.Sprintf("%s-%d", key, i)
}

func (p *play) policy() v1alpha1.RetryPolicySpec {
	retries := int32(len(p.delays)) //nolint:gosec // a handful
	spec := v1alpha1.RetryPolicySpec{MaxRetries: &retries, Strategies: p.strategies}
	if retries > 0 {
		spec.Backoff = &v1alpha1.Backoff{Type: v1alpha1.BackoffExplicit}
	}
	for _, delay := range p.delays {
		spec.Backoff.Delays = append(spec.Backoff.Delays, *v1alpha1.NewDuration(delay))
	}
	return spec
}

// setUp makes a vhost with the topology of a play.
func (b *broker) setUp(ctx context.Context, p play) (*stage, error) {
	transport := p.transport()
	compiled, err := compile.Compile(transport, map[string]*v1alpha1.RetryPolicy{
		"policy": {ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "policy"}, Spec: p.policy()},
	})
	if err != nil {
		return nil, fmt.Errorf("compile the Transport: %w", err)
	}
	objects, err := topology.Desired(transport, compiled.Needs, "bench/default/async")
	if err != nil {
		return nil, fmt.Errorf("its topology: %w", err)
	}
	s := &stage{broker: b, vhost: "bench-" + strings.ToLower(rand.Text()[:8]), config: compiled.Workers[0], objects: objects}
	if err := b.AddVhost(ctx, s.vhost); err != nil {
		return nil, err
	}
	if err := s.declare(); err != nil {
		return nil, errors.Join(err, s.tearDown(ctx))
	}
	return s, nil
}

func (s *stage) tearDown(ctx context.Context) error {
	if s.conn != nil {
		_ = s.conn.CloseDeadline(time.Now().Add(time.Second))
	}
	return s.broker.RemoveVhost(ctx, s.vhost)
}

func (s *stage) declare() (err error) {
	if s.conn, err = amqp091.Dial(s.url()); err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	if s.channel, err = s.conn.Channel(); err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	for _, e := range s.objects.Exchanges {
		err = errors.Join(err, s.channel.ExchangeDeclare(e.Name, e.Type, e.Durable, e.AutoDelete, e.Internal, false, amqp091.Table(e.Arguments)))
	}
	for _, q := range s.objects.Queues {
		_, failed := s.channel.QueueDeclare(q.Name, q.Durable, q.AutoDelete, q.Exclusive, false, amqp091.Table(q.Arguments))
		err = errors.Join(err, failed)
	}
	for _, b := range s.objects.Bindings {
		err = errors.Join(err, s.channel.QueueBind(b.Destination, b.RoutingKey, b.Source, false, amqp091.Table(b.Arguments)))
	}
	return errors.Join(err, s.channel.Confirm(false))
}

// url of the vhost, with the login.
func (s *stage) url() string { return s.broker.credentials.AMQPURL(s.vhost) }

// target of the worker's sessions.
func (s *stage) target() (amqp.Target, error) {
	return amqp.TargetOf(s.broker.credentials, s.vhost)
}

// fill publishes n messages, spread over the queues, and returns when the broker has confirmed them all.
func (s *stage) fill(ctx context.Context, n int) error {
	return publish(ctx, s.channel, n, confirmWindow, func(i int) (string, string, amqp091.Publishing) {
		return exchange, queueName(i % len(s.config.Queues)), letter(i)
	})
}

// send publishes one message.
func (s *stage) send(ctx context.Context, p amqp091.Publishing) error {
	return publish(ctx, s.channel, 1, 1, func(int) (string, string, amqp091.Publishing) { return exchange, key, p })
}

// letter is a message as producers send them.
func letter(i int) amqp091.Publishing {
	return amqp091.Publishing{
		DeliveryMode: amqp091.Persistent, ContentType: "application/json", Type: "order.placed", MessageId: fmt.Sprintf("%08d", i),
		Timestamp: time.Now(), Body: []byte(body),
	}
}

// publish publishes n messages, at most window of them awaiting their confirm.
func publish(
	ctx context.Context, channel *amqp091.Channel, n, window int, message func(i int) (exchange, key string, m amqp091.Publishing),
) error {
	waiting := make([]*amqp091.DeferredConfirmation, 0, window)
	for i := range n {
		exchange, key, m := message(i)
		confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, exchange, key, true, false, m)
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		if waiting = append(waiting, confirm); len(waiting) == window {
			half := (window + 1) / 2
			if err := confirmed(ctx, waiting[:half]); err != nil {
				return err
			}
			waiting = append(waiting[:0], waiting[half:]...)
		}
	}
	return confirmed(ctx, waiting)
}

func confirmed(ctx context.Context, waiting []*amqp091.DeferredConfirmation) error {
	for _, confirm := range waiting {
		if ok, err := confirm.WaitContext(ctx); err != nil || !ok {
			return errors.Join(errors.New("the broker did not confirm a message"), err)
		}
	}
	return nil
}

// empty is an error while a queue of the Transport has messages. A side that has left some behind did not do its work: those that
// it did not acknowledge are back when its connection has ended.
func (s *stage) empty() error {
	for _, q := range s.objects.Queues {
		state, err := s.channel.QueueDeclarePassive(q.Name, q.Durable, q.AutoDelete, q.Exclusive, false, nil)
		if err != nil {
			return fmt.Errorf("look at queue %s: %w", q.Name, err)
		}
		if state.Messages > 0 {
			return fmt.Errorf("queue %s has %d messages left", q.Name, state.Messages)
		}
	}
	return nil
}
