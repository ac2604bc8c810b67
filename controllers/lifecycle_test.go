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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

func TestTransport_LivesFromApplyToDeletion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()

	t.Log("applied: the topology and the workers stand")
	for _, queue := range []string{"test", "lost", "async.failed", "async.fallback.1s", "async.fallback.2s"} {
		if !w.hasQueue(queue) {
			t.Errorf("queue %s is not there", queue)
		}
	}
	checkTopology(w, transport)
	checkWorkers(w, transport)
	checkStatus(w, transport)

	t.Log("another policy: new lanes come, old ones go, no pod restarts")
	before := w.deployments()[0]
	policy := w.policy("policy")
	edit(w, policy, func(p *v1alpha1.RetryPolicy) { p.Spec = testtransport.Explicit(time.Second, 5*time.Second) })
	testtransport.Eventually(t, "the lane of 5s to be there and that of 2s to be gone", func() bool {
		return w.hasQueue("async.fallback.5s") && !w.hasQueue("async.fallback.2s")
	})
	w.awaitReady(transport)
	if !slices.Equal(transport.Status.Lanes, []string{"1s", "5s"}) {
		t.Errorf("status.lanes %v", transport.Status.Lanes)
	}
	after := w.deployments()[0]
	if after.Generation != before.Generation || document(t, before.Spec.Template) != document(t, after.Spec.Template) {
		t.Errorf("the Deployment has changed:\n%s\n%s", document(t, before.Spec), document(t, after.Spec))
	}

	t.Log("deleted: what holds a message stays until it is taken out")
	w.amqp.Publish("async.failed", "", amqp091.Publishing{MessageId: "kept"})
	w.awaitCount("async.failed", 1)
	must(t, w.client.Delete(t.Context(), transport))
	message := w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
	for _, part := range []string{"async.failed (1)", "Retain"} {
		if !strings.Contains(message, part) {
			t.Errorf("the condition %q does not say %q", message, part)
		}
	}
	if got := w.amqp.Take("async.failed"); got.MessageId != "kept" {
		t.Errorf("took message %q", got.MessageId)
	}
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
	if len(w.deployments()) > 0 {
		t.Error("the Deployment is still there")
	}
}

// checkTopology compares every exchange, queue, binding and policy on the broker with what the Transport needs.
func checkTopology(w *world, transport *v1alpha1.Transport) {
	w.Helper()
	observed := w.observed()
	owner := observed.Queues["test"].Arguments.Owner()
	if !strings.HasSuffix(owner, "/"+transport.Namespace+"/"+transport.Name) {
		w.Errorf("the queue test belongs to %q", owner)
	}
	desired, err := topology.Desired(transport, compile.Needs{Lanes: retry.Lanes{time.Second, 2 * time.Second}}, owner)
	must(w.T, err)
	difference := topology.Diff(desired, observed, transport.Status.Created)
	if !difference.Empty() || len(difference.Warnings) > 0 || len(difference.Adopted) > 0 {
		w.Errorf("the broker differs from what is wanted: %+v", difference)
	}
}

func checkWorkers(w *world, transport *v1alpha1.Transport) {
	w.Helper()
	deployments, configMaps := w.deployments(), w.configMaps()
	if len(deployments) != 1 || len(configMaps) != 1 {
		w.Fatalf("%d Deployments, %d ConfigMaps", len(deployments), len(configMaps))
	}
	for _, object := range []client.Object{&deployments[0], &configMaps[0]} {
		if !metav1.IsControlledBy(object, transport) || object.GetName() != workload.Name(transport, "default") {
			w.Errorf("%s is owned by %v", object.GetName(), object.GetOwnerReferences())
		}
	}
	pod := deployments[0].Spec.Template.Spec
	container := pod.Containers[0]
	if container.Image != workerImage {
		w.Errorf("image %s", container.Image)
	}
	security := container.SecurityContext
	if !*pod.SecurityContext.RunAsNonRoot || *security.AllowPrivilegeEscalation || !*security.ReadOnlyRootFilesystem ||
		!slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
		pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		w.Errorf("security contexts %v and %v", pod.SecurityContext, security)
	}
	config, err := compile.Decode([]byte(configMaps[0].Data[workload.ConfigKey]))
	must(w.T, err)
	policy := w.policy("policy")
	w.get(policy)
	want, err := compile.Compile(transport, map[string]*v1alpha1.RetryPolicy{"policy": policy})
	must(w.T, err)
	if got := document(w.T, config); got != document(w.T, want.Workers[0]) {
		w.Errorf("configuration %s", got)
	}
}

