package controllers_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// quarantined puts a message among the quarantine of the queue test, as a worker does.
func (w *world) quarantined() {
	w.Helper()
	w.amqp.Publish("async.return", "test.quarantine", amqp091.Publishing{MessageId: "quarantine"})
}

// handleQuarantine takes the quarantined message as the quarantine worker does: of a queue with a single active consumer nobody else gets
// anything.
func (w *world) handleQuarantine() {
	w.Helper()
	const consumer = "quarantine worker"
	deliveries, err := w.amqp.Channel().Consume("test.quarantine", consumer, false, false, false, false, nil)
	must(w.T, err)
	must(w.T, (<-deliveries).Ack(false))
	must(w.T, w.amqp.Channel().Cancel(consumer, false))
}

// quarantine is the quarantine Deployment of the worker group of most tests.
func (w *world) quarantine(transport *v1alpha1.Transport) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		Namespace: w.namespace, Name: workload.QuarantineName(transport, "default"),
	}}
}

func (w *world) awaitQuarantine(transport *v1alpha1.Transport) *appsv1.Deployment {
	w.Helper()
	deployment := w.quarantine(transport)
	w.eventually("the quarantine Deployment", func() bool { return w.get(deployment) })
	return deployment
}

// awaitWarning waits for a Warning of a reason with a part in its message.
func (w *world) awaitWarning(transport *v1alpha1.Transport, reason, part string) {
	w.Helper()
	testtransport.Eventually(w, "a Degraded condition that says "+part, func() bool {
		return strings.Contains(w.await(transport, v1alpha1.DegradedCondition, metav1.ConditionTrue, reason), part)
	})
}

// eventsOf are the events of a reason with a part in their text.
func (w *world) eventsOf(reason, part string) (found []eventsv1.Event) {
	w.Helper()
	var list eventsv1.EventList
	must(w.T, w.client.List(w.Context(), &list, client.InNamespace(w.namespace)))
	for _, event := range list.Items {
		if event.Reason == reason && strings.Contains(event.Note, part) {
			found = append(found, event)
		}
	}
	return found
}

func TestQuarantine_RunsAPodWhileThereAreMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.quarantined()
	deployment := w.awaitQuarantine(transport)
	if !metav1.IsControlledBy(deployment, transport) || *deployment.Spec.Replicas != 1 {
		t.Errorf("the Deployment is %+v", deployment)
	}
	w.awaitEvent("Created", "Deployment "+deployment.Name)
	w.awaitWarning(transport, v1alpha1.ReasonMessagesQuarantined, "worker default: messages that were at pods which ended are handled one by one: test.quarantine (1)")

	t.Log("it cannot start, and the Transport is ready all the same")
	pod := w.workerPod(transport)
	pod.Name, pod.Labels = "quarantine", workload.QuarantineLabels(transport, "default")
	w.create(pod)
	before := pod.DeepCopy()
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "worker", Image: workerImage, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"},
	}}}
	must(t, w.client.Status().Patch(t.Context(), pod, client.MergeFrom(before)))
	w.awaitWarning(transport, v1alpha1.ReasonMessagesQuarantined,
		"Deployment "+deployment.Name+" does not start: pod quarantine: container worker: the image \""+workerImage+"\" cannot be pulled")
	w.awaitReady(transport)
	if transport.Status.Workers != "2/2" {
		t.Errorf("status.workers is %s", transport.Status.Workers)
	}
	testtransport.Eventually(t, "its pod to be told of the configuration", func() bool {
		return w.get(pod) && pod.Annotations[workload.ConfigHashAnnotation] == transport.Status.ConfigHash
	})
	w.settle()
	server := w.operator.writes.of(w.namespace)
	w.awaitLooks(4)
	if now := w.operator.writes.of(w.namespace); len(now) > len(server) {
		t.Errorf("the operator wrote while nothing changed: %v", now[len(server):])
	}

	t.Log("all are handled")
	must(t, w.client.Delete(t.Context(), pod))
	w.handleQuarantine()
	w.awaitGone(deployment)
	w.awaitEvent("Deleted", "Deployment "+deployment.Name)
	w.awaitNoWarning(transport)

	t.Log("there are some again")
	w.quarantined()
	again := w.awaitQuarantine(transport)
	if again.UID == deployment.UID {
		t.Error("it is the Deployment of before")
	}
	if events := w.eventsOf("Repaired", again.Name); len(events) > 0 {
		t.Errorf("that it came and went is taken for what others did: %v", events[0].Note)
	}
	edit(w, again, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](3) })
	w.eventually("what somebody changed to be put right", func() bool { return w.get(again) && *again.Spec.Replicas == 1 })

	t.Log("the group leaves the spec")
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers = nil })
	w.awaitGone(again)
}

