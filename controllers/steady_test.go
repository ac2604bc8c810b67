package controllers_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

// settle waits until the operator has gone through a Transport often enough to have written all there is.
func (w *world) settle() {
	w.Helper()
	transport := w.transport()
	w.eventually("the broker to have counted the failure queue", func() bool {
		w.get(transport)
		return transport.Status.Failed != nil
	})
	before := []int{-1, -1}
	defer func() {
		if w.Failed() {
			w.Logf("written were %v and %v", w.operator.writes.of(w.namespace), w.proxy.written)
		}
	}()
	testtransport.Eventually(w, "the operator to have nothing left to write", func() bool {
		now := []int{len(w.operator.writes.of(w.namespace)), int(w.proxy.writes.Load())}
		quiet := slices.Equal(now, before)
		before = now
		w.awaitLooks(4)
		return quiet
	})
}

// awaitLooks waits until the operator has looked at the broker a number of times. One look is five reads.
func (w *world) awaitLooks(looks int64) {
	w.Helper()
	const readsOfALook = 5
	until := w.proxy.reads.Load() + looks*readsOfALook
	testtransport.Eventually(w, "the operator to look at the broker", func() bool { return w.proxy.reads.Load() >= until })
}

func TestTransport_WritesNothingWhereNothingDiffers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.settle()
	w.get(transport)
	server, broker := w.operator.writes.of(w.namespace), w.proxy.writes.Load()
	w.awaitLooks(6)
	if now := w.operator.writes.of(w.namespace); len(now) > len(server) {
		t.Errorf("the operator wrote to the API server: %v", now[len(server):])
	}
	if now := w.proxy.writes.Load(); now > broker {
		t.Errorf("the operator wrote to the broker: %v", w.proxy.written[broker:])
	}
	version := transport.ResourceVersion
	w.get(transport)
	if transport.ResourceVersion != version {
		t.Errorf("the Transport was written to: %s", document(t, transport.Status))
	}
}

func TestTransport_LetsAProducerDeclareTheExchangePlainly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.ready()
	must(t, w.amqp.Channel().ExchangeDeclare("async", amqp091.ExchangeDirect, true, false, false, false, nil))
	w.amqp.Publish("async", "test", amqp091.Publishing{MessageId: "bound"})
	w.amqp.Publish("async", "nobody-bound-this", amqp091.Publishing{MessageId: "unrouted"})
	if got := w.amqp.Take("test").MessageId; got != "bound" {
		t.Errorf("queue test got %q", got)
	}
	if got := w.amqp.Take("lost").MessageId; got != "unrouted" {
		t.Errorf("queue lost got %q", got)
	}
}

func TestAdoption_UsesWhatWasThereAndNeverDeletesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.amqp.Channel().ExchangeDeclare("async", amqp091.ExchangeDirect, true, false, false, false, nil))
	transport := w.ready()
	if got := transport.Status; !slices.Equal(got.Adopted, []string{"exchange/async"}) || len(got.Created) > 0 {
		t.Errorf("adopted %v, created %v", got.Adopted, got.Created)
	}
	must(t, w.client.Delete(t.Context(), transport))
	w.awaitGone(transport)
	if _, exists := w.observed().Exchanges["async"]; !exists {
		t.Error("the exchange that was there before is gone")
	}
}