func checkStatus(w *world, transport *v1alpha1.Transport) {
	w.Helper()
	status := transport.Status
	if status.Workers != "2/2" || *status.Queues != 2 || !slices.Equal(status.Lanes, []string{"1s", "2s"}) {
		w.Errorf("status: workers %s, queues %d, lanes %v", status.Workers, *status.Queues, status.Lanes)
	}
	if status.Broker == nil || status.Broker.VHost != w.vhost || status.Broker.Cluster == "" {
		w.Errorf("status.broker %v", status.Broker)
	}
	if !slices.Equal(status.Created, []string{"exchange/async"}) {
		w.Errorf("status.created %v", status.Created)
	}
	stages := []string{"unreadable", "quarantined", "slot", "stale", "expired", "early", "ready", "expired", "attempt"}
	if p := status.Pipelines; len(p) != 1 || p[0].Worker != "default" || !slices.Equal(p[0].Stages, stages) || len(p[0].StrictStages) > 0 {
		w.Errorf("status.pipelines %+v", p)
	}
	if hash := w.configMaps()[0].Annotations[workload.ConfigHashAnnotation]; status.ConfigHash != hash {
		w.Errorf("status.configHash %s, the ConfigMap has %s", status.ConfigHash, hash)
	}
}

func checkBrokerIsEmpty(w *world) {
	w.Helper()
	observed := w.observed()
	for name := range observed.Queues {
		w.Errorf("queue %s is left", name)
	}
	for name := range observed.Policies {
		w.Errorf("policy %s is left", name)
	}
	for name := range observed.Exchanges {
		if name != "" && !strings.HasPrefix(name, "amq.") {
			w.Errorf("exchange %s is left", name)
		}
	}
}

func TestDeletion_KeepsWorkersUntilTheirQueuesAreEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.amqp.Publish("async", "test", amqp091.Publishing{})
	w.awaitCount("test", 1)
	must(t, w.client.Delete(t.Context(), transport))
	message := w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
	if !strings.Contains(message, "test (1)") {
		t.Errorf("the condition says %q", message)
	}
	if len(w.deployments()) != 1 {
		t.Error("the worker was stopped before its queue was empty")
	}
	w.amqp.Take("test")
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
}

func TestDeletion_GoesOnUnderAnotherOperator(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	transport := w.ready()
	w.amqp.Publish("async.failed", "", amqp091.Publishing{})
	w.awaitCount("async.failed", 1)
	must(t, w.client.Delete(t.Context(), transport))
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
	w.operator.restart(t)
	w.amqp.Take("async.failed")
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
}

func TestDeletion_LeavesOnTheBrokerWhatIsRetained(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		prepare func(*world, *v1alpha1.Transport)
		// silent is true where the API server takes no events.
		silent bool
	}{
		"by deletionPolicy Retain": {
			prepare: func(w *world, transport *v1alpha1.Transport) {
				edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.DeletionPolicy = v1alpha1.DeletionRetain })
			},
		},
		"because the namespace is being deleted": {
			prepare: func(w *world, _ *v1alpha1.Transport) {
				must(w.T, w.client.Delete(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
			},
			silent: true,
		},
		"because the Secret is gone": {
			prepare: func(w *world, _ *v1alpha1.Transport) {
				must(w.T, w.client.Delete(w.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: secretName}}))
			},
		},
		"because the namespace is being deleted, while messages block the deletion": {
			prepare: func(w *world, transport *v1alpha1.Transport) {
				must(w.T, w.client.Delete(w.Context(), transport))
				w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
				must(w.T, w.client.Delete(w.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
			},
			silent: true,
		},
		"by deletionPolicy Retain, set while the broker is away": {
			prepare: func(w *world, transport *v1alpha1.Transport) {
				w.proxy.down.Store(true)
				must(w.T, w.client.Delete(w.Context(), transport))
				testtransport.Eventually(w.T, "the condition to name the way out", func() bool {
					return strings.Contains(w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonBrokerUnreachable), "Retain")
				})
				edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.DeletionPolicy = v1alpha1.DeletionRetain })
			},
		},
		"by deletionPolicy Retain, set while messages block the deletion": {
			prepare: func(w *world, transport *v1alpha1.Transport) {
				must(w.T, w.client.Delete(w.Context(), transport))
				w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
				edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.DeletionPolicy = v1alpha1.DeletionRetain })
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.ready()
			w.amqp.Publish("async.failed", "", amqp091.Publishing{})
			w.awaitCount("async.failed", 1)
			tt.prepare(w, transport)
			must(t, client.IgnoreNotFound(w.client.Delete(t.Context(), transport)))
			w.awaitGone(transport)
			if got := w.amqp.Ready("async.failed"); got != 1 {
				t.Errorf("%d messages in the failure queue", got)
			}
			if !tt.silent {
				w.awaitEvent("Retained", "async.failed")
			}
		})
	}
}

