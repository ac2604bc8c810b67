package controllers_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

// published is how the published configuration of the only worker group has a queue.
func (w *world) published(queue string) compile.Queue {
	w.Helper()
	for _, configMap := range w.configMaps() {
		config, err := compile.Decode([]byte(configMap.Data[workload.ConfigKey]))
		must(w.T, err)
		for _, known := range config.Queues {
			if known.Name == queue {
				return known
			}
		}
	}
	return compile.Queue{}
}

func TestMigration_ReplacesAQueueAndTellsOfIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues[0].SingleActiveConsumer = new(true) })
	message := w.await(transport, v1alpha1.ReconcilingCondition, metav1.ConditionTrue, v1alpha1.ReasonMigrating)
	if !strings.Contains(message, "test: ") {
		t.Errorf("the condition says %q", message)
	}
	w.awaitReady(transport)
	w.eventually("the exchange to be over", func() bool {
		return w.get(transport) && len(transport.Status.Migrations) == 0 && w.published("test").Standin == ""
	})
	got := w.observed().Queues["test"]
	if got.Arguments["x-single-active-consumer"] != true || w.hasQueue("test.migrating") {
		t.Errorf("the queue is %+v, and the stand-in is left: %v", got.Queue, w.hasQueue("test.migrating"))
	}
	w.awaitEvent("MigrationStarted", "queue test is migrated to other arguments")
	w.awaitEvent("MigrationCompleted", "queue test")
	w.awaitReady(transport)
}

// A pod that does not say that it has the configuration may be one of an older build, which would leave what is in the stand-in.
func TestMigration_WaitsForAPodThatSaysNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	pod := w.podOf(transport)
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].SingleActiveConsumer = new(true)
		t.Spec.Workers[0].Replicas = new(int32(3)) // which nobody rolls out
	})
	testtransport.Eventually(t, "the configuration to name the stand-in", func() bool {
		queue := w.published("test")
		return queue.Standin == "test.migrating" && queue.Reads == compile.ReadsQueue
	})
	w.awaitLooks(6)
	if w.get(transport); len(transport.Status.Migrations) != 1 || transport.Status.Migrations[0].Step != v1alpha1.MigrationPrepare {
		t.Errorf("the exchanges are %+v", transport.Status.Migrations)
	}
	bound := slices.ContainsFunc(w.observed().BindingsTo("test"), func(b topology.Binding) bool { return b.Source == "async" })
	if !bound {
		t.Error("the queue is unbound already")
	}
	ready := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReadyCondition)
	if !strings.Contains(ready.Message, "test: workers learn of test.migrating") || !strings.Contains(ready.Message, "workers are rolling out: ") ||
		!strings.Contains(ready.Message, "pod "+pod.Name+" cannot be asked") {
		t.Errorf("the condition does not say what the migration waits for: %s", ready.Message)
	}
	must(t, w.client.Delete(t.Context(), pod))
	w.rollOut()
	w.eventually("the exchange to be over", func() bool {
		w.rollOut()
		return w.get(transport) && len(transport.Status.Migrations) == 0
	})
}

// consumeOne takes the only message of a queue.
func (w *world) consumeOne(queue string) {
	w.Helper()
	w.consume(queue, 1)
}

// consume takes all messages of a queue as a worker does: of one with a single active consumer nobody else gets anything.
func (w *world) consume(queue string, messages int) (ids []string) {
	w.Helper()
	channel := w.amqp.Channel()
	deliveries, err := channel.Consume(queue, queue, false, false, false, false, nil)
	must(w.T, err)
	for len(ids) < messages {
		select {
		case delivery := <-deliveries:
			must(w.T, delivery.Ack(false))
			ids = append(ids, delivery.MessageId)
		case <-time.After(time.Minute):
			w.Fatalf("of %d messages in %s came %q", messages, queue, ids)
		}
	}
	must(w.T, channel.Cancel(queue, false))
	return ids
}

// passage are the messages that go through queue test while it is migrated to one with a single active consumer.
type passage struct {
	w         *world
	transport *v1alpha1.Transport
	// put are the ids of all messages, and had those that workers have had, in their order.
	put, had []string
}

