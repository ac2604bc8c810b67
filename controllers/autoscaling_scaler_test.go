package controllers_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

func TestAutoscaling_FollowsKEDAThatComesAndGoes(t *testing.T) {
	t.Parallel()
	theKEDA.Lock()
	t.Cleanup(theKEDA.Unlock) // after KEDA's kind is gone
	removeKEDA(t)
	t.Cleanup(func() { removeKEDA(t) })
	w := newPrivateWorld(t, &operator{keda: true})
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Workers[0].Replicas = ptr.To[int32](5)
	w.create(transport)
	w.awaitReady(transport)
	sizes := w.watchReplicas(transport)

	installKEDA(t)
	scale(w, transport, &v1alpha1.Autoscaling{Min: ptr.To[int32](0), Max: 10})
	w.awaitReady(transport)
	object := w.scaler(transport, workload.ScaledObjectKind())
	if object == nil || w.scaler(transport, workload.AutoscalerKind()) != nil {
		t.Fatalf("KEDA is there, and it scales by %v and %v", object, w.scaler(transport, workload.AutoscalerKind()))
	}
	triggers, _, _ := unstructured.NestedSlice(object.Object, "spec", "triggers")
	address, _, _ := unstructured.NestedString(triggers[0].(map[string]any), "metadata", "url")
	if want := w.operator.scale + workload.ScalePath(w.namespace, "async", "default"); address != want {
		t.Errorf("KEDA is to ask %s, want %s", address, want)
	}
	w.settle()
	if got := sizes(); !slices.Equal(got, []int32{5}) {
		t.Errorf("while KEDA took over there were %v pods, want 5 all the time", got)
	}
	// KEDA's own fields are the user's to set.
	patch(w, object, `{"spec":{"cooldownPeriod":60}}`)
	w.scaleTo(transport, 7)
	w.awaitReady(transport)
	w.scaleTo(transport, 0)
	w.eventually("a group without pods to be ready", func() bool {
		return w.isReady(transport) && transport.Status.Workers == "0/0"
	})
	w.settle()
	written := len(w.operator.writes.of(w.namespace))
	w.awaitLooks(6)
	if now := w.operator.writes.of(w.namespace); len(now) > written {
		t.Errorf("where nothing differs, written was %v", now[written:])
	}
	if got := sizes(); !slices.Equal(got, []int32{5, 7, 0}) {
		t.Errorf("there were %v pods, want what KEDA set", got)
	}
	patch(w, w.scaler(transport, workload.ScaledObjectKind()), `{"spec":{"maxReplicaCount":1000}}`)
	testtransport.Eventually(t, "the ScaledObject to be put right", func() bool {
		object := w.scaler(transport, workload.ScaledObjectKind())
		most, _, _ := unstructured.NestedInt64(object.Object, "spec", "maxReplicaCount")
		pause, _, _ := unstructured.NestedInt64(object.Object, "spec", "cooldownPeriod")
		return most == 10 && pause == 60
	})

	removeKEDA(t)
	testtransport.Eventually(t, "Kubernetes' own autoscaler to take over, and to have a pod to begin with", func() bool {
		w.get(transport)
		warning := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.DegradedCondition)
		return w.scaler(transport, workload.AutoscalerKind()) != nil && w.replicas(transport) == 1 &&
			warning != nil && strings.Contains(warning.Message, "autoscaling.min is 0")
	})
	installKEDA(t)
	testtransport.Eventually(t, "KEDA to take over again", func() bool {
		return w.scaler(transport, workload.AutoscalerKind()) == nil && w.scaler(transport, workload.ScaledObjectKind()) != nil
	})
	w.scaleTo(transport, 0)
	scale(w, transport, nil)
	testtransport.Eventually(t, "nothing to scale the group, and a pod that nobody has to wake", func() bool {
		return w.scaler(transport, workload.ScaledObjectKind()) == nil && w.replicas(transport) == 1 && w.isReady(transport)
	})
	scale(w, transport, &v1alpha1.Autoscaling{Max: 3})
	w.awaitReady(transport)
	if w.scaler(transport, workload.ScaledObjectKind()) == nil {
		t.Error("KEDA does not scale it again")
	}
	must(t, w.client.Delete(t.Context(), transport))
	w.awaitGone(transport)
	if left := w.scaler(transport, workload.ScaledObjectKind()); left != nil {
		t.Errorf("after the Transport there is still %v", left)
	}

	t.Log("KEDA goes while a Transport is deleted whose workers it has put to sleep")
	again := w.transport()
	again.Spec.Workers[0].Replicas, again.Spec.Workers[0].Autoscaling = nil, &v1alpha1.Autoscaling{Min: ptr.To[int32](0), Max: 3}
	w.create(again)
	w.awaitReady(again)
	w.scaleTo(again, 0)
	w.amqp.Publish("async", testtransport.Queue, amqp091.Publishing{})
	w.awaitCount(testtransport.Queue, 1)
	must(t, w.client.Delete(t.Context(), again))
	w.await(again, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
	removeKEDA(t)
	w.eventually("a pod that handles what is left", func() bool { return w.replicas(again) == 1 })
	w.takeIDs(testtransport.Queue, 1)
	w.awaitGone(again)
}

