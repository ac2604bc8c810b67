package controllers_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	amqp091 "github.com/rabbitmq/amqp091-go"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// series are the values of a metric in the namespace of this test, by the values of some labels.
func (w *world) series(metric string, labels ...string) map[string]float64 {
	w.Helper()
	found := map[string]float64{}
	for _, family := range w.operator.metrics(w) {
		if family.GetName() != metric {
			continue
		}
		for _, m := range family.GetMetric() {
			if label(m, "namespace") == w.namespace {
				values := make([]string, len(labels))
				for i := range labels {
					values[i] = label(m, labels[i])
				}
				found[strings.Join(values, " ")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return found
}

func label(m *dto.Metric, name string) string {
	for _, pair := range m.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// repairs are the repairs that were counted, by kind and action.
func (w *world) repairs() map[string]float64 {
	w.Helper()
	return w.series("redrive_drift_repairs_total", "kind", "action")
}

func (w *world) events(reason string) []eventsv1.Event {
	w.Helper()
	var list eventsv1.EventList
	must(w.T, w.client.List(w.Context(), &list, client.InNamespace(w.namespace)))
	return slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool { return e.Reason != reason })
}

// applied is a Transport that was made in full, and of whose queues the operator has seen the counts.
func (w *world) applied() *v1alpha1.Transport {
	w.Helper()
	transport := w.ready()
	if transport.Status.TopologyHash == "" {
		w.Fatal("status.topologyHash is empty")
	}
	testtransport.Eventually(w, "the operator to see the counts of all queues", func() bool {
		return len(w.series("redrive_queue_messages", "queue")) == len(w.observed().Queues)
	})
	return transport
}

// unseen does something between two looks of the operator, so that it is not seen by halves: an exchange that is gone, and
// its bindings that are still there or were read before.
func (w *world) unseen(do func()) {
	w.Helper()
	defer w.proxy.down.Store(false)
	reads, since := int64(-1), time.Now()
	testtransport.Eventually(w, "a pause between two looks", func() bool {
		if now := w.proxy.reads.Load(); now != reads {
			reads, since = now, time.Now()
		}
		return time.Since(since) > pollInterval/5
	})
	w.proxy.down.Store(true)
	testtransport.Eventually(w, "the answers under way", func() bool { return w.proxy.open.Load() == 0 })
	do()
}

func (w *world) policyStep(action topology.Action, policy topology.Policy) {
	w.Helper()
	_, err := w.broker.Apply(w.Context(), topology.Step{Action: action, Policy: &policy})
	must(w.T, err)
}

func TestDrift_IsRepairedWithinOnePoll(t *testing.T) {
	t.Parallel()
	deleteQueue := func(name string) func(*world) {
		return func(w *world) {
			_, err := w.amqp.Channel().QueueDelete(name, false, false, false)
			must(w.T, err)
		}
	}
	deleteExchange := func(name string) func(*world) {
		return func(w *world) { must(w.T, w.amqp.Channel().ExchangeDelete(name, false, false)) }
	}
	// unbind removes the binding of this name, whatever its arguments.
	unbind := func(name string) func(*world) {
		return func(w *world) {
			for _, binding := range w.observed().Bindings {
				if binding.Name() == name {
					_, err := w.broker.Apply(w.Context(), topology.Step{Action: topology.ActionDelete, Binding: &binding})
					must(w.T, err)
					return
				}
			}
			w.Fatalf("no binding %s", name)
		}
	}
	const create = " create"
	tests := map[string]struct {
		prepares, breaks func(*world)
		event            string
		counts           map[string]float64
	}{
		"a work queue": {
			breaks: deleteQueue("test"),
			event: "deleted with the messages in them: test (none when last seen); created again: queue test, " +
				`binding async.return -> test "test", binding async -> test "test"`,
			counts: map[string]float64{"queue" + create: 1, "binding" + create: 2},
		},
		"a work queue with messages in it": {
			prepares: func(w *world) {
				w.amqp.Publish("async", "test", make([]amqp091.Publishing, 3)...)
				testtransport.Eventually(w, "the operator to see three messages", func() bool {
					return w.series("redrive_queue_messages", "queue")["test"] == 3
				})
			},
			breaks: deleteQueue("test"),
			event:  "deleted with the messages in them: test (3 when last seen); created again: queue test",
			counts: map[string]float64{"queue" + create: 1, "binding" + create: 2},
		},
		"a lane": {
			breaks: deleteQueue("async.fallback.1s"),
			event:  "created again: queue async.fallback.1s, binding async.fallback -> async.fallback.1s redrive-lane=1s",
			counts: map[string]float64{"queue" + create: 1, "binding" + create: 1},
		},
		"the failure queue": {
			breaks: deleteQueue("async.failed"),
			event:  `created again: queue async.failed, binding async.failed -> async.failed ""`,
			counts: map[string]float64{"queue" + create: 1, "binding" + create: 1},
		},
		"a binding": {
			breaks: unbind(`async -> test "test"`),
			event:  `created again: binding async -> test "test"`,
			counts: map[string]float64{"binding" + create: 1},
		},
		"the binding of a lane": {
			breaks: unbind("async.fallback -> async.fallback.2s redrive-lane=2s"),
			event:  "created again: binding async.fallback -> async.fallback.2s redrive-lane=2s",
			counts: map[string]float64{"binding" + create: 1},
		},
		"a private exchange": {
			breaks: deleteExchange("async.return"),
			event: `created again: exchange async.return, binding async.return -> test.quarantine "test.quarantine", ` +
				`binding async.return -> lost.quarantine "lost.quarantine", binding async.return -> test "test", binding async.return -> lost "lost"`,
			counts: map[string]float64{"exchange" + create: 1, "binding" + create: 4},
		},
		"the exchange of the lanes": {
			breaks: deleteExchange("async.fallback"),
			event:  "created again: exchange async.fallback, binding async.fallback -> async.fallback.1s",
			counts: map[string]float64{"exchange" + create: 1, "binding" + create: 2},
		},
		"the producers' exchange": {
			breaks: deleteExchange("async"),
			event:  `created again: exchange async, binding async -> test "test", binding async -> lost "lost"`,
			counts: map[string]float64{"exchange" + create: 1, "binding" + create: 2},
		},
		"a policy": {
			breaks: func(w *world) { w.policyStep(topology.ActionDelete, topology.Policy{Name: "redrive.async:lanes"}) },
			event:  "created again: policy redrive.async:lanes",
			counts: map[string]float64{"policy" + create: 1},
		},
		"what a policy says": {
			breaks: func(w *world) {
				policy := w.observed().Policies["redrive.async:queue:test"]
				policy.Definition = topology.Arguments{"delivery-limit": 20, "message-ttl": 1000}
				policy.Priority = 7
				w.policyStep(topology.ActionUpdate, policy)
			},
			event:  "changed back: policy redrive.async:queue:test priority: 7 -> 100, message-ttl: 1000 -> none",
			counts: map[string]float64{"policy update": 1},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.applied()
			if tt.prepares != nil {
				tt.prepares(w)
			}
			w.unseen(func() { tt.breaks(w) })
			w.awaitRepair(tt.counts)
			w.awaitEvent("Repaired", tt.event)
			w.awaitNoBridge()
			checkTopology(w, transport)
			w.awaitReady(transport)

			server, broker := w.operator.writes.of(w.namespace), w.proxy.writes.Load()
			w.awaitLooks(3)
			if now := w.proxy.writes.Load(); now > broker {
				t.Errorf("the next polls write to the broker: %v", w.proxy.since(int(broker)))
			}
			written := slices.DeleteFunc(w.operator.writes.of(w.namespace)[len(server):], isEvent)
			// The count of the failure queue may come late, and is written then.
			if len(written) > 1 {
				t.Errorf("the next polls write to the API server: %v", written)
			}
			if got := w.repairs(); fmt.Sprint(got) != fmt.Sprint(tt.counts) {
				t.Errorf("counted %v", got)
			}
			for _, event := range w.events("Repaired") {
				if event.Type != "Warning" || event.Series != nil {
					t.Errorf("the event is %s, of the series %v: %s", event.Type, event.Series, event.Note)
				}
			}
		})
	}
}

func isEvent(write string) bool {
	return strings.HasSuffix(write, "/events") || strings.Contains(write, "/events/")
}

// awaitRepair waits until repairs are counted, and checks that the operator needed no more than the poll that was due.
func (w *world) awaitRepair(counts map[string]float64) {
	w.Helper()
	before, written := w.proxy.reads.Load(), w.proxy.writes.Load()
	defer func() {
		if w.Failed() {
			w.Logf("counted %v, written %v", w.repairs(), w.proxy.since(int(written)))
		}
	}()
	testtransport.Eventually(w, fmt.Sprintf("the repairs %v", counts), func() bool {
		return fmt.Sprint(w.repairs()) == fmt.Sprint(counts)
	})
	// One look may have begun before, one finds it, and the next may have followed before it was seen here.
	if looks := (w.proxy.reads.Load() - before) / 5; looks > 3 {
		w.Errorf("it took %d looks", looks)
	}
}

func TestDrift_CountsNoOrdinaryChangeAsARepair(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.applied()
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "more", BindingKeys: []string{"more"}})
		t.Spec.Queues[0].Limits = &v1alpha1.Limits{DropOldestAfter: new(int64(9))}
	})
	w.awaitReady(transport)
	edit(w, w.policy("policy"), func(p *v1alpha1.RetryPolicy) { p.Spec = testtransport.Explicit(time.Second, 5*time.Second) })
	testtransport.Eventually(t, "the lane of 5s to be there and that of 2s to be gone", func() bool {
		return w.hasQueue("async.fallback.5s") && !w.hasQueue("async.fallback.2s")
	})
	w.awaitReady(transport)
	// What others have made is not taken from them and made anew, but what is bound to it is told of as a change too.
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Bindings = []v1alpha1.Binding{{Exchange: "shop.events", Keys: []string{"order.#"}}}
	})
	w.await(transport, v1alpha1.ReconcilingCondition, metav1.ConditionTrue, v1alpha1.ReasonProgressing)
	must(t, w.amqp.Channel().ExchangeDeclare("shop.events", amqp091.ExchangeTopic, true, false, false, false, nil))
	w.awaitReady(transport)
	w.awaitEvent("TopologyUpdated", "create queue")
	if repairs, events := w.repairs(), w.events("Repaired"); len(repairs)+len(events) > 0 {
		t.Errorf("counted %v, told %v", repairs, events)
	}

	t.Log("what is missing then is a repair")
	_, err := w.amqp.Channel().QueueDelete("more", false, false, false)
	must(t, err)
	w.awaitEvent("Repaired", "created again: queue more")
	must(t, w.client.Delete(t.Context(), transport))
	w.awaitGone(transport)
	testtransport.Eventually(t, "the series of a Transport that is gone to go", func() bool { return len(w.repairs()) == 0 })
}

