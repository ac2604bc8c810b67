package controllers_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
)

// long is an expression of so many bytes.
func long(i, bytes int) string {
	return fmt.Sprintf("message.id == '%d%s'", i, strings.Repeat("x", bytes))
}

// lengthen has a policy take so many kilobytes, and two more.
func lengthen(policy *v1alpha1.RetryPolicy, kilobytes int) {
	for i := range kilobytes / 2 {
		policy.Spec.Strategies = append(policy.Spec.Strategies, v1alpha1.Strategy{Name: fmt.Sprint("long-", i), When: long(i, 2000)})
	}
}

// widen has the rules of a Transport take 40 kB, and a template of its worker as much.
func widen(transport *v1alpha1.Transport) {
	for i := range 20 {
		rule := v1alpha1.PolicyRule{When: long(i, 2000), RetryPolicyRef: v1alpha1.PolicyReference{Name: "policy"}}
		transport.Spec.RetryPolicies = append(transport.Spec.RetryPolicies, rule)
	}
	template := `{"metadata":{"annotations":{"x":"` + strings.Repeat("x", 40_000) + `"}}}`
	transport.Spec.Workers[0].Template = &runtime.RawExtension{Raw: []byte(template)}
}

// made is all that the operator has made, on the broker and in the cluster, without what changes by itself.
func (w *world) made() string {
	w.Helper()
	var list appsv1.DeploymentList
	must(w.T, w.client.List(w.Context(), &list, client.InNamespace(w.namespace)))
	text := w.objects()
	for i := range list.Items {
		text += fmt.Sprintf("\nDeployment %s %s %d", list.Items[i].Name, list.Items[i].UID, list.Items[i].Generation)
	}
	return text
}

// Of a spec without room the cache has a stub. Nothing on the broker and none of the workers goes by what a stub lacks: rules, ways into queues, worker
// groups, and the delays of a policy.
func TestTransport_KeepsWhatItHasWhereTheCacheHasNoRoom(t *testing.T) {
	t.Parallel()
	o := &operator{}
	w := newPrivateWorld(t, o)
	policy, transport, small := w.policy("policy", time.Second, 2*time.Second), w.transport(), w.second()
	lengthen(policy, 40)
	widen(transport)
	transport.Spec.Queues[1].Bindings = []v1alpha1.Binding{{Exchange: "amq.topic", Keys: []string{"a", "b"}}}
	w.create(policy, transport, small)
	w.awaitReady(transport)
	w.awaitReady(small)
	w.await(policy, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded)
	schedule, before := policy.Status.Schedule, w.made()

	o.room = 1
	o.restart(t)
	unchanged := func() {
		t.Helper()
		for begun := time.Now(); time.Since(begun) < 3*pollInterval; time.Sleep(100 * time.Millisecond) {
			if now := w.made(); now != before {
				t.Fatalf("before:\n%s\nnow:\n%s", before, now)
			}
		}
	}
	unchanged()
	for _, object := range []client.Object{policy, transport} {
		message := w.await(object, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
		if !strings.Contains(message, "which has no room for it") {
			t.Error(message)
		}
	}
	if policy.Status.Schedule != schedule || *policy.Status.UsedBy != 2 {
		t.Errorf("the policy has the schedule %q and %d users", policy.Status.Schedule, *policy.Status.UsedBy)
	}
	message := w.await(small, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonPolicyInvalid)
	if !strings.Contains(message, `RetryPolicy "policy" is not read`) {
		t.Error(message)
	}
	edit(w, transport, func(tr *v1alpha1.Transport) { tr.Spec.Workers[0].Replicas = new(int32(3)) })
	edit(w, policy, func(p *v1alpha1.RetryPolicy) { p.Spec.MaxRetries = new(int32(1)) })
	unchanged()
}

func TestTransport_IsReadAgainWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{room: 400 << 10})
	blocker := w.policy("blocker", time.Second)
	lengthen(blocker, 200)
	w.create(blocker)
	w.await(blocker, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded)
	policy, transport := w.policy("policy", time.Second, 2*time.Second), w.transport()
	lengthen(policy, 40)
	widen(transport)
	w.create(policy, transport)
	w.await(policy, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
	w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonInvalid)
	if w.hasQueue("test") {
		t.Error("queues are made by a stub")
	}
	must(t, w.client.Delete(t.Context(), blocker))
	w.await(policy, v1alpha1.ReadyCondition, metav1.ConditionTrue, v1alpha1.ReasonSucceeded)
	w.awaitReady(transport)
	if len(transport.Spec.RetryPolicies) != 20 || len(policy.Spec.Strategies) != 20 {
		t.Error("the operator has written what it had left of them")
	}
}
