package controllers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
)

// park puts a message into a lane, as a worker does that has queue test.
func (w *world) park(lane, id string) {
	w.Helper()
	w.amqp.Publish("async.fallback", "test", amqp091.Publishing{MessageId: id, Headers: amqp091.Table{message.HeaderLane: lane}})
}

// takeIDs waits for a number of messages in a queue and gives their ids in order.
func (w *world) takeIDs(queue string, messages int) []string {
	w.Helper()
	ids := make([]string, messages)
	for i := range ids {
		ids[i] = w.amqp.Take(queue).MessageId
	}
	slices.Sort(ids)
	return ids
}

func TestOperator_FightsNoSecondOneAndLosesNothing(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	second := &operator{}
	w.startBeside(second)
	written := func() []int {
		return []int{len(w.operator.writes.of(w.namespace)) + len(second.writes.of(w.namespace)), int(w.proxy.writes.Load())}
	}
	awaitQuiet := func() {
		t.Helper()
		before := []int{-1, -1}
		testtransport.Eventually(t, "both operators to have nothing left to write", func() bool {
			now := written()
			quiet := slices.Equal(now, before)
			before = now
			w.awaitLooks(4)
			return quiet
		})
	}

	t.Log("apply")
	transport := w.ready()
	checkWorkers(w, transport)
	awaitQuiet()

	t.Log("another policy, with messages in the queue and in the lane that goes")
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "in the queue"})
	w.park("2s", "in the lane")
	deployment, soFar := w.deployments()[0], len(w.proxy.since(0))
	edit(w, w.policy("policy"), func(p *v1alpha1.RetryPolicy) { p.Spec = testtransport.Explicit(time.Second, 5*time.Second) })
	testtransport.Eventually(t, "the lane of 5s to be there and that of 2s to be gone", func() bool {
		return w.hasQueue("async.fallback.5s") && !w.hasQueue("async.fallback.2s")
	})
	awaitQuiet()
	w.awaitReady(transport)
	for _, write := range w.proxy.since(soFar) {
		if strings.HasPrefix(write, "PUT") && strings.Contains(write, "async.fallback.2s") {
			t.Errorf("a lane on its way out was made again: %s", write)
		}
	}
	if now := w.deployments()[0]; now.Generation != deployment.Generation {
		t.Errorf("the Deployment has changed:\n%s\n%s", document(t, deployment.Spec), document(t, now.Spec))
	}

	t.Log("deleted with messages in the queue")
	w.awaitCount("test", 2)
	must(t, w.client.Delete(t.Context(), transport))
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
	awaitQuiet()
	if ids := w.takeIDs("test", 2); !slices.Equal(ids, []string{"in the lane", "in the queue"}) {
		t.Errorf("the queue held %q", ids)
	}
	w.awaitGone(transport)
	// Whoever is still at it comes to its end first.
	second.stop()
	w.operator.restart(t)
	checkBrokerIsEmpty(w)
	if len(w.deployments()) > 0 {
		t.Error("the Deployment is still there")
	}
}

// killAt kills the operator in the middle of a write to the broker and starts another. answered is true where the
// broker has carried out the write, and the operator never learns of it.
func (w *world) killAt(method, pattern string, answered bool, trigger func()) {
	w.Helper()
	w.deadAt(method, pattern, answered, trigger, func() {})
}

// deadAt is killAt with something that happens before another operator starts.
func (w *world) deadAt(method, pattern string, answered bool, trigger, meanwhile func()) {
	w.Helper()
	w.catchAt(method, pattern, answered, trigger)
	w.operator.kill()
	meanwhile()
	w.operator.start(w.T, testcluster.Start(w.T))
}

// catchAt waits until a write to the broker has come that the operator gets no answer to; answered is as in killAt.
func (w *world) catchAt(method, pattern string, answered bool, trigger func()) {
	w.Helper()
	caught := w.proxy.catch(method, pattern, answered)
	trigger()
	testtransport.Eventually(w, method+" of "+pattern, func() bool {
		w.rollOut()
		select {
		case <-caught:
			return true
		default:
			return false
		}
	})
}