func TestDrift_IsRepairedInTheClusterAndOnTheBroker(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.settle()
	name := metav1.ObjectMeta{Namespace: w.namespace, Name: workload.Name(transport, "default")}

	t.Run("in a Deployment, but not what others added", func(t *testing.T) {
		deployment := &appsv1.Deployment{ObjectMeta: name}
		edit(w, deployment, func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[0].Image = "registry.example/other"
			d.Spec.Template.Spec.Containers[0].Env = append(d.Spec.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "THEIRS", Value: "1"})
			d.Spec.Replicas = ptr.To[int32](7)
			delete(d.Spec.Template.Spec.Containers[0].Resources.Requests, corev1.ResourceCPU)
		})
		w.eventually("the Deployment to be as it was", func() bool {
			w.get(deployment)
			container := deployment.Spec.Template.Spec.Containers[0]
			return container.Image == workerImage && *deployment.Spec.Replicas == 2 && !container.Resources.Requests.Cpu().IsZero()
		})
		env := deployment.Spec.Template.Spec.Containers[0].Env
		if !slices.ContainsFunc(env, func(v corev1.EnvVar) bool { return v.Name == "THEIRS" }) {
			t.Errorf("what somebody added is gone: %v", env)
		}
	})
	t.Run("in a ConfigMap", func(t *testing.T) {
		configMap := &corev1.ConfigMap{ObjectMeta: name}
		edit(w, configMap, func(c *corev1.ConfigMap) { c.Data[workload.ConfigKey] = "{}" })
		testtransport.Eventually(t, "the ConfigMap to be as it was", func() bool {
			w.get(configMap)
			return strings.Contains(configMap.Data[workload.ConfigKey], "async.fallback")
		})
	})
	t.Run("by deleting both", func(t *testing.T) {
		deployment, configMap := &appsv1.Deployment{ObjectMeta: name}, &corev1.ConfigMap{ObjectMeta: name}
		must(t, w.client.Delete(t.Context(), deployment))
		must(t, w.client.Delete(t.Context(), configMap))
		testtransport.Eventually(t, "both to be back", func() bool { return w.get(deployment) && w.get(configMap) })
	})
	t.Run("on the broker", func(t *testing.T) {
		must(t, w.amqp.Channel().QueueUnbind("test", "test", "async", amqp091.Table{topology.OwnerArgument: owner(t, w, transport)}))
		_, err := w.amqp.Channel().QueueDelete("async.fallback.1s", false, false, false)
		must(t, err)
		testtransport.Eventually(t, "queue and binding to be back", func() bool {
			observed := w.observed()
			_, queue := observed.Queues["async.fallback.1s"]
			return queue && slices.ContainsFunc(observed.Bindings, func(b topology.Binding) bool {
				return b.Source == "async" && b.Destination == "test" && b.RoutingKey == "test"
			})
		})
	})
	w.awaitReady(transport)
}

func owner(t *testing.T, w *world, transport *v1alpha1.Transport) string {
	t.Helper()
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}
	w.get(system)
	return string(system.UID) + "/" + transport.Namespace + "/" + transport.Name
}

func TestTransport_LeavesReplicasOutOfTheSpecToTheAutoscaler(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.transport()
	transport.Spec.Workers[0].Replicas = nil
	w.create(w.policy("policy", time.Second), transport)
	w.awaitReady(transport)
	deployment := &w.deployments()[0]
	edit(w, deployment, func(d *appsv1.Deployment) { d.Spec.Replicas = ptr.To[int32](9) })
	w.settle()
	w.awaitReady(transport)
	if w.get(deployment); *deployment.Spec.Replicas != 9 || transport.Status.Workers != "9/9" {
		t.Errorf("%d replicas, status.workers %s", *deployment.Spec.Replicas, transport.Status.Workers)
	}
}

func TestTransport_TellsPodsOfANewConfiguration(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	pod := w.podOf(transport)
	told := func() bool {
		w.get(pod)
		return pod.Annotations[workload.ConfigHashAnnotation] == w.configMaps()[0].Annotations[workload.ConfigHashAnnotation]
	}
	testtransport.Eventually(t, "the pod to have the hash", told)
	before := pod.Annotations[workload.ConfigHashAnnotation]
	edit(w, w.policy("policy"), func(p *v1alpha1.RetryPolicy) { p.Spec.MaxRetries = ptr.To[int32](1) })
	testtransport.Eventually(t, "the pod to have another hash", func() bool {
		return told() && pod.Annotations[workload.ConfigHashAnnotation] != before
	})
	must(t, w.client.Delete(t.Context(), pod))
}

func TestStatus_TellsHowManyMessagesFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	failed := func(want int64) func() bool {
		return func() bool {
			w.get(transport)
			return transport.Status.Failed != nil && *transport.Status.Failed == want
		}
	}
	testtransport.Eventually(t, "status.failed to be 0", failed(0))
	w.amqp.Publish("async.failed", "", amqp091.Publishing{})
	testtransport.Eventually(t, "status.failed to be 1", failed(1))
	w.amqp.Take("async.failed")
	testtransport.Eventually(t, "status.failed to be 0 again", failed(0))
}