// A quarantine pod is as old as the API server says: by a clock that is wrong it was deleted at once, or stayed for hours.
func TestTransport_AQuarantinePodIsAsOldAsTheAPIServerSays(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{stay: time.Hour, wrap: func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			if err == nil {
				response.Header.Set("Date", time.Now().Add(2*time.Hour).UTC().Format(http.TimeFormat))
			}
			return response, err
		})
	}})
	transport := w.ready()
	w.quarantined()
	deployment := w.awaitQuarantine(transport)
	w.handleQuarantine()
	w.awaitGone(deployment)
}

func TestQuarantine_IsHandledWhileItsTransportIsDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.quarantined()
	w.awaitQuarantine(transport)
	must(t, w.client.Delete(t.Context(), transport))
	testtransport.Eventually(t, "the quarantined message to keep the Transport", func() bool {
		return strings.Contains(w.blocked(transport), "test.quarantine (1)")
	})
	must(t, w.client.Delete(t.Context(), w.quarantine(transport)))
	w.awaitQuarantine(transport)
	w.awaitWarning(transport, v1alpha1.ReasonMessagesQuarantined, "test.quarantine (1)")
	w.handleQuarantine()
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
	if left := w.deployments(); len(left) > 0 {
		t.Errorf("Deployment %s is left", left[0].Name)
	}
}

// Nobody knows then whether there are any.
func TestQuarantine_RunsAPodWhereTheBrokerCountsNothing(t *testing.T) {
	testtransport.Long(t)
	w := newWorldOn(t, testbroker.Private(t, "management.disable_stats = true"))
	transport := w.ready()
	w.awaitQuarantine(transport)
	w.awaitWarning(transport, v1alpha1.ReasonOther, "counts the messages of no queue")
	w.awaitReady(transport)
}

// A deletion waits for counts then, and what a worker has in hand when it is killed meanwhile is in quarantine.
func TestQuarantine_RunsAPodInADeletionWhereTheBrokerCountsNothing(t *testing.T) {
	testtransport.Long(t)
	w := newWorldOn(t, testbroker.Private(t, "management.disable_stats = true"))
	transport := w.ready()
	must(t, w.client.Delete(t.Context(), transport))
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeleting)
	if w.get(w.quarantine(transport)) {
		t.Fatal("it has a quarantine pod already, so this shows nothing")
	}
	w.awaitQuarantine(transport)
}

// What a worker had in hand when it ended waited for as long as the management API, or the operator's login there, was away.
func TestQuarantine_PodsRunWhileTheManagementAPIGivesNoAnswer(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{silence: time.Second})
	transport := w.ready()
	w.proxy.down.Store(true)
	w.await(transport, v1alpha1.ReconcilingCondition, metav1.ConditionTrue, v1alpha1.ReasonBrokerUnreachable)
	quarantine := w.awaitQuarantine(transport)
	w.awaitWarning(transport, v1alpha1.ReasonOther, "management API gives the operator no answer")
	w.proxy.down.Store(false)
	w.awaitGone(quarantine)
	w.awaitNoWarning(transport)
	w.awaitReady(transport)
}

// The workers run on with the last good configuration, and go on leaving quarantined messages.
func TestQuarantine_IsHandledWhileItsTransportIsStalled(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		breaks func(*world, *v1alpha1.Transport)
		reason string
		// offline is true where the broker does not matter for the reason.
		offline bool
	}{
		"by a policy that is gone": {
			breaks:  func(w *world, _ *v1alpha1.Transport) { must(w.T, w.client.Delete(w.Context(), w.policy("policy"))) },
			reason:  v1alpha1.ReasonPolicyNotFound,
			offline: true,
		},
		"by a queue of somebody else": {
			breaks: func(w *world, transport *v1alpha1.Transport) {
				_, err := w.amqp.Channel().QueueDeclare("theirs", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"})
				must(w.T, err)
				edit(w, transport, func(t *v1alpha1.Transport) {
					t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "theirs", BindingKeys: []string{"theirs"}})
				})
			},
			reason: v1alpha1.ReasonConflict,
		},
		"by a name that RabbitMQ refuses": {
			breaks: func(w *world, transport *v1alpha1.Transport) {
				edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "amq.mine"}) })
			},
			reason:  v1alpha1.ReasonInvalid,
			offline: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.ready()
			tt.breaks(w, transport)
			message := w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, tt.reason)
			w.settle()
			written, configMap, workers := w.proxy.writes.Load(), w.configMaps()[0], w.deployments()[0]

			w.quarantined()
			quarantine := w.awaitQuarantine(transport)
			w.awaitWarning(transport, v1alpha1.ReasonMessagesQuarantined, "are handled one by one: test.quarantine (1)")
			if now := w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, tt.reason); now != message {
				t.Errorf("the condition says %q, and said %q", now, message)
			}
			w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, tt.reason)
			w.settle()
			server := w.operator.writes.of(w.namespace)
			w.awaitLooks(4)
			if now := w.operator.writes.of(w.namespace); len(now) > len(server) {
				t.Errorf("the operator wrote while nothing changed: %v", now[len(server):])
			}

			w.handleQuarantine()
			w.awaitGone(quarantine)
			w.awaitNoWarning(transport)
			if now := w.proxy.writes.Load(); now > written {
				t.Errorf("the broker was written to: %v", w.proxy.since(int(written)))
			}
			if got := w.configMaps()[0]; got.ResourceVersion != configMap.ResourceVersion {
				t.Errorf("the ConfigMap was written to: %s", document(t, got))
			}
			if got := w.deployments()[0]; got.Generation != workers.Generation {
				t.Errorf("the workers' Deployment was written to: %s", document(t, got))
			}

			if tt.offline {
				w.proxy.down.Store(true)
				edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Replicas = ptr.To[int32](3) })
				w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, tt.reason)
			}
		})
	}
}

