package controllers_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

func TestOrdering_HoldsAQueueWhoseOrderTheBrokerBreaks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// RabbitMQ before 4.3 stores the argument and ignores it.
	_, err := w.amqp.Channel().QueueDeclare("test", true, false, false, false, amqp091.Table{
		"x-queue-type": "quorum", "x-single-active-consumer": true, "x-dead-letter-exchange": "async.failed",
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delayed-retry-type": "all",
	})
	must(t, err)
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Queues[0].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
	w.create(transport)
	message := w.await(transport, v1alpha1.DegradedCondition, metav1.ConditionTrue, v1alpha1.ReasonConflictingBrokerPolicy)
	if !strings.Contains(message, "queue test: its declaration sets x-delayed-retry-type to all") {
		t.Errorf("it is said: %q", message)
	}
	testtransport.Eventually(t, "workers to be told not to consume the queue", func() bool {
		return w.published("test").Name == "test" && len(w.consumed("test")) == 0
	})
	if len(w.consumed("lost")) != 1 {
		t.Error("the other queue is not consumed either")
	}

	_, err = w.amqp.Channel().QueueDelete("test", false, false, false)
	must(t, err)
	testtransport.Eventually(t, "workers to consume the queue that was made without", func() bool { return len(w.consumed("test")) == 1 })
}

// An operator policy, unlike others, is merged into what applies: nothing of ours wins over it.
func TestOrdering_HoldsAQueueWhoseOrderAnOperatorPolicyBreaks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var order callOrder
	server := httptest.NewServer(&order)
	t.Cleanup(server.Close)
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Queues[0].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
	transport.Spec.Workers[0].Handler = v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: server.URL}}
	w.create(transport)
	w.awaitReady(transport)
	pods := &workers{world: w, prefix: "async"}
	pods.follow()
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "1"}, amqp091.Publishing{MessageId: "2"})
	testtransport.Eventually(t, "the first messages to be handled", func() bool { return len(order.of()) == 2 })

	if !w.setOperatorPolicy("delays", `{"pattern": "^test$", "apply-to": "queues", "definition": {"delayed-retry-type": "all", "delayed-retry-min": 5000}}`) {
		t.Log("RabbitMQ before 4.3 delays nothing, and refuses such a policy")
		return
	}
	message := w.await(transport, v1alpha1.DegradedCondition, metav1.ConditionTrue, v1alpha1.ReasonConflictingBrokerPolicy)
	if !strings.Contains(message, `queue test: the operator policy "delays" sets delayed-retry-type to all`) {
		t.Errorf("it is said: %q", message)
	}
	testtransport.Eventually(t, "the workers' configuration", func() bool { return len(w.consumed("test")) == 0 })
	pods.follow()
	consumers := func() int { return int(w.observed().Queues["test"].Consumers) }
	testtransport.Eventually(t, "nobody to consume the queue", func() bool { return consumers() == 0 })
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "3"}, amqp091.Publishing{MessageId: "4"})
	w.awaitCount("test", 2)

	w.deleteOperatorPolicy("delays")
	testtransport.Eventually(t, "the workers' configuration", func() bool { return len(w.consumed("test")) == 1 })
	pods.follow()
	testtransport.Eventually(t, "all to be handled", func() bool { return len(order.of()) >= 5 })
	if got, want := order.of(), []string{"1", "2", "3", "3", "4"}; !slices.Equal(got, want) {
		t.Errorf("the handler was called with %v, want %v", got, want)
	}
}

// callOrder is a handler that fails the first attempt of message 3, and notes which messages it is called with.
type callOrder struct {
	mu  sync.Mutex
	ids []string
}

func (l *callOrder) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := r.Header.Get("Redrive-Message-Id")
	if id == "3" && !slices.Contains(l.ids, id) {
		rw.WriteHeader(http.StatusServiceUnavailable)
	}
	l.ids = append(l.ids, id)
}

func (l *callOrder) of() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.ids)
}

// setOperatorPolicy is false where RabbitMQ does not know what the policy sets.
func (w *world) setOperatorPolicy(name, document string) bool {
	w.Helper()
	status := w.operatorPolicy(http.MethodPut, name, document)
	if status/100 != 2 && status != http.StatusBadRequest {
		w.Fatalf("set the operator policy: status %d", status)
	}
	return status != http.StatusBadRequest
}

func (w *world) deleteOperatorPolicy(name string) {
	w.Helper()
	if status := w.operatorPolicy(http.MethodDelete, name, ""); status/100 != 2 {
		w.Fatalf("delete the operator policy: status %d", status)
	}
}

func (w *world) operatorPolicy(method, name, document string) (status int) {
	w.Helper()
	address := testbroker.Shared(w.T).ManagementURL + "/api/operator-policies/" + w.vhost + "/" + name
	request, err := http.NewRequestWithContext(w.Context(), method, address, strings.NewReader(document))
	must(w.T, err)
	request.Header.Set("Content-Type", "application/json")
	response, err := testbroker.Client.Do(request)
	must(w.T, err)
	must(w.T, response.Body.Close())
	return response.StatusCode
}

// consumed are the queues on the broker that workers consume for a work queue.
func (w *world) consumed(queue string) []string {
	w.Helper()
	known := w.published(queue)
	return known.Consumed()
}
