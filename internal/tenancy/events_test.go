package tenancy_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/tenancy"
)

// sentEvents counts the events of each namespace.
type sentEvents map[string]int

// Eventf implements events.EventRecorder.
func (c sentEvents) Eventf(regarding, _ runtime.Object, _, _, _, _ string, _ ...any) {
	c[regarding.(*v1alpha1.Transport).Namespace]++
}

// The events of one namespace took 3 kB each of the operator's memory, without a bound.
func TestEventRecorder_BoundsTheEventsOfANamespace(t *testing.T) {
	t.Parallel()
	const burst = 5000
	sent := sentEvents{}
	recorder := tenancy.NewEventRecorder(sent)
	send := func(namespace string, n int) {
		transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "async"}}
		for range n {
			recorder.Eventf(transport, nil, "Normal", "Progressing", "Reconcile", "%s", "x")
		}
	}
	send("hostile", 10*burst)
	send("shop", 100)
	// Some seconds may pass meanwhile.
	if sent["hostile"] < burst || sent["hostile"] > 2*burst || sent["shop"] != 100 {
		t.Errorf("sent are %v", sent)
	}
}
