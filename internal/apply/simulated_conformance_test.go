package apply_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

// compared is a vhost of which the same is asked, whether RabbitMQ has it or the simulation.
type compared interface {
	apply.Port
	// publish gives a message to an exchange, and tells whether a queue has it.
	publish(exchange, key, lane string, id int) (routed bool)
	// get takes the next message of a queue by a connection of its own; nil where there is none.
	get(queue string) *comparedDelivery
	// consume begins to consume a queue by a consumer of a name, whose messages are acknowledged at once; got tells which it has.
	consume(queue, consumer string)
	got(consumer string, number int) []int
	cancel(queue, consumer string)
	// cut ends the connection of get.
	cut()
	pass(by time.Duration)
}

// comparedDelivery is a message of get.
type comparedDelivery struct {
	id          int
	key         string
	redelivered bool
	ack         func()
	back        func(requeue bool)
}

// comparison has the words in which the cases are told.
type comparison struct {
	compared

	t    *testing.T
	seen []string
}

func (c *comparison) notef(format string, arguments ...any) {
	c.seen = append(c.seen, fmt.Sprintf(format, arguments...))
}

// result is what became of a request.
func result(existed bool, err error) string {
	switch {
	case errors.Is(err, broker.ErrConflict):
		return "conflict"
	case errors.Is(err, broker.ErrNotFound):
		return "not found"
	case err != nil:
		return err.Error()
	case existed:
		return "existed"
	default:
		return "done"
	}
}

func (c *comparison) create(step topology.Step) string {
	step.Action = topology.ActionCreate
	return result(c.Apply(context.Background(), step))
}

func (c *comparison) exchange(name, kind, alternate string) {
	exchange := topology.Exchange{Name: name, Type: kind, Durable: true}
	if alternate != "" {
		exchange.Arguments = topology.Arguments{"alternate-exchange": alternate}
	}
	if made := c.create(topology.Step{Exchange: &exchange}); made != "done" {
		c.t.Fatalf("exchange %s: %s", name, made)
	}
}

// queue declares a queue, and tells what became of it.
func (c *comparison) queue(name, kind string, arguments topology.Arguments) string {
	all := topology.Arguments{"x-queue-type": kind}
	maps.Copy(all, arguments)
	return c.create(topology.Step{Queue: &topology.Queue{Name: name, Type: kind, Durable: true, Arguments: all}})
}

func (c *comparison) bind(source, queue, key string) string {
	return c.create(topology.Step{Binding: &topology.Binding{Source: source, Destination: queue, RoutingKey: key}})
}