// The poll would come in an hour. That workers were not there is reason enough to look again soon: the broker counts late
// what they left behind.
func TestQuarantine_IsFoundLongBeforeThePoll(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{poll: time.Hour})
	transport := w.ready() // whose workers have only just come
	w.quarantined()
	w.awaitQuarantine(transport)
}

func TestRateLimit_SharesFollowTheAutoscaler(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.transport()
	limited := &transport.Spec.Workers[0]
	limited.Replicas = nil
	limited.RateLimits = []v1alpha1.RateLimit{{Name: "partner", PerSecond: intOrString(10)}}
	plain := *limited.DeepCopy()
	plain.Name, plain.RateLimits = "plain", nil
	transport.Spec.Workers = append(transport.Spec.Workers, plain)
	w.create(w.policy("policy", time.Second), transport)
	w.awaitReady(transport)

	config := func(worker string) (*corev1.ConfigMap, compile.Config) {
		t.Helper()
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: workload.Name(transport, worker)}}
		w.get(configMap)
		config, err := compile.Decode([]byte(configMap.Data[workload.ConfigKey]))
		must(t, err)
		return configMap, config
	}
	scale := func(worker string, replicas int32) *appsv1.Deployment {
		t.Helper()
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: workload.Name(transport, worker)}}
		edit(w, deployment, func(d *appsv1.Deployment) { d.Spec.Replicas = &replicas })
		return deployment
	}
	unlimited, _ := config("plain")
	scale("plain", 4)
	for _, step := range []struct {
		replicas int32
		shares   int
	}{{4, 4}, {7, 7}, {0, 1}} {
		deployment := scale("default", step.replicas)
		testtransport.Eventually(t, "the workers to share their limits anew", func() bool {
			_, config := config("default")
			return config.Replicas == step.shares
		})
		before := document(t, deployment.Spec)
		w.awaitReady(transport)
		if w.get(deployment); document(t, deployment.Spec) != before {
			t.Errorf("the Deployment was written to: %s", document(t, deployment.Spec))
		}
	}
	if now, config := config("plain"); now.ResourceVersion != unlimited.ResourceVersion || config.Replicas != 0 {
		t.Errorf("the configuration of workers that share nothing has %d replicas, and was written to", config.Replicas)
	}
}

// A queue that gives up its order gets a quarantine queue. Workers that were told of it before anything led into it put what was delivered again where it
// went to the failure queue untried.
func TestQuarantine_IsToldToWorkersOnceItCanBeReached(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{request: 5 * time.Minute})
	transport := w.transport()
	transport.Spec.Queues[0].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
	w.create(w.policy("policy", time.Second, 2*time.Second), transport)
	w.awaitReady(transport)
	doubt := func(deletions ...v1alpha1.Deletion) {
		testtransport.Eventually(t, "the status to be written", func() bool {
			w.get(transport)
			before := transport.DeepCopy()
			transport.Status.Deletions = deletions
			return w.client.Status().Patch(t.Context(), transport, client.MergeFrom(before)) == nil
		})
	}
	doubt(v1alpha1.Deletion{Object: "queue/test.quarantine", Written: metav1.Now()})
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].Ordering, t.Spec.Queues[0].SingleActiveConsumer = nil, new(true)
	})
	message := ""
	w.eventually("the operator to wait", func() bool {
		w.get(transport)
		ready := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReadyCondition)
		message = ready.Message
		return ready.ObservedGeneration == transport.Generation && strings.Contains(message, "queue test.quarantine")
	})
	w.awaitLooks(4)
	if queue := w.published("test"); queue.Quarantine != "" || queue.Strict == "" || !strings.Contains(message, "workers keep their configuration") {
		t.Errorf("workers have %+v, and nothing leads into the quarantine queue: %s", queue, message)
	}
	doubt()
	w.operator.restart(t) // It remembers the doubt, whatever the status says.
	testtransport.Eventually(t, "workers to be told", func() bool { return w.published("test").Quarantine == "test.quarantine" })
	w.awaitReady(transport)
}
