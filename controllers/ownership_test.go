package controllers_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
)

// neighbour is the same vhost seen from another namespace.
func (w *world) neighbour(o *operator) *world {
	w.Helper()
	other := *w
	other.namespace, other.operator = privateNamespace(w.T, testcluster.Start(w.T)), o
	o.namespaces = append(o.namespaces, other.namespace)
	other.create(other.secret())
	w.Cleanup(other.release)
	return &other
}

// objects are all that stands on the broker, without what changes by itself.
func (w *world) objects() string {
	w.Helper()
	observed := w.observed()
	var lines []string
	for _, queue := range observed.Queues {
		lines = append(lines, "queue "+document(w, queue.Queue))
	}
	for name, exchange := range observed.Exchanges {
		if name != "" && !strings.HasPrefix(name, "amq.") {
			lines = append(lines, "exchange "+document(w, exchange.Exchange))
		}
	}
	for _, binding := range observed.Bindings {
		lines = append(lines, "binding "+document(w, binding))
	}
	for _, policy := range observed.Policies {
		lines = append(lines, "policy "+document(w, policy))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// second is a Transport with names of its own beside the one of most tests.
func (w *world) second() *v1alpha1.Transport {
	t := w.transport()
	t.Name, t.Spec.Exchange.Name, t.Spec.Exchange.UnroutedTo = "second", "second", nil
	t.Spec.Queues = []v1alpha1.Queue{{Name: "second", BindingKeys: []string{"second"}}}
	return t
}

// claims are what a second Transport may want of the first one's.
var claims = map[string]struct {
	change func(*v1alpha1.Transport)
	// object and field that the condition names.
	says []string
}{
	"the prefix": {
		change: func(t *v1alpha1.Transport) { t.Spec.Prefix = new("async") },
		says:   []string{`exchange "async.failed": redrive-owner is `, `exchange "async.fallback"`},
	},
	"a work queue": {
		change: func(t *v1alpha1.Transport) {
			t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "test", BindingKeys: []string{"test"}})
		},
		says: []string{`queue "test": redrive-owner is `},
	},
	"a work queue, to adopt it": {
		change: func(t *v1alpha1.Transport) {
			t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "test", Adopt: new(true), BindingKeys: []string{"test"}})
		},
		says: []string{`queue "test": redrive-owner is `},
	},
	"a classic work queue, which carries no mark": {
		change: func(t *v1alpha1.Transport) {
			t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "plain", Type: new(v1alpha1.QueueClassic), BindingKeys: []string{"plain"}})
		},
		says: []string{`queue "plain": x-dead-letter-exchange is async.failed, wanted is second.failed; `},
	},
	"a classic work queue, to adopt it": {
		change: func(t *v1alpha1.Transport) {
			t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "plain", Adopt: new(true)})
		},
		says: []string{`queue "plain": redrive-owner of its dead-letter exchange async.failed is `},
	},
	"a queue that it adopted": {
		change: func(t *v1alpha1.Transport) {
			t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "legacy", Adopt: new(true)})
		},
		says: []string{`queue "legacy": redrive-owner of the binding async.return -> legacy "legacy" is `},
	},
	"the failure queue": {
		change: func(t *v1alpha1.Transport) { t.Spec.Failure = &v1alpha1.Failure{Queue: new("async.failed")} },
		says:   []string{`queue "async.failed": redrive-owner is `},
	},
}