// publish puts a message where new ones go, and one where those go that come back from a lane.
func (p *passage) publish() {
	p.w.Helper()
	fresh, back := fmt.Sprintf("new %02d", len(p.put)), fmt.Sprintf("back %02d", len(p.put))
	p.w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: fresh})
	p.w.amqp.Publish("async.return", "test", amqp091.Publishing{MessageId: back})
	p.put = append(p.put, fresh, back)
}

// empty takes all that is in one of the two queues, as workers do that consume it alone.
func (p *passage) empty(queue string) {
	p.w.Helper()
	if consumed := p.w.published("test").Consumed(); !slices.Equal(consumed, []string{queue}) {
		p.w.Errorf("workers consume %v, want %s", consumed, queue)
	}
	p.had = append(p.had, p.w.consume(queue, p.w.amqp.Ready(queue))...)
}

func (p *passage) awaitStep(step v1alpha1.MigrationStep) {
	p.w.Helper()
	testtransport.Eventually(p.w, "the step "+string(step), func() bool {
		status := &p.transport.Status
		return p.w.get(p.transport) && len(status.Migrations) == 1 && status.Migrations[0].Step == step
	})
}

// killAt kills the operator in the middle of a write, and messages come in before there is another one.
func (p *passage) killAt(method, pattern string, answered bool, trigger func()) {
	p.w.Helper()
	p.w.deadAt(method, pattern, answered, trigger, p.publish)
}

// check tells what workers have not had, or have had twice or in another order.
func (p *passage) check() {
	p.w.Helper()
	isNew := func(id string) bool { return strings.HasPrefix(id, "new") }
	if fresh := slices.DeleteFunc(slices.Clone(p.had), func(id string) bool { return !isNew(id) }); !slices.IsSorted(fresh) {
		p.w.Errorf("the order of new messages is lost: %q", fresh)
	}
	slices.Sort(p.put)
	slices.Sort(p.had)
	if !slices.Equal(p.had, p.put) {
		p.w.Errorf("published were %q, and workers have had %q", p.put, p.had)
	}
	for name := range p.w.observed().Queues {
		if left := p.w.amqp.Ready(name); left > 0 {
			p.w.Errorf("%d messages are in %s", left, name)
		}
	}
}

// The next operator has nothing but the broker and the status to go by.
func TestMigration_GoesOnWhenTheOperatorIsKilledBetweenSteps(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	p := &passage{w: w, transport: w.ready()}
	nothing := func() {}
	p.publish()

	t.Log("before and while the stand-in takes over")
	p.killAt("PUT", "/queues/[^/]+/test.migrating$", true, func() {
		edit(w, p.transport, func(t *v1alpha1.Transport) { t.Spec.Queues[0].SingleActiveConsumer = new(true) })
	})
	p.killAt("DELETE", "/e/async/q/test/", true, nothing)

	t.Log("while the queue goes: it was found empty, and is not any more")
	p.awaitStep(v1alpha1.MigrationDrain)
	w.deadAt("DELETE", "/queues/[^/]+/test$", false, func() { p.empty("test") }, func() {
		p.publish()
		w.amqp.Publish("", "test", amqp091.Publishing{MessageId: "straight into the queue"})
		p.put = append(p.put, "straight into the queue")
		w.awaitCount("test", 1)
	})
	w.awaitLooks(6)
	if queue, exists := w.observed().Queues["test"]; !exists || queue.Arguments["x-single-active-consumer"] == true {
		t.Fatal("the queue went with a message in it")
	}
	p.killAt("DELETE", "/queues/[^/]+/test$", true, func() { p.empty("test") })

	t.Log("when it is made, and while it takes over")
	p.killAt("PUT", "/queues/[^/]+/test$", true, nothing)
	p.killAt("DELETE", "/e/async/q/test.migrating/", true, nothing)

	t.Log("when the stand-in is gone")
	p.awaitStep(v1alpha1.MigrationCleanup)
	p.killAt("DELETE", "/queues/[^/]+/test.migrating$", true, func() { p.empty("test.migrating") })
	w.eventually("the exchange to be over", func() bool {
		return w.get(p.transport) && len(p.transport.Status.Migrations)+len(p.transport.Status.Retiring) == 0 && w.published("test").Standin == ""
	})
	w.awaitReady(p.transport)
	if condition := meta.FindStatusCondition(p.transport.Status.Conditions, v1alpha1.ReconcilingCondition); condition != nil {
		t.Errorf("the status still says %+v", condition)
	}
	if w.observed().Queues["test"].Arguments["x-single-active-consumer"] != true || w.hasQueue("test.migrating") {
		t.Errorf("the queue is %+v, and the stand-in is left: %v", w.observed().Queues["test"].Queue, w.hasQueue("test.migrating"))
	}
	p.empty("test")
	p.check()
}

