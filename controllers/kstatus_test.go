package controllers_test

import (
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	amqp091 "github.com/rabbitmq/amqp091-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testhealth"
	"redrive.dev/redrive/internal/testtransport"
)

// computed is what others make of an object as the API server has it.
func computed(w *world, object client.Object) status.Status {
	w.Helper()
	gvk, err := w.client.GroupVersionKindFor(object)
	must(w.T, err)
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(gvk)
	must(w.T, w.client.Get(w.Context(), client.ObjectKeyFromObject(object), live))
	return judged(w.T, live)
}

// judged is what kstatus makes of an object, and so Flux and kubectl. Argo CD must agree.
func judged(t *testing.T, live *unstructured.Unstructured) status.Status {
	t.Helper()
	result, why := testhealth.Flux(t, live)
	if argo, message := testhealth.Argo(t, live); argo != testhealth.Agrees(result) {
		t.Errorf("%s %s is %s for kstatus (%s) and %s for Argo CD (%s)", live.GetKind(), live.GetName(), result, why, argo, message)
	}
	return result
}

func awaitComputed(w *world, object client.Object, want status.Status) {
	w.Helper()
	testtransport.Eventually(w, want.String()+" of "+object.GetName(), func() bool {
		w.rollOut()
		return computed(w, object) == want
	})
}

func TestKstatus_ReadsBothKinds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	policy, transport := w.policy("policy", time.Second), w.transport()
	w.create(policy, transport)
	awaitComputed(w, policy, status.CurrentStatus)
	awaitComputed(w, transport, status.CurrentStatus)

	edit(w, policy, func(p *v1alpha1.RetryPolicy) { p.Spec.Strategies = []v1alpha1.Strategy{{Name: "bad", When: "1"}} })
	awaitComputed(w, policy, status.FailedStatus)
	awaitComputed(w, transport, status.FailedStatus)
	edit(w, policy, func(p *v1alpha1.RetryPolicy) { p.Spec.Strategies = nil })
	awaitComputed(w, policy, status.CurrentStatus)
	awaitComputed(w, transport, status.CurrentStatus)

	w.proxy.down.Store(true)
	awaitComputed(w, transport, status.InProgressStatus)
	w.proxy.down.Store(false)
	awaitComputed(w, transport, status.CurrentStatus)

	w.amqp.Publish("async.failed", "", amqp091.Publishing{})
	w.awaitCount("async.failed", 1)
	must(t, w.client.Delete(t.Context(), transport))
	w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
	if got := computed(w, transport); got != status.TerminatingStatus {
		t.Errorf("a Transport that is being deleted is %s", got)
	}
	policy.Finalizers = []string{"redrive.dev/test"}
	edit(w, policy, func(p *v1alpha1.RetryPolicy) { p.Finalizers = []string{"redrive.dev/test"} })
	must(t, w.client.Delete(t.Context(), policy))
	if got := computed(w, policy); got != status.TerminatingStatus {
		t.Errorf("a policy that is being deleted is %s", got)
	}
	edit(w, policy, func(p *v1alpha1.RetryPolicy) { p.Finalizers = nil })
}

// The operator may be slow or gone. Until it has looked, a change is not in force, however Ready the object was before.
func TestKstatus_TakesAChangeForUnfinishedUntilItIsSeen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	policy, transport := w.policy("policy", time.Second), w.transport()
	w.create(policy, transport)
	w.awaitReady(transport)
	// The answer to a change has the status from before it.
	edit(w, policy, func(p *v1alpha1.RetryPolicy) { p.Spec.MaxRetries = new(int32(7)) })
	unfinished(w, policy)
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Workers[0].Concurrency = new(int32(7)) })
	unfinished(w, transport)
	awaitComputed(w, policy, status.CurrentStatus)
	awaitComputed(w, transport, status.CurrentStatus)
}

// unfinished fails unless an object, as it is in memory, is in progress for others.
func unfinished(w *world, object client.Object) {
	w.Helper()
	gvk, err := w.client.GroupVersionKindFor(object)
	must(w.T, err)
	object.GetObjectKind().SetGroupVersionKind(gvk)
	seen := &unstructured.Unstructured{}
	must(w.T, w.client.Scheme().Convert(object, seen, nil))
	if result := judged(w.T, seen); result != status.InProgressStatus {
		w.Errorf("%s %s is %s", gvk.Kind, object.GetName(), result)
	}
}

// Nobody has looked at a fresh object yet. The operator would at once, so what the API server answers to its creation is
// what counts.
func TestKstatus_TakesAFreshObjectForUnfinished(t *testing.T) {
	t.Parallel()
	cluster := testcluster.Start(t)
	w := &world{T: t, client: cluster.Client, namespace: cluster.Namespace(t), vhost: "none"}
	for _, object := range []client.Object{w.policy("policy", time.Second), w.transport()} {
		w.create(object)
		unfinished(w, object)
	}
}