func TestAutoscaling_UsesKubernetesOwnWithoutKEDA(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Workers[0].Replicas, transport.Spec.Workers[0].Autoscaling = nil, &v1alpha1.Autoscaling{Min: ptr.To[int32](3), Max: 10}
	second := *transport.Spec.Workers[0].DeepCopy()
	second.Name = "second"
	transport.Spec.Workers = append(transport.Spec.Workers, second)
	w.create(transport)
	w.awaitReady(transport)
	if n := w.replicas(transport); n != 3 {
		t.Errorf("it begins with %d pods, want min", n)
	}
	hpa := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: workload.Name(transport, "default")}}
	if !w.get(hpa) || hpa.Spec.ScaleTargetRef.Name != hpa.Name || *hpa.Spec.MinReplicas != 3 || hpa.Spec.MaxReplicas != 10 ||
		hpa.Spec.Metrics[0].External.Metric.Name != "redrive_autoscaling_backlog_messages" || !metav1.IsControlledBy(hpa, transport) {
		t.Errorf("the autoscaler is %+v", hpa)
	}
	w.settle()
	written := len(w.operator.writes.of(w.namespace))
	w.awaitLooks(6)
	if now := w.operator.writes.of(w.namespace); len(now) > written {
		t.Errorf("where nothing differs, written was %v", now[written:])
	}

	w.tellOfScaling(hpa, corev1.ConditionFalse, "FailedGetExternalMetric")
	if text := w.await(transport, v1alpha1.DegradedCondition, metav1.ConditionTrue, v1alpha1.ReasonOther); !strings.Contains(text,
		`worker "default": HorizontalPodAutoscaler `+hpa.Name+" does not scale it, and its status says why: FailedGetExternalMetric") {
		t.Errorf("the warning says %q", text)
	}
	w.tellOfScaling(hpa, corev1.ConditionTrue, "ValidMetricFound")
	w.eventually("no warning any more", func() bool {
		w.get(transport)
		return meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.DegradedCondition) == nil
	})

	sizes := w.watchReplicas(transport)
	w.scaleTo(transport, 8)
	must(t, w.client.Delete(t.Context(), hpa))
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers = t.Spec.Workers[:1] })
	testtransport.Eventually(t, "the autoscaler to be made again, and that of the group that is gone to go", func() bool {
		var list autoscalingv2.HorizontalPodAutoscalerList
		must(t, w.client.List(t.Context(), &list, client.InNamespace(w.namespace)))
		return len(list.Items) == 1 && list.Items[0].Name == hpa.Name
	})
	scale(w, transport, nil)
	w.awaitReady(transport)
	if w.scaler(transport, workload.AutoscalerKind()) != nil || w.replicas(transport) != 8 {
		t.Errorf("without autoscaling there are %d pods, want the 8 that there were", w.replicas(transport))
	}
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Replicas = ptr.To[int32](4) })
	w.awaitReady(transport)
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Replicas = nil })
	w.awaitReady(transport)
	w.settle()
	if got := sizes(); !slices.Equal(got, []int32{3, 8, 4}) {
		t.Errorf("there were %v pods, want 3, 8 and 4", got)
	}
}