func TestDeletion_TakesTheMessagesTooByPolicyDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.DeletionPolicy = v1alpha1.DeletionDelete })
	w.amqp.Publish("async.failed", "", amqp091.Publishing{})
	must(t, w.client.Delete(t.Context(), transport))
	w.awaitGone(transport)
	checkBrokerIsEmpty(w)
}

func TestDeletion_EndsAtOnceWhereNoBrokerWasReached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.proxy.down.Store(true)
	transport := w.transport()
	w.create(w.policy("policy"), transport)
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonBrokerUnreachable)
	must(t, w.client.Delete(t.Context(), transport))
	w.awaitGone(transport)
}

func TestTransport_DeletesTheObjectsOfAGroupThatLeftTheSpec(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	edit(w, transport, func(t *v1alpha1.Transport) {
		second := *t.Spec.Workers[0].DeepCopy()
		second.Name, second.Queues, t.Spec.Workers[0].Queues = "second", []string{"lost"}, []string{"test"}
		t.Spec.Workers = append(t.Spec.Workers, second)
	})
	w.awaitReady(transport)
	if got := []int{len(w.deployments()), len(w.configMaps())}; !slices.Equal(got, []int{2, 2}) {
		t.Fatalf("%d Deployments and %d ConfigMaps for two workers", got[0], got[1])
	}
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Workers = t.Spec.Workers[1:]
		t.Spec.Workers[0].Queues = nil
	})
	w.awaitReady(transport)
	names := func(deployments []appsv1.Deployment, configMaps []corev1.ConfigMap) (names []string) {
		for i := range deployments {
			names = append(names, deployments[i].Name)
		}
		for i := range configMaps {
			names = append(names, configMaps[i].Name)
		}
		return names
	}
	left := workload.Name(transport, "second")
	if got := names(w.deployments(), w.configMaps()); !slices.Equal(got, []string{left, left}) {
		t.Errorf("left are %v", got)
	}
	w.awaitEvent("Deleted", "Deployment "+workload.Name(transport, "default"))
}

// A group that was renamed together with its queue went on with the former name of the queue alone, or with nothing, while producers wrote to the new one;
// its quarantine pod was deleted at once.
func TestTransport_WorkersFollowARenamedQueueUntilThoseThatTakeItHaveAPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	w.quarantined()
	w.awaitQuarantine(transport)
	former := workload.Name(transport, "default")
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Workers[0].Name = "main"
		for i := range t.Spec.Queues {
			if t.Spec.Queues[i].Name == testtransport.Queue {
				t.Spec.Queues[i].Name, t.Spec.Queues[i].PreviousNames = "orders", []string{testtransport.Queue}
			}
		}
	})
	w.amqp.Publish("async", testtransport.Queue, amqp091.Publishing{})
	testtransport.Eventually(t, "the former group consumes the queue under both names", func() bool {
		for _, configMap := range w.configMaps() {
			if config, ok := workload.Published(&configMap); ok && configMap.Name == former {
				return slices.ContainsFunc(config.Queues, func(q compile.Queue) bool { return slices.Equal(q.Consumed(), []string{"orders", testtransport.Queue}) })
			}
		}
		return false
	})
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonMigrating)
	isFormer := func(d appsv1.Deployment) bool {
		return d.Name == former || d.Name == workload.QuarantineName(transport, "default")
	}
	if left := w.deployments(); len(slices.DeleteFunc(left, func(d appsv1.Deployment) bool { return !isFormer(d) })) != 2 {
		t.Errorf("the former workers are not all there: %d Deployments", len(left))
	}
	w.handleQuarantine()
	w.takeIDs(testtransport.Queue, 1)
	w.awaitReady(transport)
	w.eventually("the former workers gone", func() bool { return !slices.ContainsFunc(w.deployments(), isFormer) })
}