func TestDrift_IsRepairedAfterTheOperatorWasAway(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	w.applied()
	w.operator.stop()
	_, err := w.amqp.Channel().QueueDelete("test", false, false, false)
	must(t, err)
	w.operator.start(t, testcluster.Start(t))
	w.awaitEvent("Repaired", "deleted with the messages in them: test (number not known); created again: queue test")
	w.awaitRepair(map[string]float64{"queue create": 1, "binding create": 2})
}

func TestDrift_CountsNoSpecThatChangedMeanwhileAsARepair(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	transport := w.applied()
	w.operator.stop()
	_, err := w.amqp.Channel().QueueDelete("test", false, false, false)
	must(t, err)
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "more", BindingKeys: []string{"more"}})
	})
	w.operator.start(t, testcluster.Start(t))
	w.awaitReady(transport)
	w.awaitEvent("TopologyUpdated", "create queue more")
	if repairs := w.repairs(); len(repairs) > 0 {
		t.Errorf("counted %v", repairs)
	}
}

func TestDrift_IsAConflictWhereItCannotBeRepairedInPlace(t *testing.T) {
	t.Parallel()
	replaceQueue := func(name string, arguments amqp091.Table) func(*world) {
		return func(w *world) {
			_, err := w.amqp.Channel().QueueDelete(name, false, false, false)
			must(w.T, err)
			_, err = w.amqp.Channel().QueueDeclare(name, true, false, false, false, arguments)
			must(w.T, err)
		}
	}
	replaceExchange := func(name, kind string) func(*world) {
		return func(w *world) {
			must(w.T, w.amqp.Channel().ExchangeDelete(name, false, false))
			must(w.T, w.amqp.Channel().ExchangeDeclare(name, kind, true, false, false, false, nil))
		}
	}
	remove := func(kind, name string) func(*world) {
		return func(w *world) {
			if kind == "queue" {
				_, err := w.amqp.Channel().QueueDelete(name, false, false, false)
				must(w.T, err)
				return
			}
			must(w.T, w.amqp.Channel().ExchangeDelete(name, false, false))
		}
	}
	tests := map[string]struct {
		replaces, mends func(*world)
		parts           []string
	}{
		"a work queue with another dead-letter exchange": {
			replaces: replaceQueue("test", amqp091.Table{
				"x-queue-type": "quorum", "x-dead-letter-exchange": "elsewhere",
				"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
			}),
			mends: remove("queue", "test"),
			parts: []string{`queue "test"`, "x-dead-letter-exchange is elsewhere, wanted is async.failed", "delete it once it is empty"},
		},
		"a lane with another TTL": {
			replaces: replaceQueue("async.fallback.1s", amqp091.Table{
				"x-queue-type": "quorum", "x-message-ttl": 900, "x-dead-letter-exchange": "async.return",
				"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
			}),
			mends: remove("queue", "async.fallback.1s"),
			parts: []string{`queue "async.fallback.1s"`, "x-message-ttl is 900, wanted is 1000"},
		},
		"a failure queue of another type": {
			replaces: replaceQueue("async.failed", amqp091.Table{"x-queue-type": "classic"}),
			mends:    remove("queue", "async.failed"),
			parts:    []string{`queue "async.failed"`, "type is classic, wanted is quorum"},
		},
		"a private exchange of another type": {
			replaces: replaceExchange("async.fallback", "direct"),
			mends:    remove("exchange", "async.fallback"),
			parts:    []string{`exchange "async.fallback"`, "type is direct, wanted is headers", "delete the exchange"},
		},
		"a producers' exchange of another type": {
			replaces: replaceExchange("async", "topic"),
			mends:    remove("exchange", "async"),
			parts:    []string{`exchange "async"`, "type is topic, wanted is direct"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.applied()
			// So that the operator does not make it first.
			w.unseen(func() { tt.replaces(w) })
			message := w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonConflict)
			for _, part := range tt.parts {
				if !strings.Contains(message, part) {
					t.Errorf("the condition says %q, not %q", message, part)
				}
			}
			tt.mends(w)
			w.awaitReady(transport)
			w.awaitEvent("Repaired", "created again: ")
			checkTopology(w, transport)
		})
	}
}