// Both would hold the number against each other.
func TestAutoscaling_WaitsForTheAutoscalerOfKEDAToGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	foreign := &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "keda", Labels: workload.Labels(transport, "default")},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{
				APIVersion: "apps/v1", Kind: "Deployment", Name: workload.Name(transport, "default"),
			}, MaxReplicas: 2,
		},
	}
	w.create(foreign)
	scale(w, transport, &v1alpha1.Autoscaling{Max: 10})
	if text := w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonProgressing); !strings.Contains(text, "keda") {
		t.Errorf("the message is %q", text)
	}
	if w.scaler(transport, workload.AutoscalerKind()) != nil {
		t.Error("two scale one Deployment")
	}
	must(t, w.client.Delete(t.Context(), foreign))
	w.awaitReady(transport)
	if w.scaler(transport, workload.AutoscalerKind()) == nil {
		t.Error("nothing scales it")
	}
}

func TestAutoscaling_RefusesMorePodsThanCouldHaveWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Queues[0].SingleActiveConsumer = new(true)
	transport.Spec.Workers[0].Queues = []string{transport.Spec.Queues[0].Name}
	transport.Spec.Workers[0].Replicas, transport.Spec.Workers[0].Autoscaling = nil, &v1alpha1.Autoscaling{Max: 2}
	w.create(transport)
	if text := w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonInvalid); !strings.Contains(text, "autoscaling.max") {
		t.Errorf("the message is %q", text)
	}
}

// scale sets how the first worker group follows its messages; with nil it does not, and has no replicas in the spec either.
func scale(w *world, transport *v1alpha1.Transport, autoscaling *v1alpha1.Autoscaling) {
	w.Helper()
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Workers[0].Replicas, t.Spec.Workers[0].Autoscaling = nil, autoscaling
	})
}

// tellOfScaling writes into the status of an autoscaler what Kubernetes says there.
func (w *world) tellOfScaling(hpa *autoscalingv2.HorizontalPodAutoscaler, status corev1.ConditionStatus, reason string) {
	w.Helper()
	w.get(hpa)
	hpa.Status.Conditions = []autoscalingv2.HorizontalPodAutoscalerCondition{
		{Type: autoscalingv2.AbleToScale, Status: corev1.ConditionTrue, Reason: "SucceededGetScale"},
		{Type: autoscalingv2.ScalingActive, Status: status, Reason: reason},
	}
	must(w.T, w.client.Status().Update(w.Context(), hpa))
}

func patch(w *world, object client.Object, merge string) {
	w.Helper()
	must(w.T, w.client.Patch(w.Context(), object, client.RawPatch("application/merge-patch+json", []byte(merge)), client.FieldOwner("somebody")))
}

// scaler is what of a kind scales the first worker group; nil where nothing does.
func (w *world) scaler(transport *v1alpha1.Transport, kind schema.GroupVersionKind) *unstructured.Unstructured {
	w.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	err := w.client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: workload.Name(transport, transport.Spec.Workers[0].Name)}, object)
	if client.IgnoreNotFound(err) == nil && err != nil || meta.IsNoMatchError(err) {
		return nil
	}
	must(w.T, err)
	return object
}

func (w *world) deployment(transport *v1alpha1.Transport) *appsv1.Deployment {
	w.Helper()
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: workload.Name(transport, transport.Spec.Workers[0].Name)}}
	w.get(deployment)
	return deployment
}

func (w *world) replicas(transport *v1alpha1.Transport) int32 {
	w.Helper()
	return ptr.Deref(w.deployment(transport).Spec.Replicas, -1)
}