// A deletion takes no further step of a migration. Workers that consume one of the two queues after the other go on to the other
// all the same, or what is in it would keep the Transport for ever.
func TestMigration_LeavesNothingUnreadInADeletion(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "older"})
	w.awaitCount("test", 1)
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues[0].SingleActiveConsumer = new(true) })
	w.eventually("the queue to be emptied", func() bool {
		return w.get(transport) && len(transport.Status.Migrations) == 1 && transport.Status.Migrations[0].Step == v1alpha1.MigrationDrain
	})
	if queue := w.published("test"); queue.Reads != compile.ReadsQueue || queue.Standin != "test.migrating" {
		t.Fatalf("it is published as %+v", queue)
	}
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "newer"})
	w.awaitCount("test.migrating", 1)
	must(t, w.client.Delete(t.Context(), transport))
	w.blocked(transport)
	w.awaitLooks(4)
	if queue := w.published("test"); queue.Reads != compile.ReadsQueue {
		t.Errorf("while the older message is there, %s is consumed", queue.Reads)
	}
	w.consumeOne("test")
	testtransport.Eventually(t, "the stand-in to be consumed", func() bool { return w.published("test").Reads == compile.ReadsStandin })
	w.consumeOne("test.migrating")
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
}

func TestMigration_RenamesAQueueWithItsStepsInTheStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "older"})
	w.awaitCount("test", 1)
	w.quarantined()
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Name, t.Spec.Queues[0].PreviousNames = "orders", []string{"test"}
	})
	w.eventually("the old queue to be emptied", func() bool {
		return w.get(transport) && len(transport.Status.Migrations) == 1 && transport.Status.Migrations[0].Step == v1alpha1.MigrationCleanup
	})
	if m := transport.Status.Migrations[0]; m.Queue != "orders" || m.Standin != "test" {
		t.Errorf("the status has %+v", m)
	}
	testtransport.Eventually(t, "the workers to consume both", func() bool {
		queue, old := w.published("orders"), w.published("test")
		return slices.Equal(queue.Consumed(), []string{"orders", "test"}) && old.Reads == compile.ReadsQuarantine && old.Quarantine == "test.quarantine"
	})
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "newer"})
	w.awaitCount("orders", 1)
	w.amqp.Publish("async.return", "test", amqp091.Publishing{MessageId: "from a lane"})
	w.awaitCount("orders", 2)
	if id := w.amqp.Take("test").MessageId; id != "older" {
		t.Errorf("the old queue has %s", id)
	}
	must(t, client.IgnoreNotFound(w.client.Delete(t.Context(), w.quarantine(transport)))) // it is made again for a queue that goes
	w.awaitQuarantine(transport)
	w.handleQuarantine()
	w.eventually("all of the old name to be gone", func() bool {
		return w.get(transport) && len(transport.Status.Migrations)+len(transport.Status.Retiring) == 0 && w.published("test").Name == ""
	})
	if w.hasQueue("test") || w.hasQueue("test.quarantine") || w.published("orders").Standin != "" {
		t.Errorf("left is %+v", w.published("orders"))
	}
	w.awaitEvent("MigrationStarted", "queue orders takes over from its previous name test")
	w.awaitReady(transport)
}

// boundTo are the queues into which an exchange leads messages with a key.
func (w *world) boundTo(exchange, key string) (queues []string) {
	w.Helper()
	for _, b := range w.observed().Bindings {
		if b.Source == exchange && b.RoutingKey == key && !b.ToExchange {
			queues = append(queues, b.Destination)
		}
	}
	return queues
}