func TestDrift_ReportsAndKeepsBindingsOfOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.applied()
	must(t, w.amqp.Channel().ExchangeDeclare("shop.events", amqp091.ExchangeTopic, true, false, false, false, nil))
	must(t, w.amqp.Channel().QueueBind("test", "order.#", "shop.events", false, nil))
	must(t, w.amqp.Channel().QueueBind("async.fallback.1s", "late", "shop.events", false, nil))
	written := w.proxy.writes.Load()
	testtransport.Eventually(t, "both bindings to be reported", func() bool {
		message := w.await(transport, v1alpha1.DegradedCondition, metav1.ConditionTrue, v1alpha1.ReasonForeignBinding)
		return strings.Contains(message, `queue test: it also gets messages of exchange "shop.events" (key "order.#")`) &&
			strings.Contains(message, `queue async.fallback.1s: it also gets messages of exchange "shop.events" (key "late"): they wait here`)
	})
	w.awaitReady(transport)
	if now := w.proxy.writes.Load(); now > written {
		t.Errorf("the broker was written to: %v", w.proxy.since(int(written)))
	}
	w.amqp.Publish("shop.events", "order.paid", amqp091.Publishing{MessageId: "theirs"})
	if got := w.amqp.Take("test").MessageId; got != "theirs" {
		t.Errorf("queue test got %q", got)
	}
	must(t, w.amqp.Channel().QueueUnbind("async.fallback.1s", "late", "shop.events", nil))
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Bindings = []v1alpha1.Binding{{Exchange: "shop.events", Keys: []string{"order.#"}}}
	})
	w.awaitNoWarning(transport)
}