func (c *comparison) unbind(source, queue string) {
	bindings, err := c.Bindings(context.Background(), queue)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, binding := range bindings {
		if binding.Source == source {
			if _, err := c.Apply(context.Background(), topology.Step{Action: topology.ActionDelete, Binding: &binding}); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

func (c *comparison) policy(name, applyTo, pattern string, priority int, definition topology.Arguments) {
	if made := c.create(topology.Step{Policy: &topology.Policy{
		Name: name, Pattern: pattern, ApplyTo: applyTo, Priority: priority, Definition: definition,
	}}); made != "done" && made != "existed" {
		c.t.Fatalf("policy %s: %s", name, made)
	}
}

func (c *comparison) delete(queue string, ifEmpty, ifUnused bool) string {
	return result(false, c.DeleteQueue(context.Background(), queue, ifEmpty, ifUnused))
}

// in notes what some queues hold, and takes it out.
func (c *comparison) in(queues ...string) {
	for _, queue := range queues {
		var messages []string
		for _, delivery := range c.take(queue) {
			text := strconv.Itoa(delivery.id)
			if delivery.redelivered {
				text += " again"
			}
			messages = append(messages, text)
		}
		c.notef("%s: %v", queue, messages)
	}
}

// dead is as in, for a queue of dead letters: from 4.0 on one that was delivered before may be marked as redelivered there, and on 3.10 none is.
func (c *comparison) dead(queue string) {
	var messages []int
	for _, delivery := range c.take(queue) {
		messages = append(messages, delivery.id)
	}
	c.notef("%s: %v", queue, messages)
}

func (c *comparison) take(queue string) (taken []*comparedDelivery) {
	for delivery := c.get(queue); delivery != nil; delivery = c.get(queue) {
		taken = append(taken, delivery)
		delivery.ack()
	}
	return taken
}

// lane is as the lanes of a Transport are, with a short delay.
func lane(to string) topology.Arguments {
	return topology.Arguments{
		"x-message-ttl": 2500, "x-dead-letter-exchange": to, "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	}
}

// expiry is more than the delay of a lane, and enough for RabbitMQ to do what follows.
const expiry = 5 * time.Second

// comparisons are what the simulation relies on.
func comparisons() map[string]struct {
	do   func(*comparison)
	want []string
} {
	const quorum, classic = topology.TypeQuorum, topology.TypeClassic
	return map[string]struct {
		do   func(*comparison)
		want []string
	}{
		"what expires in a lane goes on by its own key, to where that leads by then": {func(c *comparison) {
			c.exchange("alternate", "direct", "")
			c.exchange("return", "direct", "alternate")
			c.queue("lane", quorum, lane("return"))
			c.queue("a", quorum, nil)
			c.queue("b", quorum, nil)
			c.bind("return", "a", "key")
			c.bind("alternate", "b", "key")
			c.publish("", "lane", "", 1) // its key is the name of the lane
			c.exchange("in", "fanout", "")
			c.bind("in", "lane", "")
			c.publish("in", "key", "", 2)
			c.pass(expiry)
			c.in("a", "b")
			c.publish("in", "key", "", 3)
			c.unbind("return", "a")
			c.pass(expiry)
			c.in("a", "b")
		}, []string{"a: [2]", "b: []", "a: []", "b: [3]"}},
		"a lane keeps what has no way, and a queue that dead-letters at most once does not": {func(c *comparison) {
			c.exchange("return", "direct", "")
			c.queue("lane", quorum, lane("return"))
			c.queue("once", classic, topology.Arguments{"x-message-ttl": 300, "x-dead-letter-exchange": "return"})
			c.publish("", "lane", "", 1)
			c.publish("", "once", "", 2)
			c.pass(expiry)
			c.notef("the lane can be deleted: %s", c.delete("lane", true, false))
			c.notef("the other one can be deleted: %s", c.delete("once", true, false))
		}, []string{"the lane can be deleted: conflict", "the other one can be deleted: done"}},
		"an alternate exchange gets what is unroutable, that of the argument before that of a policy": {func(c *comparison) {
			c.exchange("argument", "direct", "")
			c.exchange("by policy", "direct", "")
			c.exchange("in", "direct", "argument")
			c.exchange("plain", "direct", "")
			c.policy("p", "exchanges", "^(in|plain)$", 1, topology.Arguments{"alternate-exchange": "by policy"})
			c.queue("a", quorum, nil)
			c.queue("b", quorum, nil)
			c.queue("c", quorum, nil)
			c.bind("argument", "a", "key")
			c.bind("by policy", "b", "key")
			c.pass(expiry)
			c.notef("routed: %t/%t/%t", c.publish("in", "key", "", 1), c.publish("plain", "key", "", 2), c.publish("plain", "other", "", 3))
			c.bind("plain", "c", "key")
			c.notef("routed: %t", c.publish("plain", "key", "", 4))
			c.in("a", "b", "c")
		}, []string{"routed: true/true/false", "routed: true", "a: [1]", "b: [2]", "c: [4]"}},
		"of policies that match the one of the highest priority applies, and no other": {func(c *comparison) {
			c.exchange("dead", "fanout", "")
			c.queue("failed", quorum, nil)
			c.bind("dead", "failed", "")
			short := topology.Arguments{"message-ttl": 300, "dead-letter-exchange": "dead"}
			c.policy("low", "queues", "^work", 1, short)
			c.policy("high", "queues", "^work a$", 2, topology.Arguments{"message-ttl": 3600000})
			c.policy("highest", "exchanges", ".*", 9, topology.Arguments{"alternate-exchange": "dead"})
			c.queue("work a", quorum, nil)
			c.queue("work b", quorum, nil)
			c.pass(expiry)
			c.publish("", "work a", "", 1)
			c.publish("", "work b", "", 2)
			c.pass(expiry)
			c.in("work a", "work b", "failed")
		}, []string{"work a: [1]", "work b: []", "failed: [2]"}},
		"of a time to live the smaller one holds, and of a dead-letter exchange the argument": {func(c *comparison) {
			for _, name := range []string{"argument", "policy"} {
				c.exchange(name, "fanout", "")
				c.queue("from "+name, quorum, nil)
				c.bind(name, "from "+name, "")
			}
			c.policy("p", "queues", "^work", 1, topology.Arguments{"message-ttl": 300, "dead-letter-exchange": "policy"})
			c.queue("work a", quorum, topology.Arguments{"x-message-ttl": 3600000, "x-dead-letter-exchange": "argument"})
			c.queue("work b", quorum, nil)
			c.pass(expiry)
			c.publish("", "work a", "", 1)
			c.publish("", "work b", "", 2)
			c.pass(expiry)
			c.in("work a", "from argument", "from policy")
		}, []string{"work a: []", "from argument: [1]", "from policy: [2]"}},
		"a classic queue can be deleted if it is empty and unused, and a quorum queue not on such a condition": {func(c *comparison) {
			c.queue("classic", classic, nil)
			c.queue("quorum", quorum, nil)
			c.publish("", "classic", "", 1)
			c.pass(expiry)
			c.notef("%s/%s", c.delete("classic", true, false), c.delete("quorum", true, false))
			c.in("classic")
			c.consume("classic", "one")
			c.pass(expiry)
			c.notef("%s", c.delete("classic", false, true))
			c.notef("%s/%s/%s", c.delete("classic", true, false), c.delete("quorum", false, false), c.delete("quorum", false, false))
		}, []string{"conflict/conflict", "classic: [1]", "conflict", "done/done/done"}},
		"with a queue go its bindings, and an exchange goes when nothing is bound to it": {func(c *comparison) {
			c.exchange("in", "direct", "")
			c.queue("a", quorum, nil)
			c.bind("in", "a", "key")
			c.bind("in", "a", "key")
			c.notef("routed: %t", c.publish("in", "key", "", 1))
			c.in("a")
			c.notef("%s", result(false, c.DeleteExchange(context.Background(), "in")))
			c.delete("a", false, false)
			c.queue("a", quorum, nil)
			c.notef("routed: %t", c.publish("in", "key", "", 2))
			c.notef("%s/%s", result(false, c.DeleteExchange(context.Background(), "in")), result(false, c.DeleteExchange(context.Background(), "in")))
		}, []string{"routed: true", "a: [1]", "conflict", "routed: false", "done/done"}},
		"what is declared again has to be the same, but for marks": {func(c *comparison) {
			c.notef("%s/%s", c.queue("a", quorum, lane("x")), c.queue("a", quorum, lane("x")))
			marked := lane("x")
			marked["redrive-owner"] = "somebody"
			c.notef("%s/%s", c.queue("a", quorum, marked), c.queue("a", quorum, lane("y")))
			c.notef("%s/%s", c.queue("a", classic, nil), c.queue("b", classic, topology.Arguments{"x-single-active-consumer": true}))
			c.notef("%s/%s", c.bind("amq.direct", "nowhere", "key"), c.bind("nowhere", "a", "key"))
		}, []string{"done/existed", "existed/conflict", "conflict/done", "not found/not found"}},
		"what comes back to a quorum queue more often than its limit is dead-lettered": {func(c *comparison) {
			c.exchange("dead", "fanout", "")
			c.queue("failed", quorum, nil)
			c.bind("dead", "failed", "")
			c.policy("p", "queues", "^a$", 1, topology.Arguments{"delivery-limit": 2, "dead-letter-exchange": "dead"})
			c.queue("a", quorum, nil)
			c.pass(expiry)
			c.publish("", "a", "", 1)
			c.publish("", "a", "", 2)
			for range 3 {
				delivery := c.get("a")
				c.notef("%d", delivery.id)
				delivery.back(true)
				c.pass(time.Second)
			}
			c.in("a")
			c.dead("failed")
			c.publish("", "a", "", 3)
			c.get("a").back(false)
			c.pass(time.Second)
			c.in("a")
			c.dead("failed")
		}, []string{"1", "1", "1", "a: [2]", "failed: [1]", "a: []", "failed: [3]"}},
		"with the connection what it had comes back": {func(c *comparison) {
			c.queue("a", quorum, nil)
			c.publish("", "a", "", 1)
			c.publish("", "a", "", 2)
			c.get("a")
			c.cut()
			c.pass(expiry)
			c.in("a")
		}, []string{"a: [1 again 2]"}},
		"of the consumers of a single active one the first has all, and then the next": {func(c *comparison) {
			c.queue("a", quorum, topology.Arguments{"x-single-active-consumer": true})
			c.consume("a", "one")
			c.consume("a", "two")
			c.publish("", "a", "", 1)
			c.publish("", "a", "", 2)
			c.notef("%v %v", c.got("one", 2), c.got("two", 0))
			c.cancel("a", "one")
			c.publish("", "a", "", 3)
			c.notef("%v %v", c.got("one", 2), c.got("two", 1))
		}, []string{"[1 2] []", "[1 2] [3]"}},
		"a headers exchange leads to the lane of the header, with the key as it is": {func(c *comparison) {
			c.exchange("fallback", "headers", "")
			for _, name := range []string{"1s", "5s"} {
				c.queue(name, quorum, nil)
				c.create(topology.Step{Binding: &topology.Binding{
					Source: "fallback", Destination: name, Arguments: topology.Arguments{"x-match": "all", "redrive-lane": name},
				}})
			}
			c.notef("routed: %t/%t", c.publish("fallback", "key", "5s", 1), c.publish("fallback", "key", "10s", 2))
			c.in("1s", "5s")
		}, []string{"routed: true/false", "1s: []", "5s: [1]"}},
	}
}

func TestSimulatedBroker_DoesWhatRabbitMQDoes(t *testing.T) {
	t.Parallel()
	for name, c := range comparisons() {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // A part that alone is parallel would hold up the cases after it until it has had its turn.
			t.Run("simulated", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					v := &comparison{compared: &simulatedVhost{b: newSimulatedBroker(), taken: map[string][]int{}}, t: t}
					if c.do(v); !slices.Equal(v.seen, c.want) {
						t.Errorf("got %q, want %q", v.seen, c.want)
					}
				})
			})
			t.Run("RabbitMQ", func(t *testing.T) {
				s := newStage(t)
				v := &comparison{compared: &realVhost{Port: s.client, s: s, taken: map[string]chan int{}, had: map[string][]int{}}, t: t}
				if c.do(v); !slices.Equal(v.seen, c.want) {
					t.Errorf("got %q, want %q", v.seen, c.want)
				}
			})
		})
	}
}

