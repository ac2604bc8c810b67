package controllers_test

import (
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"

	"k8s.io/apimachinery/pkg/api/meta"
)

func TestTransport_OpensNoQueueBeforeItIsOldEnough(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{young: time.Hour})
	w.create(w.policy("policy", time.Second, 2*time.Second))
	transport := w.transport()
	w.create(transport)
	w.eventually("the operator to wait for its queues", func() bool {
		w.get(transport)
		ready := meta.FindStatusCondition(transport.Status.Conditions, v1alpha1.ReadyCondition)
		return ready != nil && ready.Reason == v1alpha1.ReasonProgressing && strings.Contains(ready.Message, "made just now: async.failed")
	})
	w.awaitLooks(3)
	observed := w.observed()
	for _, queue := range []string{"test", "lost", "test.quarantine", "async.failed", "async.fallback.1s"} {
		if _, is := observed.Queues[queue]; !is {
			t.Errorf("queue %s is not made", queue)
		}
	}
	if _, is := observed.Exchanges["async"]; is || len(observed.Bindings) > 0 {
		t.Errorf("messages could come already: %v", observed.Bindings)
	}
	if len(w.configMaps())+len(w.deployments()) > 0 {
		t.Errorf("workers are told of the queues: %v", w.configMaps())
	}
	w.operator.young = 0
	w.operator.restart(t)
	w.awaitReady(transport)
	if len(w.configMaps()) != 1 {
		t.Errorf("want the workers' configuration, got %d", len(w.configMaps()))
	}
}