// awaitNoWarning waits until nothing is left to warn of.
func (w *world) awaitNoWarning(transport *v1alpha1.Transport) {
	w.Helper()
	w.eventually("the warning to go", func() bool {
		w.rollOut()
		w.get(transport)
		return meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.DegradedCondition) == nil
	})
}

func TestTransport_ReportsAStalledLaneWithTheFullQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.applied()
	bound := topology.Policy{
		Name: "bound", Pattern: "^test$", ApplyTo: "queues", Priority: 5000,
		Definition: topology.Arguments{"max-length": 2, "overflow": "reject-publish"},
	}
	w.policyStep(topology.ActionCreate, bound)
	message := w.await(transport, v1alpha1.DegradedCondition, metav1.ConditionTrue, v1alpha1.ReasonConflictingBrokerPolicy)
	for _, part := range []string{
		`queue test: the RabbitMQ policy "bound" bounds its length and refuses what is over: a full queue stops the lanes`,
		`give it a priority below 100`, `applies instead of "redrive.async:queue:test"`,
	} {
		if !strings.Contains(message, part) {
			t.Errorf("the condition says %q, not %q", message, part)
		}
	}

	t.Log("the queue is full")
	w.amqp.Publish("async", "test", make([]amqp091.Publishing, 2)...)
	message = w.await(transport, v1alpha1.DegradedCondition, metav1.ConditionTrue, v1alpha1.ReasonDestinationFull)
	if part := `queue test: it is full and refuses messages, which stops the lanes that lead to it (max-length 2 by the RabbitMQ policy "bound")`; !strings.Contains(message, part) {
		t.Errorf("the condition says %q, not %q", message, part)
	}

	t.Log("retries expire and have nowhere to go")
	// More than can stall it: a queue takes some over its limit before it refuses.
	for i := range 100 {
		w.park("1s", strconv.Itoa(i))
	}
	message = w.await(transport, v1alpha1.DegradedCondition, metav1.ConditionTrue, v1alpha1.ReasonLaneStalled)
	if part := "queue async.fallback.1s: 32 or more expired messages wait to leave it, and what comes later waits behind them: queue test is full"; !strings.Contains(message, part) {
		t.Errorf("the condition says %q, not %q", message, part)
	}
	w.awaitReady(transport)
	w.eventually("the metrics to tell of all that", func() bool {
		warnings := w.series("redrive_transport_condition", "condition", "reason")
		return w.series("redrive_queue_expired_messages", "queue")["async.fallback.1s"] >= 32 &&
			warnings["Degraded "+v1alpha1.ReasonLaneStalled] == 1 && warnings["Degraded "+v1alpha1.ReasonDestinationFull] == 1
	})

	t.Log("while it lasts nothing is written")
	// The broker's figures settle.
	testtransport.Eventually(t, "the condition to stay as it is", func() bool {
		w.get(transport)
		version := transport.ResourceVersion
		w.awaitLooks(6)
		w.get(transport)
		return transport.ResourceVersion == version
	})

	t.Log("the limit is taken away")
	w.policyStep(topology.ActionDelete, bound)
	w.eventually("the queue to be no longer full", func() bool {
		w.get(transport)
		warning := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.DegradedCondition)
		return warning == nil || !strings.Contains(warning.Message, "is full")
	})
}