// simulatedVhost is one of the simulation.
type simulatedVhost struct {
	b     *simulatedBroker
	taken map[string][]int
}

func (v *simulatedVhost) Observe(context.Context) (topology.Observed, error) {
	return v.b.observe(), nil
}

func (v *simulatedVhost) Apply(_ context.Context, step topology.Step) (bool, error) {
	return v.b.apply(step)
}

func (v *simulatedVhost) Queue(_ context.Context, name string) (topology.QueueState, error) {
	if q := v.b.queues[name]; q != nil {
		return v.b.state(q), nil
	}
	return topology.QueueState{}, broker.ErrNotFound
}

func (v *simulatedVhost) Bindings(_ context.Context, queue string) ([]topology.Binding, error) {
	return v.b.bindingsTo(queue), nil
}

func (v *simulatedVhost) DeleteQueue(_ context.Context, name string, ifEmpty, ifUnused bool) error {
	return v.b.deleteQueue(name, ifEmpty, ifUnused)
}

func (v *simulatedVhost) DeleteExchange(_ context.Context, name string) error {
	return v.b.deleteExchange(name)
}

func (v *simulatedVhost) publish(exchange, key, lane string, id int) bool {
	return len(v.b.publish(exchange, simulatedMessage{id: id, key: key, lane: lane})) > 0
}

