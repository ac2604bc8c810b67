package controllers_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

func intOrString(n int32) intstr.IntOrString { return intstr.FromInt32(n) }

// talker is what a worker pod says of itself; nothing where that is nil.
type talker struct {
	says  atomic.Pointer[compile.WorkerStatus]
	asked atomic.Int64
	port  int32
}

func newTalker(t *testing.T) *talker {
	t.Helper()
	talker := &talker{}
	talker.says.Store(&compile.WorkerStatus{})
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/status" {
			return
		}
		talker.asked.Add(1)
		if says := talker.says.Load(); says != nil {
			_ = json.NewEncoder(rw).Encode(says)
		}
	}))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	must(t, err)
	port, err := strconv.ParseInt(address.Port(), 10, 32)
	must(t, err)
	talker.port = int32(port)
	return talker
}

// talks makes a worker pod that is ready and answers.
func (w *world) talks(transport *v1alpha1.Transport, name string, talker *talker) *corev1.Pod {
	w.Helper()
	pod := w.workerPod(transport)
	pod.Name = name
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: workload.PortName, ContainerPort: talker.port}}
	w.create(pod)
	before := pod.DeepCopy()
	pod.Status.PodIP = "127.0.0.1"
	pod.Status.PodIPs = []corev1.PodIP{{IP: "127.0.0.1"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	must(w.T, w.client.Status().Patch(w.Context(), pod, client.MergeFrom(before)))
	return pod
}

// getReady tells whether a pod is ready.
func (w *world) getReady(pod *corev1.Pod, status corev1.ConditionStatus) {
	w.Helper()
	before := pod.DeepCopy()
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
	must(w.T, w.client.Status().Patch(w.Context(), pod, client.MergeFrom(before)))
}

func TestTroubles_StandWhileNoPodCanTellOfThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Workers[0].CircuitBreaker = &v1alpha1.CircuitBreaker{}
	w.create(transport)
	w.awaitReady(transport)
	talker := newTalker(t)
	pod := w.talks(transport, "one", talker)
	open := &compile.WorkerStatus{Troubles: []compile.Trouble{{Reason: v1alpha1.ReasonCircuitOpen, Message: "calls fail"}}}
	talker.says.Store(open)
	w.awaitWarning(transport, v1alpha1.ReasonCircuitOpen, "calls fail (1 pod says so)")
	stands := func() {
		t.Helper()
		w.awaitLooks(6)
		w.awaitWarning(transport, v1alpha1.ReasonCircuitOpen, "calls fail (1 pod says so)")
		if events := w.eventsOf("Recovered", ""); len(events) > 0 {
			t.Errorf("it is over, by the event %q", events[0].Note)
		}
	}

	t.Log("no pod is ready")
	w.getReady(pod, corev1.ConditionFalse)
	stands()
	t.Log("the pod is ready again, and gives no answer that can be read")
	talker.says.Store(nil)
	asked := talker.asked.Load()
	w.getReady(pod, corev1.ConditionTrue)
	testtransport.Eventually(t, "the pod to be asked again", func() bool { return talker.asked.Load() > asked })
	stands()
	t.Log("the group has no pods any more")
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Replicas = ptr.To[int32](0) })
	w.getReady(pod, corev1.ConditionFalse)
	w.awaitNoWarning(transport)
	w.awaitEvent("Recovered", "CircuitOpen of worker default: calls fail")
	if events := w.eventsOf("CircuitOpen", ""); len(events) != 1 || events[0].Series != nil {
		t.Errorf("it began more than once: %v", events)
	}
}

