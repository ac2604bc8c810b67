package controllers_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

// Its queues have no consumer until somebody puts right what the Transport is stalled for, which may be another queue of 64.
func TestTransport_RestoresAWorkerDeploymentWhereTheSpecIsNotCarriedOut(t *testing.T) {
	t.Parallel()
	add := func(queue v1alpha1.Queue) func(*world, *v1alpha1.Transport) {
		return func(w *world, transport *v1alpha1.Transport) {
			edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues = append(t.Spec.Queues, queue) })
		}
	}
	for name, c := range map[string]struct {
		obstruct          func(*world, *v1alpha1.Transport)
		condition, reason string
	}{
		"a queue of somebody else": {add(v1alpha1.Queue{Name: "taken", BindingKeys: []string{"taken"}}), v1alpha1.StalledCondition, v1alpha1.ReasonConflict},
		"a policy that is missing": {
			add(v1alpha1.Queue{Name: "more", RetryPolicyRef: &v1alpha1.PolicyReference{Name: "comes-later"}}),
			v1alpha1.StalledCondition, v1alpha1.ReasonPolicyNotFound,
		},
		"a broker that does not answer": {
			func(w *world, _ *v1alpha1.Transport) { w.proxy.down.Store(true) }, v1alpha1.ReconcilingCondition, v1alpha1.ReasonBrokerUnreachable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.ready()
			w.takeName("taken")
			c.obstruct(w, transport)
			w.await(transport, c.condition, metav1.ConditionTrue, c.reason)
			before := w.deployment(transport)
			w.deleteAll(before.DeepCopy())
			again := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: before.Name}}
			testtransport.Eventually(t, "the Deployment to be there again", func() bool { return w.get(again) && again.UID != before.UID })
			if got, want := document(t, again.Spec), document(t, before.Spec); got != want {
				t.Errorf("it is %s, and was %s", got, want)
			}
			w.await(transport, c.condition, metav1.ConditionTrue, c.reason)
			testtransport.Eventually(t, "the status to tell of its pods", func() bool { return w.get(transport) && transport.Status.Workers == "2/2" })
		})
	}
}

// A Deployment by a spec that is not accepted would call a handler with messages that are not meant for it, or be that of another group.
func TestTransport_TellsOfAWorkerDeploymentThatItCannotRestore(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*v1alpha1.Transport)
		told   string
	}{
		"another handler": {
			func(t *v1alpha1.Transport) { t.Spec.Workers[0].Handler.Image = new("shop:2") }, "has another handler or template for it",
		},
		"another name": {func(t *v1alpha1.Transport) { t.Spec.Workers[0].Name = "main" }, "does not have this worker group any more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			transport := w.ready()
			before := w.deployment(transport)
			w.takeName("taken")
			edit(w, transport, func(t *v1alpha1.Transport) {
				t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: "taken", BindingKeys: []string{"taken"}})
				c.change(t)
			})
			w.await(transport, v1alpha1.StalledCondition, metav1.ConditionTrue, v1alpha1.ReasonConflict)
			if meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.DegradedCondition) != nil {
				t.Errorf("while its workers run, the conditions are %+v", transport.Status.Conditions)
			}
			w.deleteAll(before)
			message := w.await(transport, v1alpha1.DegradedCondition, metav1.ConditionTrue, v1alpha1.ReasonOther)
			for _, part := range []string{`worker "default"`, c.told, "no worker reads", "lost", testtransport.Queue} {
				if !strings.Contains(message, part) {
					t.Errorf("%q does not have %q", message, part)
				}
			}
			w.awaitLooks(4)
			if all := w.deployments(); len(all) > 0 {
				t.Errorf("there are %d Deployments", len(all))
			}
		})
	}
}
