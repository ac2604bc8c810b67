package controllers

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"redrive.dev/redrive/api/v1alpha1"
)

// sentEvents counts the events of each namespace.
type sentEvents map[string]int

// Eventf implements events.EventRecorder.
func (c sentEvents) Eventf(regarding, _ runtime.Object, _, _, _, _ string, _ ...any) {
	c[regarding.(*v1alpha1.Transport).Namespace]++
}

// The events of one namespace took 3 kB each of the operator's memory, without a bound.
func TestTheEventsOfANamespaceAreBounded(t *testing.T) {
	t.Parallel()
	sent := sentEvents{}
	recorder := newLimitedRecorder(sent)
	send := func(namespace string, n int) {
		transport := &v1alpha1.Transport{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "async"}}
		for range n {
			recorder.Eventf(transport, nil, "Normal", "Progressing", actionReconcile, "%s", "x")
		}
	}
	send("hostile", 10*eventBurst)
	send("shop", 100)
	// Some seconds may pass meanwhile.
	if sent["hostile"] < eventBurst || sent["hostile"] > 2*eventBurst || sent["shop"] != 100 {
		t.Errorf("sent are %v", sent)
	}
}