func TestTroubles_BecomeACondition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Workers[0].CircuitBreaker = &v1alpha1.CircuitBreaker{}
	w.create(transport)
	w.awaitReady(transport)
	one, other := newTalker(t), newTalker(t)
	w.talks(transport, "one", one)
	w.talks(transport, "other", other)
	said := func(since time.Time) *compile.WorkerStatus {
		return &compile.WorkerStatus{Troubles: []compile.Trouble{
			{Reason: v1alpha1.ReasonCircuitOpen, Subject: "acme", Message: `calls for "acme" fail`, Since: since},
			{Reason: "Invented", Message: "whatever"},
		}}
	}
	one.says.Store(said(time.Now()))
	other.says.Store(said(time.Now()))
	w.awaitWarning(transport, v1alpha1.ReasonCircuitOpen, `worker default: calls for "acme" fail (2 pods say so)`)
	w.awaitEvent("CircuitOpen", `worker default: calls for "acme" fail`)
	w.awaitReady(transport)

	t.Log("nothing new is written")
	w.settle()
	server, asked := w.operator.writes.of(w.namespace), one.asked.Load()
	one.says.Store(said(time.Now().Add(time.Hour)))
	testtransport.Eventually(t, "the pod to be asked again", func() bool { return one.asked.Load() >= asked+3 })
	if now := w.operator.writes.of(w.namespace); len(now) > len(server) {
		t.Errorf("the operator wrote while nothing changed: %v", now[len(server):])
	}

	t.Log("a reason that is worse comes first")
	worse := said(time.Now())
	worse.Troubles = append(worse.Troubles, compile.Trouble{Reason: v1alpha1.ReasonQueueBlocked, Subject: "test", Message: "stops"})
	one.says.Store(worse)
	w.awaitWarning(transport, v1alpha1.ReasonQueueBlocked, `worker default: stops (test) (1 pod says so); worker default: calls for "acme" fail (`)

	t.Log("it is over")
	one.says.Store(&compile.WorkerStatus{})
	other.says.Store(&compile.WorkerStatus{})
	w.awaitNoWarning(transport)
	w.awaitEvent("Recovered", `CircuitOpen of worker default: calls for "acme" fail`)
	w.awaitEvent("Recovered", "QueueBlocked of worker default: stops (test)")
	for _, reason := range []string{"CircuitOpen", "QueueBlocked", "Recovered"} {
		for _, event := range w.eventsOf(reason, "") {
			if event.Series != nil {
				t.Errorf("the event %s came more than once: %s", reason, event.Note)
			}
		}
	}
}

func TestTroubles_AreNotToldTwiceWhenTheOperatorStarts(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Workers[0].RetryBudget = &v1alpha1.RetryBudget{Percent: 10}
	w.create(transport)
	w.awaitReady(transport)
	talker := newTalker(t)
	w.talks(transport, "one", talker)
	talker.says.Store(&compile.WorkerStatus{Troubles: []compile.Trouble{{Reason: v1alpha1.ReasonRetryBudgetExhausted, Message: "retries wait"}}})
	w.awaitWarning(transport, v1alpha1.ReasonRetryBudgetExhausted, "retries wait")
	w.awaitEvent("RetryBudgetExhausted", "retries wait")
	w.operator.restart(t)
	asked := talker.asked.Load()
	testtransport.Eventually(t, "the next operator to ask", func() bool { return talker.asked.Load() >= asked+3 })
	talker.says.Store(&compile.WorkerStatus{})
	w.awaitEvent("Recovered", "retries wait")
	if events := w.eventsOf("RetryBudgetExhausted", ""); len(events) != 1 || events[0].Series != nil {
		t.Errorf("the event came again: %v", events)
	}
}

func TestTroubles_AreNotAskedForWhereThereCanBeNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	talker := newTalker(t)
	w.talks(transport, "one", talker)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "one"}}
	testtransport.Eventually(t, "the operator to have seen the pod", func() bool {
		return w.get(pod) && pod.Annotations[workload.ConfigHashAnnotation] != ""
	})
	w.awaitLooks(3)
	if asked := talker.asked.Load(); asked > 0 {
		t.Errorf("the pod was asked %d times", asked)
	}
}