// A group whose handler takes long has room for one queue: what it was to empty besides, workers refused, and the operator forgot.
func TestTransport_AQueueThatLeavesASlowGroupIsEmptied(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Exchange.UnroutedTo, transport.Spec.Queues = nil, transport.Spec.Queues[:1]
	transport.Spec.Workers[0].Timeout, transport.Spec.Workers[0].Concurrency = v1alpha1.NewDuration(10*time.Minute), ptr.To[int32](1)
	w.create(transport)
	w.awaitReady(transport)
	w.amqp.Publish("async", testtransport.Queue, make([]amqp091.Publishing, 3)...)
	w.awaitCount(testtransport.Queue, 3)
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues = []v1alpha1.Queue{{Name: "orders", BindingKeys: []string{"orders"}}}
	})
	w.awaitReady(transport)
	reads := func() (queues []string) {
		for _, configMap := range w.configMaps() {
			config, ok := workload.Published(&configMap)
			if !ok {
				t.Errorf("workers cannot read %s", configMap.Name)
			}
			for _, queue := range config.Queues {
				queues = append(queues, queue.Consumed()...)
			}
		}
		return queues
	}
	w.awaitWarning(transport, v1alpha1.ReasonOther, "kept while they hold messages: test (3)")
	w.settle()
	if got := reads(); !slices.Equal(got, []string{"orders", testtransport.Queue}) {
		t.Errorf("workers read %v, want what they are to empty too", got)
	}

	configMap := w.configMaps()[0]
	must(t, w.client.Delete(t.Context(), &configMap))
	w.awaitWarning(transport, v1alpha1.ReasonOther, "no worker reads test: put them back into spec.queues until they are empty")
}

// The pods of a group that was renamed were stopped before any of its new name had started, also where none ever did.
func TestTransport_WorkersGoOnUntilThoseThatTakeTheirQueuesHaveAPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	former, next := workload.Name(transport, "default"), workload.Name(transport, "main")
	consumed := func(name string) (queues []string) {
		for _, configMap := range w.configMaps() {
			if config, ok := workload.Published(&configMap); ok && configMap.Name == name {
				for _, queue := range config.Queues {
					queues = append(queues, queue.Name)
				}
			}
		}
		slices.Sort(queues)
		return queues
	}
	deployed := func() (names []string) {
		for _, deployment := range w.deployments() {
			names = append(names, deployment.Name)
		}
		slices.Sort(names)
		return names
	}
	before := consumed(former)
	edit(w, transport, func(t *v1alpha1.Transport) {
		second := *t.Spec.Workers[0].DeepCopy()
		second.Name, second.Queues, t.Spec.Workers[0].Queues = "main", []string{"lost"}, []string{"test"}
		second.Template = &runtime.RawExtension{Raw: []byte(`{"spec":{"hostNetwork":true}}`)}
		t.Spec.Workers = append(t.Spec.Workers, second)
	})
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonWorkloadInvalid)
	if got := consumed(former); !slices.Equal(got, before) {
		t.Errorf("a queue is given to a group that is refused, and those who had it consume %v, want %v", got, before)
	}
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Workers = t.Spec.Workers[1:]
		t.Spec.Workers[0].Queues = nil
	})
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonWorkloadInvalid)
	if got := consumed(former); !slices.Equal(got, before) || !slices.Equal(deployed(), []string{former}) {
		t.Errorf("the group is renamed and refused; %s consumes %v, and there are %v", former, got, deployed())
	}
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Template = nil })
	testtransport.Eventually(t, "the Deployment of the new name", func() bool { return slices.Contains(deployed(), next) })
	w.awaitUnrolled(transport, "main (0 of 2 available)")
	if !slices.Contains(deployed(), former) {
		t.Error("the former pods are stopped before one of the new name is available")
	}
	w.awaitReady(transport)
	if got := deployed(); !slices.Equal(got, []string{next}) {
		t.Errorf("left are %v", got)
	}
	if got := consumed(next); !slices.Equal(got, before) {
		t.Errorf("%s consumes %v, want %v", next, got, before)
	}
}