// Where messages have an order, the workers consume the old queue alone. It must not be left to itself when its name is given up before
// it is empty.
func TestMigration_EmptiesAnOldQueueWhoseNameIsGivenUp(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	w := newWorld(t)
	transport := w.scaled(func(*v1alpha1.Worker) {})
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues[0].SingleActiveConsumer = new(true) })
	testtransport.Eventually(t, "a queue with a single active consumer", func() bool {
		return w.get(transport) && len(transport.Status.Migrations) == 0 && w.observed().Queues["test"].Arguments["x-single-active-consumer"] == true
	})
	w.awaitReady(transport)
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "older"})
	w.awaitCount("test", 1)
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Name, t.Spec.Queues[0].PreviousNames = "orders", []string{"test"}
	})
	alone := func() bool { return slices.Equal(w.published("orders").Consumed(), []string{"test"}) }
	testtransport.Eventually(t, "the workers to consume the old queue alone", alone)
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues[0].PreviousNames = nil })
	w.eventually("the exchange to be given up, and nothing to lead into the old queue", func() bool {
		given := w.get(transport) && transport.Status.ObservedGeneration == transport.Generation && len(transport.Status.Migrations) == 0
		return given && slices.Equal(w.boundTo("async", "test"), []string{"orders"})
	})
	w.awaitLooks(4)
	if !alone() {
		t.Errorf("consumed are %v", w.published("orders").Consumed())
	}
	w.awaitNumber("the older message", "1")
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "newer"})
	w.awaitCount("orders", 1)
	w.consumeOne("test")
	testtransport.Eventually(t, "the old queue to be gone, and the new one consumed", func() bool {
		return !w.hasQueue("test") && slices.Equal(w.published("orders").Consumed(), []string{"orders"})
	})
	w.awaitReady(transport)
}

func TestQuarantine_IsHandledWhereAQueueGetsAnOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.quarantined()
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
	})
	w.eventually("the queue to have its order", func() bool {
		return w.get(transport) && transport.Status.ObservedGeneration == transport.Generation && len(transport.Status.Migrations) == 0 &&
			w.published("test").Strict != ""
	})
	must(t, client.IgnoreNotFound(w.client.Delete(t.Context(), w.quarantine(transport)))) // it is made again
	w.awaitQuarantine(transport)
	w.handleQuarantine()
	testtransport.Eventually(t, "the quarantine queue to be gone", func() bool { return !w.hasQueue("test.quarantine") })
	w.awaitReady(transport)
}

func TestTransport_EmptiesAQueueThatLeavesTheSpec(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	before := w.published("test")
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "older"})
	w.awaitCount("test", 1)
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Name, t.Spec.Exchange.UnroutedTo = "other", nil
		t.Spec.Queues[0].BindingKeys = []string{"other"}
	})
	testtransport.Eventually(t, "the new queue", func() bool { return w.published("other").Name != "" })
	w.awaitLooks(4)
	old := w.published("test")
	if !old.Leaving || !slices.Equal(old.Consumed(), []string{"test"}) || old.Policy != before.Policy || old.Quarantine != before.Quarantine {
		t.Errorf("it is published as %+v", old)
	}
	w.awaitReady(transport)
	w.amqp.Take("test")
	testtransport.Eventually(t, "it to be gone", func() bool {
		return !w.hasQueue("test") && !w.hasQueue("test.quarantine") && w.published("test").Name == ""
	})
	w.awaitReady(transport)
}

func TestQuarantine_HasItsShareOfTheLimitsOfItsGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.transport()
	transport.Spec.Workers[0].RateLimits = []v1alpha1.RateLimit{{Name: "partner", PerSecond: intOrString(10)}}
	w.create(w.policy("policy", time.Second), transport)
	w.awaitReady(transport)
	shares := func(want int) func() bool {
		return func() bool {
			configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: workload.Name(transport, "default")}}
			w.get(configMap)
			config, err := compile.Decode([]byte(configMap.Data[workload.ConfigKey]))
			return err == nil && config.Replicas == want
		}
	}
	testtransport.Eventually(t, "two pods to share", shares(2))
	w.quarantined()
	w.awaitQuarantine(transport)
	testtransport.Eventually(t, "three to share", shares(3))
	w.handleQuarantine()
	testtransport.Eventually(t, "two to share again", shares(2))
}