func TestOperator_GoesOnWhenKilledBetweenTwoSteps(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	transport := w.transport()
	w.create(w.policy("policy", time.Second, 2*time.Second))
	nothing := func() {}

	t.Log("after it wrote down what it is to make, and before it made anything")
	w.killAt("PUT", "/api/", false, func() { w.create(transport) })
	w.killAt("PUT", "/exchanges/[^/]+/async$", false, nothing)
	t.Log("after it made what carries no mark, before it knew")
	w.killAt("PUT", "/exchanges/[^/]+/async$", true, nothing)
	w.awaitReady(transport)
	checkStatus(w, transport)
	checkWorkers(w, transport)

	t.Log("between the steps by which a lane goes, with a message in it")
	w.park("2s", "in the lane")
	w.killAt("DELETE", "/bindings/.*/async.fallback.2s", true, func() {
		edit(w, w.policy("policy"), func(p *v1alpha1.RetryPolicy) { p.Spec = testtransport.Explicit(time.Second) })
	})
	if !w.hasQueue("async.fallback.2s") {
		t.Error("the lane went before it was unbound for a while")
	}
	w.killAt("DELETE", "/queues/[^/]+/async.fallback.2s", false, nothing)
	w.killAt("DELETE", "/queues/[^/]+/async.fallback.2s", true, nothing)
	w.awaitReady(transport)
	w.eventually("the lane to be forgotten", func() bool {
		w.get(transport)
		return len(transport.Status.Retiring) == 0
	})
	if got := w.takeIDs("test", 1); got[0] != "in the lane" {
		t.Errorf("the queue held %q", got)
	}

	t.Log("between the stages of its deletion")
	w.killAt("DELETE", "/bindings/", true, func() { must(t, w.client.Delete(t.Context(), transport)) })
	w.killAt("DELETE", "/queues/[^/]+/async.fallback.1s", true, nothing)
	w.killAt("DELETE", "/queues/[^/]+/async.failed", false, nothing)
	w.killAt("DELETE", "/exchanges/[^/]+/async$", true, nothing)
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
}

func TestTransport_ReconcilesAFewTimesForAChangedPolicy(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{poll: time.Hour})
	const users = 6
	transports := w.fleet(users)
	awaitCalm := func() (transport, policy int) {
		t.Helper()
		seen, since := -1, time.Now()
		testtransport.Eventually(t, "nobody to reconcile", func() bool {
			transport, policy = w.operator.reconciles(w.T, "transport"), w.operator.reconciles(w.T, "retrypolicy")
			if total := transport + policy; total != seen {
				seen, since = total, time.Now()
			}
			return time.Since(since) > 3*time.Second // longer than the uses of policies are gathered
		})
		return transport, policy
	}
	transportsBefore, policiesBefore := awaitCalm()
	hashes := func() map[string]bool {
		found := map[string]bool{}
		for _, transport := range transports {
			w.get(transport)
			if transport.Status.ConfigHash != "" {
				found[transport.Status.ConfigHash] = true
			}
		}
		return found
	}
	before := hashes()
	edit(w, w.policy("policy"), func(p *v1alpha1.RetryPolicy) { p.Spec.MaxRetries = new(int32(7)) })
	testtransport.Eventually(t, "all Transports to have the change", func() bool {
		for hash := range hashes() {
			if before[hash] {
				return false
			}
		}
		return true
	})
	transportsAfter, policiesAfter := awaitCalm()
	// One for the policy, one for the ConfigMap that it changes, and two to spare: on a busy machine a write may meet an older copy.
	if got := transportsAfter - transportsBefore; got < users || got > 4*users {
		t.Errorf("%d reconciles of %d Transports", got, users)
	}
	if got := policiesAfter - policiesBefore; got > 3 {
		t.Errorf("%d reconciles of the policy", got)
	}
	t.Logf("%d reconciles of %d Transports, %d of the policy", transportsAfter-transportsBefore, users, policiesAfter-policiesBefore)
}