func TestTroubles_WarnOfMessagesThatAWorkerHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	talker := newTalker(t)
	w.talks(transport, "one", talker)
	talker.says.Store(&compile.WorkerStatus{Troubles: []compile.Trouble{{
		Reason: v1alpha1.ReasonPublishFailing, Subject: "async.fallback 5s",
		Message: `messages for exchange "async.fallback", lane or queue "5s", are held: RabbitMQ does not confirm what is published there`,
	}}})
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "held"})
	deliveries, err := w.amqp.Channel().Consume("test", "worker", false, false, false, false, nil)
	must(t, err)
	held := <-deliveries
	w.awaitWarning(transport, v1alpha1.ReasonPublishFailing, `worker default: messages for exchange "async.fallback", lane or queue "5s", are held`)
	w.awaitEvent("PublishFailing", `lane or queue "5s", are held: RabbitMQ does not confirm what is published there`)

	t.Log("it is over")
	talker.says.Store(&compile.WorkerStatus{})
	must(t, held.Ack(false))
	w.awaitNoWarning(transport)
	w.awaitEvent("Recovered", "PublishFailing of worker default: messages for exchange")
}

// unready makes a worker pod that runs, is not ready, and answers.
func (w *world) unready(transport *v1alpha1.Transport, name string, talker *talker) *corev1.Pod {
	w.Helper()
	pod := w.talks(transport, name, talker)
	before := pod.DeepCopy()
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "worker", Image: "i", ImageID: "i", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
	}}
	must(w.T, w.client.Status().Patch(w.Context(), pod, client.MergeFrom(before)))
	return pod
}

func TestTroubles_WarnOfAHandlerThatIsNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Workers[0].Handler = v1alpha1.Handler{Image: new("shop:v1"), Process: &v1alpha1.ProcessHandler{Command: []string{"php", "serve.php"}}}
	w.create(transport)
	w.awaitReady(transport)
	one, other := newTalker(t), newTalker(t)
	w.unready(transport, "one", one)
	w.unready(transport, "other", other)
	says := func(text string) *compile.WorkerStatus {
		return &compile.WorkerStatus{Troubles: []compile.Trouble{{Reason: v1alpha1.ReasonHandlerNotReady, Message: text}}}
	}
	const first = "php: exit status 255 before its hello: 10:15:01 Parse error\non line 3"
	one.says.Store(says(first))
	w.awaitWarning(transport, v1alpha1.ReasonHandlerNotReady, "worker default: php: exit status 255 before its hello: 10:15:01 Parse error on line 3 (1 pod says so)")
	w.awaitEvent("HandlerNotReady", "worker default: php: exit status 255")

	t.Log("the next try says something else, and so does the other pod")
	w.settle()
	server, asked := w.operator.writes.of(w.namespace), one.asked.Load()
	one.says.Store(says("php: exit status 255 before its hello: 10:15:07 Parse error on line 3"))
	other.says.Store(says("php: exit status 255 before its hello: 10:15:08 Parse error on line 3"))
	testtransport.Eventually(t, "the pod to be asked again", func() bool { return one.asked.Load() >= asked+3 })
	if now := w.operator.writes.of(w.namespace); len(now) > len(server) {
		t.Errorf("the operator wrote while nothing changed: %v", now[len(server):])
	}
	if events := w.eventsOf("Recovered", ""); len(events) > 0 {
		t.Errorf("it is over, by the event %q", events[0].Note)
	}

	t.Log("it is over")
	one.says.Store(&compile.WorkerStatus{})
	other.says.Store(&compile.WorkerStatus{})
	w.awaitNoWarning(transport)
	w.awaitEvent("Recovered", "HandlerNotReady of worker default: php: exit status 255")
	if events := w.eventsOf("HandlerNotReady", ""); len(events) != 1 || events[0].Series != nil {
		t.Errorf("it began more than once: %v", events)
	}
}