// checkClaims lets a second Transport make some claims on what the first has: the first keeps it, the second says whose it is, and when
// one of them is deleted the other has all that is its own.
func checkClaims(t *testing.T, first, second *world, names []string) {
	first.amqpDeclare("legacy", nil)
	first.create(first.policy("policy", time.Second))
	if second.namespace != first.namespace {
		second.create(second.policy("policy", time.Second, 3*time.Second))
	}
	winner := first.transport()
	winner.Spec.Queues = append(winner.Spec.Queues,
		v1alpha1.Queue{Name: "plain", Type: new(v1alpha1.QueueClassic), BindingKeys: []string{"plain"}},
		v1alpha1.Queue{Name: "legacy", Adopt: new(true), BindingKeys: []string{"legacy"}})
	first.create(winner)
	first.awaitReady(winner)
	alone := first.objects()
	for _, name := range names {
		claim := claims[name]
		t.Run(name, func(t *testing.T) {
			w := *second
			w.T = t
			loser := w.second()
			claim.change(loser)
			w.create(loser)
			message := w.await(loser, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonConflict)
			for _, part := range append(claim.says, "the Transport "+winner.Namespace+"/async") {
				if !strings.Contains(message, part) {
					t.Errorf("the condition %q does not say %q", message, part)
				}
			}
			for _, deployment := range w.deployments() {
				if deployment.Labels["redrive.dev/transport"] == loser.Name {
					t.Error("its workers run, and would take the other's messages")
				}
			}
			must(t, w.client.Delete(t.Context(), loser))
			w.awaitGone(loser)
			if got := first.objects(); got != alone {
				t.Errorf("it has left its traces:\n%s\nbefore:\n%s", got, alone)
			}
			first.awaitReady(winner)
		})
	}
	t.Run("the winner goes first", func(t *testing.T) {
		w := *second
		w.T = t
		loser := w.second()
		loser.Spec.Exchange.Name = "async" // and by it the prefix
		loser.Spec.Queues = append(loser.Spec.Queues, v1alpha1.Queue{Name: "test", BindingKeys: []string{"test"}})
		w.create(loser)
		w.await(loser, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonConflict)
		first.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "in flight"})
		first.awaitCount("test", 1)
		must(t, first.client.Delete(t.Context(), winner))
		first.await(winner, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
		if got := first.amqp.Take("test"); got.MessageId != "in flight" {
			t.Errorf("took %q", got.MessageId)
		}
		first.awaitGone(winner)
		w.awaitReady(loser)
		w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "for the other"})
		if got := w.amqp.Take("test"); got.MessageId != "for the other" {
			t.Errorf("took %q", got.MessageId)
		}
		must(t, w.client.Delete(t.Context(), loser))
		w.awaitGone(loser)
		_, err := w.amqp.Channel().QueueDelete("legacy", false, false, false)
		must(t, err)
		checkBrokerIsEmpty(&w)
	})
}

// amqpDeclare makes a durable queue as an application does.
func (w *world) amqpDeclare(queue string, arguments amqp091.Table) {
	w.Helper()
	_, err := w.amqp.Channel().QueueDeclare(queue, true, false, false, false, arguments)
	must(w.T, err)
}

func TestOwnership_GivesAnObjectToOneOfTwoTransports(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	w := newWorld(t)
	checkClaims(t, w, w, slices.Sorted(maps.Keys(claims)))
}

func TestOwnership_GivesAnObjectToOneOfTwoClusters(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	first := newPrivateWorld(t, &operator{})
	second := first.neighbour(&operator{uid: "another-cluster"})
	second.operator.start(t, testcluster.Start(t))
	t.Cleanup(second.operator.stop)
	checkClaims(t, first, second, []string{"the prefix", "a work queue", "a queue that it adopted"})
}

func TestOwnership_LetsTwoTransportsShareTheProducersExchange(t *testing.T) {
	t.Parallel()
	for name, firstGoesFirst := range map[string]bool{"the one that made it goes first": true, "the other goes first": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first := w.ready()
			second := w.second()
			second.Spec.Exchange.Name, second.Spec.Prefix = "async", new("second")
			w.create(second)
			w.awaitReady(second)
			if !slices.Contains(second.Status.Adopted, "exchange/async") || len(second.Status.Created) > 0 {
				t.Errorf("adopted %v, created %v", second.Status.Adopted, second.Status.Created)
			}
			w.awaitEvent("Adopted", "adopted exchange async")
			w.amqp.Publish("async", "nobody's key", amqp091.Publishing{MessageId: "unrouted"})
			if got := w.amqp.Take("lost"); got.MessageId != "unrouted" {
				t.Errorf("took %q", got.MessageId)
			}
			gone, left, queue := second, first, "test"
			if firstGoesFirst {
				gone, left, queue = first, second, "second"
			}
			must(t, w.client.Delete(t.Context(), gone))
			w.awaitGone(gone)
			w.amqp.Publish("async", queue, amqp091.Publishing{MessageId: "goes on"})
			if got := w.amqp.Take(queue); got.MessageId != "goes on" {
				t.Errorf("took %q", got.MessageId)
			}
			w.awaitReady(left)
			must(t, w.client.Delete(t.Context(), left))
			w.awaitGone(left)
			if firstGoesFirst {
				// Whoever made it could not delete it while it was in use, and the other never owned it.
				must(t, w.amqp.Channel().ExchangeDelete("async", true, false))
			}
			checkBrokerIsEmpty(w)
		})
	}
}

