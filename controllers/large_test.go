package controllers_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// The operator keeps neither a template that is too long nor annotations, labels and owners. What it writes takes none of them out of the object.
func TestTransport_StaysWholeWhereTheOperatorKeepsAPart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	policy := w.policy("policy", time.Second)
	policy.Annotations, policy.Labels = map[string]string{"team": "shop"}, map[string]string{"team": "shop"}
	w.create(policy)
	transport := w.transport()
	template := []byte(`{"metadata":{"annotations":{"x":"` + strings.Repeat("x", 100_000) + `"}}}`)
	transport.Spec.Workers[0].Template = &runtime.RawExtension{Raw: template}
	transport.Annotations, transport.Labels = map[string]string{"team": "shop"}, map[string]string{"team": "shop"}
	transport.Finalizers = []string{"example.com/kept"}
	transport.OwnerReferences = []metav1.OwnerReference{{APIVersion: "redrive.dev/v1alpha1", Kind: "RetryPolicy", Name: policy.Name, UID: policy.UID}}
	w.create(transport)
	message := w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonWorkloadInvalid)
	if !strings.Contains(message, "spec.workers[default].template: Too long: may not be more than 65536 bytes") {
		t.Error(message)
	}
	whole := func() {
		t.Helper()
		w.get(transport)
		w.get(policy)
		for _, object := range []metav1.Object{transport, policy} {
			if object.GetAnnotations()["team"] != "shop" || object.GetLabels()["team"] != "shop" {
				t.Errorf("%s has %v, %v", object.GetName(), object.GetAnnotations(), object.GetLabels())
			}
		}
		if len(transport.OwnerReferences) != 1 || len(transport.Finalizers) != 2 {
			t.Errorf("the Transport has %v, %v", transport.OwnerReferences, transport.Finalizers)
		}
	}
	whole()
	if !bytes.Equal(transport.Spec.Workers[0].Template.Raw, template) {
		t.Errorf("the template has %d bytes", len(transport.Spec.Workers[0].Template.Raw))
	}
	edit(w, transport, func(tr *v1alpha1.Transport) { tr.Spec.Workers[0].Template = nil })
	w.awaitReady(transport)
	whole()
	edit(w, transport, func(tr *v1alpha1.Transport) { tr.Finalizers = []string{v1alpha1.Finalizer} })
}

// The cache has a part only of a spec that is too large. What is deleted does not follow from what is missing.
func TestDeletion_FollowsThePolicyOfATooLargeSpec(t *testing.T) {
	t.Parallel()
	for _, policy := range []v1alpha1.DeletionPolicy{v1alpha1.DeletionDeleteIfEmpty, v1alpha1.DeletionDelete, v1alpha1.DeletionRetain} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.ready()
			edit(w, transport, func(tr *v1alpha1.Transport) {
				tr.Spec.DeletionPolicy = policy
				for i := range tr.Spec.Queues {
					tr.Spec.Queues[i].Bindings = []v1alpha1.Binding{{Exchange: "other", Keys: []string{"a", "b"}}}
				}
				// Long texts in an atomic list, and not thousands of keys: the API server notes the owners of each item of a set, which takes it a second
				// of the processor, and where it cannot store an object with so many notes it leaves them out and does all of it again.
				for i := range 256 {
					rule := v1alpha1.PolicyRule{When: fmt.Sprintf("%02048d", i), RetryPolicyRef: v1alpha1.PolicyReference{Name: "policy"}}
					tr.Spec.RetryPolicies = append(tr.Spec.RetryPolicies, rule)
				}
			})
			message := w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
			if !strings.HasPrefix(message, "spec: takes ") {
				t.Error(message)
			}
			if policy == v1alpha1.DeletionDeleteIfEmpty {
				w.hold("test")
			}
			must(t, w.client.Delete(t.Context(), transport))
			if policy == v1alpha1.DeletionDeleteIfEmpty {
				w.await(transport, v1alpha1.ReadyCondition, metav1.ConditionFalse, v1alpha1.ReasonDeletionBlocked)
				w.checkHeld("test")
			}
			w.awaitGone(transport)
			if policy != v1alpha1.DeletionRetain {
				checkBrokerIsEmpty(w)
			} else if !w.hasQueue("test") || !w.hasQueue("lost") {
				t.Error("it should have left its queues")
			}
		})
	}
}

// An operator that starts on an API server which streams what it lists takes off twice what it does not keep: the second time the part that was left of
// the spec was taken for all of it, and the ways into the queues went.
func TestTransport_KeepsWhatItHasWhereItsSpecIsTooLarge(t *testing.T) {
	t.Parallel()
	o := &operator{}
	w := newPrivateWorld(t, o)
	transport := w.ready()
	const settle = 8 * time.Second
	edit(w, transport, func(tr *v1alpha1.Transport) {
		for i := range 60 {
			queue := v1alpha1.Queue{Name: fmt.Sprint("large-", i)}
			for j := range 12 {
				binding := v1alpha1.Binding{Exchange: fmt.Sprint("e", j)}
				for k := range 32 {
					binding.Keys = append(binding.Keys, fmt.Sprintf("%030d", k))
				}
				queue.Bindings = append(queue.Bindings, binding)
			}
			tr.Spec.Queues = append(tr.Spec.Queues, queue)
		}
	})
	w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
	before, err := w.broker.Bindings(t.Context(), "test")
	must(t, err)
	o.restart(t)
	var after []topology.Binding
	for begun := time.Now(); time.Since(begun) < settle; time.Sleep(100 * time.Millisecond) {
		if after, err = w.broker.Bindings(t.Context(), "test"); err != nil || len(after) != len(before) {
			break
		}
	}
	must(t, err)
	if len(after) != len(before) || w.hasQueue("large-0") {
		t.Errorf("before %v lead into the queue, and now %v", before, after)
	}
	w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
}