// scaleTo sets the replicas as an autoscaler does.
// The workers that go on for a renamed group keep the queues empty, so that KEDA put the new group to sleep before its first pod ran. That counted as one
// that is to have no pods: the workers that ran were deleted, and those that took their place never started.
func TestTransport_NothingScalesAGroupThatTakesOverBeforeItHasAPod(t *testing.T) {
	t.Parallel()
	withKEDA(t)
	w := newPrivateWorld(t, &operator{keda: true})
	transport := w.scaled(func(worker *v1alpha1.Worker) { worker.Autoscaling.Min = ptr.To[int32](0) })
	former := w.deployment(transport)
	w.scaleTo(transport, 0)
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Name = "main" })
	w.eventually("the workers that are to go on to be woken", func() bool { return w.get(former) && workload.Replicas(former) == 1 })
	w.eventually("the Deployment of the new name", func() bool { return len(w.deployments()) == 2 })
	w.settle()
	if object := w.scaler(transport, workload.ScaledObjectKind()); object != nil {
		t.Errorf("%s scales a group that has had no pod yet", object.GetName())
	}
	w.scaleTo(transport, 0)
	w.settle()
	if !w.get(former) {
		t.Error("the workers that run are deleted for a group that is asleep and has had no pod yet")
	}
	w.scaleTo(transport, 1)
	w.awaitReady(transport)
	testtransport.Eventually(t, "the former workers gone, and the next ones scaled", func() bool {
		return !w.get(former) && w.scaler(transport, workload.ScaledObjectKind()) != nil
	})
}

// Whoever takes KEDA out of a cluster, and then autoscaling out of the spec, had a group that was asleep for good.
func TestTransport_WakesAGroupWhoseScalerWentBeforeTheSpec(t *testing.T) {
	t.Parallel()
	withKEDA(t)
	w := newPrivateWorld(t, &operator{keda: true, poll: time.Hour})
	transport := w.asleep()
	must(t, w.client.Delete(t.Context(), w.scaler(transport, workload.ScaledObjectKind())))
	scale(w, transport, nil)
	w.eventually("a pod that nobody has to wake", func() bool { return w.isReady(transport) && w.replicas(transport) == 1 })

	w.eventually("nothing to tell of an autoscaler", func() bool {
		return w.deployment(transport).Annotations[workload.AutoscaledAnnotation] == ""
	})
	w.scaleTo(transport, 0) // as its user
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Concurrency = ptr.To[int32](8) })
	w.eventually("the change to be carried out", func() bool {
		w.get(transport)
		return transport.Status.WorkersGeneration == transport.Generation
	})
	if got := w.replicas(transport); got != 0 {
		t.Errorf("a group that its user has put to sleep has %d pods", got)
	}
}

// KEDA is told of the groups of the spec alone. One that sleeps when an edit changes it, and stalls its Transport by another mistake, has to be woken by the
// operator: its queue has messages, and no other group takes them over.
func TestTransport_WakesAGroupThatKEDAIsNotToldOf(t *testing.T) {
	t.Parallel()
	withKEDA(t)
	for name, change := range map[string]func(*v1alpha1.Transport){
		"renamed": func(t *v1alpha1.Transport) { t.Spec.Workers[0].Name = "main" },
		"unscaled": func(t *v1alpha1.Transport) {
			t.Spec.Workers[0].Autoscaling, t.Spec.Workers[0].Replicas = nil, ptr.To[int32](2)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newPrivateWorld(t, &operator{keda: true})
			transport := w.asleep()
			old := w.deployment(transport)
			pods := func() int32 {
				w.get(old)
				return workload.Replicas(old)
			}
			edit(w, transport, func(t *v1alpha1.Transport) {
				change(t)
				t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "late", RetryPolicyRef: &v1alpha1.PolicyReference{Name: "comes-later"}})
			})
			w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonPolicyNotFound)
			testtransport.Eventually(t, "a pod while the Transport is stalled", func() bool { return pods() == 1 })

			must(t, w.client.SubResource("scale").Update(t.Context(), old, client.WithSubResourceBody(&autoscalingv1.Scale{}), client.FieldOwner("autoscaler")))
			w.amqp.Publish("async", testtransport.Queue, amqp091.Publishing{})
			w.awaitCount(testtransport.Queue, 1)
			must(t, w.client.Delete(t.Context(), transport))
			w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
			testtransport.Eventually(t, "a pod while the Transport is deleted", func() bool { return pods() == 1 })
		})
	}
}

// KEDA gets no number then, and keeps the group at none.
func TestTransport_WakesAGroupThatNobodyCountsFor(t *testing.T) {
	t.Parallel()
	withKEDA(t)
	for name, silence := range map[string]func(*world){
		"the management API is silent": func(w *world) { w.proxy.down.Store(true) },
		"the Secret does not lead to it": func(w *world) {
			edit(w, w.secret(), func(s *corev1.Secret) { s.Data["management_uri"] = []byte("127.0.0.1:15672") })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newPrivateWorld(t, &operator{keda: true, silence: time.Second})
			transport := w.asleep()
			silence(w)
			w.eventually("a pod", func() bool { return w.replicas(transport) == 1 })
		})
	}
}