// oldConsumer takes messages from a queue and settles them as told, as code that knows nothing of Redrive does.
func (w *world) oldConsumer(queue string, settle func(amqp091.Delivery) error) {
	w.Helper()
	channel := testtransport.Connect(w.T, testbroker.Shared(w.T).URL(w.vhost)).Channel()
	must(w.T, channel.Qos(1, 0, false))
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	must(w.T, err)
	go func() {
		for delivery := range deliveries {
			_ = settle(delivery)
		}
	}()
}

func TestAdoption_IsReportedAndTheQueueOutlivesTheTransport(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.amqpDeclare("legacy", amqp091.Table{"x-max-length": int32(5000)})
	messages := make([]amqp091.Publishing, 1234)
	w.amqp.Publish("", "legacy", messages...)
	w.awaitCount("legacy", 1234)
	// Two that hold what they have got.
	for range 2 {
		w.oldConsumer("legacy", func(amqp091.Delivery) error { return nil })
	}
	testtransport.Eventually(t, "the broker's figures to show the consumers", func() bool {
		state, err := w.broker.Queue(t.Context(), "legacy")
		return err == nil && state.Consumers == 2
	})
	transport := w.transport()
	transport.Spec.DeletionPolicy = v1alpha1.DeletionDelete
	transport.Spec.Queues = append(transport.Spec.Queues,
		v1alpha1.Queue{Name: "legacy", Adopt: new(true), BindingKeys: []string{"legacy"}},
		v1alpha1.Queue{Name: "elsewhere", Adopt: new(true)})
	w.create(w.policy("policy", time.Second), transport)

	t.Log("one of the two is there, the other is waited for")
	message := w.await(transport, v1alpha1.ReconcilingCondition, metav1.ConditionTrue, v1alpha1.ReasonProgressing)
	if want := "queue elsewhere: there is no queue to adopt"; !strings.Contains(message, want) {
		testtransport.Eventually(t, want, func() bool {
			return strings.Contains(w.await(transport, v1alpha1.ReconcilingCondition, metav1.ConditionTrue, v1alpha1.ReasonProgressing), want)
		})
	}
	if w.hasQueue("elsewhere") {
		t.Error("a queue to adopt was made")
	}
	w.awaitEvent("Adopted", "adopted queue legacy with 1,234 messages and 2 consumers")
	warning := w.await(transport, v1alpha1.DegradedCondition, metav1.ConditionTrue, v1alpha1.ReasonOther)
	if !strings.Contains(warning, "queue legacy: its argument x-max-length is 5000") {
		t.Errorf("the warning says %q", warning)
	}
	w.amqpDeclare("elsewhere", amqp091.Table{"x-queue-type": "quorum"})
	w.awaitReady(transport)
	if want := []string{"queue/legacy", "queue/elsewhere"}; !slices.Equal(transport.Status.Adopted, want) {
		t.Errorf("status.adopted %v", transport.Status.Adopted)
	}
	w.awaitEvent("Adopted", "adopted queue elsewhere with ")
	checkToldOnce(w, "adopted queue legacy")

	t.Log("what a consumer of it rejects is not lost any more")
	w.oldConsumer("elsewhere", func(d amqp091.Delivery) error { return d.Reject(false) })
	var published time.Time
	testtransport.Eventually(t, "a rejected message in the failure queue", func() bool {
		// The broker names the policy of a queue a little before the queue goes by it: what is rejected in between is dropped.
		if time.Since(published) > 5*time.Second {
			w.amqp.Publish("", "elsewhere", amqp091.Publishing{MessageId: "rejected"})
			published = time.Now()
		}
		return w.amqp.Ready("async.failed") > 0
	})
	if got := w.amqp.Take("async.failed"); got.MessageId != "rejected" {
		t.Errorf("took %q", got.MessageId)
	}

	t.Log("deletionPolicy Delete does not touch it")
	must(t, w.client.Delete(t.Context(), transport))
	w.awaitGone(transport)
	observed := w.observed()
	if len(observed.Queues) != 2 || len(observed.Bindings) > 0 || len(observed.Policies) > 0 {
		t.Errorf("left are %d queues, bindings %v, policies %v", len(observed.Queues), observed.Bindings, observed.Policies)
	}
	if got := w.amqp.Ready("legacy"); got != 1232 { // the two consumers hold one each
		t.Errorf("%d messages in the adopted queue", got)
	}
}