func (v *simulatedVhost) get(queue string) *comparedDelivery {
	v.b.consume(queue, "get")
	defer v.b.cancel(queue, "get")
	delivery := v.b.deliver(queue, "get")
	if delivery == nil {
		return nil
	}
	return &comparedDelivery{
		id: delivery.id, key: delivery.key, redelivered: delivery.returns > 0,
		ack: func() { v.b.ack(delivery) },
		back: func(requeue bool) {
			if requeue {
				v.b.requeue(delivery)
			} else {
				v.b.reject(delivery)
			}
		},
	}
}

func (v *simulatedVhost) consume(queue, consumer string) { v.b.consume(queue, consumer) }
func (v *simulatedVhost) cancel(queue, consumer string)  { v.b.cancel(queue, consumer) }
func (v *simulatedVhost) cut()                           { v.b.cut("get") }

func (v *simulatedVhost) got(consumer string, _ int) []int {
	for name := range v.b.queues {
		for delivery := v.b.deliver(name, consumer); delivery != nil; delivery = v.b.deliver(name, consumer) {
			v.b.ack(delivery)
			v.taken[consumer] = append(v.taken[consumer], delivery.id)
		}
	}
	return v.taken[consumer]
}

func (v *simulatedVhost) pass(by time.Duration) {
	time.Sleep(by)
	v.b.pass()
}