// asleep is a Transport whose group KEDA has scaled to zero.
func (w *world) asleep() *v1alpha1.Transport {
	w.Helper()
	transport := w.scaled(func(worker *v1alpha1.Worker) { worker.Autoscaling.Min = ptr.To[int32](0) })
	w.scaleTo(transport, 0)
	w.eventually("a group without pods to be ready", func() bool {
		return w.isReady(transport) && transport.Status.Workers == "0/0"
	})
	return transport
}

func (w *world) scaleTo(transport *v1alpha1.Transport, replicas int32) {
	w.Helper()
	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}
	must(w.T, w.client.SubResource("scale").Update(w.Context(), w.deployment(transport), client.WithSubResourceBody(scale), client.FieldOwner("autoscaler")))
}

// watchReplicas returns a function that tells which numbers of pods the first worker group was ever to have since, each as often as it
// came about.
func (w *world) watchReplicas(transport *v1alpha1.Transport) func() []int32 {
	w.Helper()
	watcher, err := client.NewWithWatch(testcluster.Start(w.T).Config, client.Options{})
	must(w.T, err)
	ctx, cancel := context.WithCancel(context.Background())
	live := w.deployment(transport)
	events, err := watcher.Watch(ctx, &appsv1.DeploymentList{}, client.InNamespace(w.namespace),
		&client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: live.ResourceVersion}})
	must(w.T, err)
	var mu sync.Mutex
	seen, ended := []int32{*live.Spec.Replicas}, make(chan struct{})
	go func() {
		defer close(ended)
		for event := range events.ResultChan() {
			deployment, ok := event.Object.(*appsv1.Deployment)
			if !ok || deployment.Name != live.Name {
				continue
			}
			mu.Lock()
			if n := *deployment.Spec.Replicas; n != seen[len(seen)-1] {
				seen = append(seen, n)
			}
			mu.Unlock()
		}
	}()
	w.Cleanup(func() {
		cancel()
		events.Stop()
		<-ended
	})
	return func() []int32 {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

// theKEDA is held by tests, side by side, as long as the cluster that all share is to have KEDA's kind, and by one alone that has it come and go.
var theKEDA sync.RWMutex

// withKEDA has KEDA's kind there until a test ends, and for the next: to make a kind known costs an API server more than such a test.
func withKEDA(t *testing.T) {
	t.Helper()
	theKEDA.RLock()
	t.Cleanup(theKEDA.RUnlock)
	installKEDA(t)
}

// installKEDA makes KEDA's kind known, unless it is. Its caller holds theKEDA.
func installKEDA(t *testing.T) {
	t.Helper()
	cluster := testcluster.Start(t)
	must(t, client.IgnoreAlreadyExists(cluster.Client.Create(t.Context(), definitionOfKEDA(t))))
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(workload.ScaledObjectKind().GroupVersion().WithKind("ScaledObjectList"))
	testtransport.Eventually(t, "KEDA's kind to be served", func() bool { return cluster.Client.List(t.Context(), list) == nil })
}

// removeKEDA takes KEDA's kind away, if it is there. Its caller alone holds theKEDA.
func removeKEDA(t *testing.T) {
	t.Helper()
	cluster, definition := testcluster.Start(t), definitionOfKEDA(t)
	must(t, client.IgnoreNotFound(cluster.Client.Delete(context.Background(), definition)))
	testtransport.Eventually(t, "KEDA's kind to be gone", func() bool {
		err := cluster.Client.Get(context.Background(), client.ObjectKeyFromObject(definition), definition)
		return err != nil && client.IgnoreNotFound(err) == nil
	})
}

func definitionOfKEDA(t *testing.T) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	data, err := os.ReadFile("testdata/keda.yaml")
	must(t, err)
	definition := &apiextensionsv1.CustomResourceDefinition{}
	must(t, yaml.UnmarshalStrict(data, definition))
	return definition
}
