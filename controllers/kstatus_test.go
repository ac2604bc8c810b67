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
	"redrive.dev/redrive/internal/testtransport"
)

// computed is what kstatus, and so kubectl, Flux and Argo CD, make of an object.
func computed(w *world, object client.Object) status.Status {
	w.Helper()
	gvk, err := w.client.GroupVersionKindFor(object)
	must(w.T, err)
	live := &unstructured.Unstructured{}
	live.SetGroupVersionKind(gvk)
	must(w.T, w.client.Get(w.Context(), client.ObjectKeyFromObject(object), live))
	result, err := status.Compute(live)
	must(w.T, err)
	return result.Status
}

func awaitComputed(w *world, object client.Object, want status.Status) {
	w.Helper()
	testtransport.Eventually(w, want.String()+" of "+object.GetName(), func() bool {
		w.rollOut()
		return computed(w, object) == want
	})
}

func TestKstatusReadsBothKinds(t *testing.T) {
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

// Nobody has looked at a fresh object yet. The operator would at once, so what the API server answers to its creation is
// what counts.
func TestKstatusTakesAFreshObjectForUnfinished(t *testing.T) {
	t.Parallel()
	cluster := testcluster.Start(t)
	w := &world{T: t, client: cluster.Client, namespace: cluster.Namespace(t), vhost: "none"}
	for _, object := range []client.Object{w.policy("policy", time.Second), w.transport()} {
		gvk, err := w.client.GroupVersionKindFor(object)
		must(t, err)
		w.create(object)
		object.GetObjectKind().SetGroupVersionKind(gvk)
		fresh := &unstructured.Unstructured{}
		must(t, w.client.Scheme().Convert(object, fresh, nil))
		result, err := status.Compute(fresh)
		must(t, err)
		if result.Status != status.InProgressStatus {
			t.Errorf("a fresh %s is %s: %s", gvk.Kind, result.Status, result.Message)
		}
	}
}