// checkToldOnce counts the events with a text.
func checkToldOnce(w *world, part string) {
	w.Helper()
	var list eventsv1.EventList
	must(w.T, w.client.List(w.Context(), &list, client.InNamespace(w.namespace)))
	told := 0
	for i := range list.Items {
		if event := &list.Items[i]; strings.Contains(event.Note, part) {
			told++
			if event.Series != nil {
				told += int(event.Series.Count)
			}
		}
	}
	if told != 1 {
		text, _ := json.Marshal(list.Items)
		w.Errorf("%q was told %d times: %s", part, told, text)
	}
}

func TestAdoption_KeepsAQueueThatTheTransportMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues[0].Adopt = new(true) })
	w.awaitReady(transport)
	if want := []string{"queue/test"}; !slices.Equal(transport.Status.Adopted, want) {
		t.Errorf("status.adopted %v", transport.Status.Adopted)
	}
	t.Log("out of the spec")
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues = t.Spec.Queues[1:]
		t.Spec.Workers[0].Queues = nil
	})
	testtransport.Eventually(t, "the queue to be let go", func() bool {
		w.awaitReady(transport)
		return len(w.observed().BindingsTo("test")) == 0 && len(transport.Status.Retiring) == 0
	})
	if _, stays := w.observed().Policies["redrive.async:queue:test"]; stays {
		t.Error("its policy is left")
	}
	t.Log("and the Transport gone")
	must(t, w.client.Delete(t.Context(), transport))
	w.awaitGone(transport)
	observed := w.observed()
	if _, stays := observed.Queues["test"]; !stays || len(observed.Queues) != 2 { // with the failure queue, to which it dead-letters
		t.Errorf("left are %v", observed.Queues)
	}
	t.Log("which another team goes on using when it is made again, and nothing but the mark is known of it")
	channel := w.amqp.Channel()
	must(t, channel.ExchangeDeclare("theirs", "fanout", true, false, false, false, nil))
	must(t, channel.QueueBind("test", "", "theirs", false, nil))
	w.amqp.Publish("theirs", "", amqp091.Publishing{MessageId: "before"})
	anew := w.transport()
	anew.Spec.Queues, anew.Spec.Workers[0].Queues = transport.Spec.Queues, nil
	w.create(anew)
	w.awaitEvent("Preserved", "queue test: it carries this Transport's mark")
	w.awaitReady(anew)
	w.awaitLooks(4)
	w.amqp.Publish("theirs", "", amqp091.Publishing{MessageId: "after"})
	if ready := w.amqp.Ready("test"); ready != 2 {
		t.Errorf("%d messages in the queue", ready)
	}
	if w.get(anew); !slices.Contains(anew.Status.Adopted, "queue/test") || len(anew.Status.Retiring) > 0 || len(w.observed().BindingsTo("test")) != 1 {
		t.Errorf("adopted %v, retiring %v, bindings %v", anew.Status.Adopted, anew.Status.Retiring, w.observed().BindingsTo("test"))
	}
}