// realVhost is one of RabbitMQ.
type realVhost struct {
	apply.Port

	s      *stage
	getter *amqp091.Channel
	tags   []*amqp091.Channel
	taken  map[string]chan int
	had    map[string][]int
}

func (v *realVhost) publish(exchange, key, lane string, id int) bool {
	v.s.t.Helper()
	channel := v.s.channel()
	returns := channel.NotifyReturn(make(chan amqp091.Return, 1))
	message := amqp091.Publishing{DeliveryMode: amqp091.Persistent, MessageId: strconv.Itoa(id)}
	if lane != "" {
		message.Headers = amqp091.Table{"redrive-lane": lane}
	}
	confirmation, err := channel.PublishWithDeferredConfirm(exchange, key, true, false, message)
	if err != nil || !confirmation.Wait() {
		v.s.t.Fatalf("publish to %s: %v", exchange, err)
	}
	return len(returns) == 0
}

func (v *realVhost) get(queue string) *comparedDelivery {
	v.s.t.Helper()
	if v.getter == nil {
		v.getter = v.s.channel()
	}
	delivery, ok, err := v.getter.Get(queue, false)
	if err != nil {
		v.s.t.Fatal(err)
	}
	if !ok {
		return nil
	}
	id, _ := strconv.Atoi(delivery.MessageId)
	settle := func(err error) {
		if err != nil {
			v.s.t.Fatal(err)
		}
	}
	return &comparedDelivery{
		id: id, key: delivery.RoutingKey, redelivered: delivery.Redelivered,
		ack:  func() { settle(delivery.Ack(false)) },
		back: func(requeue bool) { settle(delivery.Reject(requeue)) },
	}
}

func (v *realVhost) consume(queue, consumer string) {
	v.s.t.Helper()
	channel := v.s.channel()
	v.tags = append(v.tags, channel)
	deliveries, err := channel.Consume(queue, consumer, false, false, false, false, nil)
	if err != nil {
		v.s.t.Fatal(err)
	}
	taken := make(chan int, 16)
	v.taken[consumer] = taken
	go func() {
		for delivery := range deliveries {
			id, _ := strconv.Atoi(delivery.MessageId)
			_ = delivery.Ack(false)
			taken <- id
		}
	}()
}

func (v *realVhost) got(consumer string, number int) []int {
	v.s.t.Helper()
	for len(v.had[consumer]) < number {
		select {
		case id := <-v.taken[consumer]:
			v.had[consumer] = append(v.had[consumer], id)
		case <-time.After(patience):
			v.s.t.Fatalf("%s has %v", consumer, v.had[consumer])
		}
	}
	return v.had[consumer]
}

func (v *realVhost) cancel(_, consumer string) {
	for _, channel := range v.tags {
		_ = channel.Cancel(consumer, false)
	}
}

func (v *realVhost) cut() {
	_ = v.getter.Close()
	v.getter = nil
}

func (v *realVhost) pass(by time.Duration) { time.Sleep(by) }
