package controllers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

func TestDeletion_WritesTheStatusSeldomInALongDrain(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	w := newWorld(t)
	transport := w.applied()
	const messages = 40
	w.amqp.Publish("async", "test", make([]amqp091.Publishing, messages)...)
	w.awaitCount("test", messages)
	must(t, w.client.Delete(t.Context(), transport))
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
	testtransport.Eventually(t, "the first count to be told", func() bool { return strings.Contains(w.blocked(transport), "test (40)") })
	written, since := w.statusWrites(transport), time.Now()

	var counts []int64
	for left := int64(messages); left > messages/2; {
		left -= 7
		for range 7 {
			w.amqp.Take("test")
		}
		w.awaitCount("test", left)
		counts = append(counts, left)
		w.awaitLooks(6)
	}
	allowed := 1 + int(time.Since(since)/time.Minute)
	if now := w.statusWrites(transport); now > written+allowed {
		t.Errorf("%d writes of the status within %s, for the counts %v", now-written, time.Since(since), counts)
	}
	w.amqp.TakeAll("test")
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
}

// blocked is what the condition says of queues that hold messages.
func (w *world) blocked(transport *v1alpha1.Transport) string {
	w.Helper()
	return w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
}

// statusWrites is how often the operator wrote the status of a Transport.
func (w *world) statusWrites(transport *v1alpha1.Transport) (writes int) {
	w.Helper()
	for _, write := range w.operator.writes.of(w.namespace) {
		if strings.HasSuffix(write, fmt.Sprintf("/transports/%s/status", transport.Name)) {
			writes++
		}
	}
	return writes
}

func TestDeletion_NamesThePodThatKeepsItWaiting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.applied()
	stray := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "stray", Labels: workload.Labels(transport, "default")},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "worker", Image: workerImage}}},
	}
	w.create(stray)
	must(t, w.client.Delete(t.Context(), transport))
	testtransport.Eventually(t, "the condition to name the pod", func() bool {
		message := w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeleting)
		return transport.Status.Workers == "" &&
			strings.Contains(message, "the workers stop; still there: pod stray, which is no worker's (it belongs to nobody): delete it")
	})
	testtransport.Eventually(t, "the status to be left alone while nothing changes", func() bool {
		written := w.statusWrites(transport)
		w.awaitLooks(4)
		return w.statusWrites(transport) == written
	})
	must(t, w.client.Delete(t.Context(), stray))
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
}
