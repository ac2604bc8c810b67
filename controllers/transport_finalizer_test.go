package controllers_test

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

// Somebody takes the finalizer off a Transport that waits since a deletion had no answer, and makes it again. The request may still be carried out, and takes
// the queue with the messages that came since.
func TestTransport_WaitsForDeletionsOfTheOneBeforeIt(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{request: 5 * time.Minute})
	transport := w.transport()
	w.create(w.policy("policy", time.Second, 2*time.Second), transport)
	w.awaitReady(transport)
	w.settle()
	w.catchAt("DELETE", "^/api/queues/[^/]+/test$", false, func() { must(t, w.client.Delete(t.Context(), transport)) })
	must(t, w.client.Patch(t.Context(), transport, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	anew := w.transport()
	testtransport.Eventually(t, "the Transport to be made again", func() bool { return w.client.Create(t.Context(), anew) == nil })
	w.eventually("the operator to have looked at it", func() bool {
		w.rollOut()
		w.get(anew)
		ready := meta.FindStatusCondition(anew.Status.Conditions, v1alpha1.ReadyCondition)
		waits := ready != nil && strings.Contains(ready.Message, "queue test: a request to delete it had no answer")
		return ready != nil && ready.ObservedGeneration == anew.Generation && (ready.Status == metav1.ConditionTrue || waits)
	})
	if meta.IsStatusConditionTrue(anew.Status.Conditions, v1alpha1.ReadyCondition) {
		t.Error("it is ready, and gets messages, though a request may still delete a queue")
	}
}
