package controllers_test

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

// published is how the published configuration of the only worker group has a queue.
func (w *world) published(queue string) compile.Queue {
	w.Helper()
	for _, configMap := range w.configMaps() {
		config, err := compile.Decode([]byte(configMap.Data[workload.ConfigKey]))
		must(w.T, err)
		for _, known := range config.Queues {
			if known.Name == queue {
				return known
			}
		}
	}
	return compile.Queue{}
}

func TestAQueueIsExchangedWithTheStepsInTheStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	edit(w, transport, func(t *v1alpha1.Transport) { t.Spec.Queues[0].SingleActiveConsumer = new(true) })
	message := w.await(transport, v1alpha1.ReconcilingCondition, metav1.ConditionTrue, v1alpha1.ReasonMigrating)
	if !strings.Contains(message, "test: ") {
		t.Errorf("the condition says %q", message)
	}
	w.awaitReady(transport)
	testtransport.Eventually(t, "the exchange to be over", func() bool {
		return w.get(transport) && len(transport.Status.Migrations) == 0 && w.published("test").Standin == ""
	})
	got := w.observed().Queues["test"]
	if got.Arguments["x-single-active-consumer"] != true || w.hasQueue("test.standin") {
		t.Errorf("the queue is %+v, and the stand-in is left: %v", got.Queue, w.hasQueue("test.standin"))
	}
	w.awaitEvent("MigrationBegan", "queue test is exchanged for one with other arguments")
	w.awaitEvent("MigrationEnded", "queue test")
	w.awaitReady(transport)
}

// A pod that does not say that it has the configuration may be one of an older build, which would leave what is in the stand-in.
func TestAnExchangeWaitsForAPodThatSaysNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	transport := w.ready()
	pod := w.podOf(transport)
	edit(w, transport, func(t *v1alpha1.Transport) {
		t.Spec.Queues[0].SingleActiveConsumer = new(true)
		t.Spec.Workers[0].Replicas = new(int32(3)) // which nobody rolls out
	})
	testtransport.Eventually(t, "the configuration to name the stand-in", func() bool {
		queue := w.published("test")
		return queue.Standin == "test.standin" && queue.Reads == compile.ReadsQueue
	})
	w.awaitLooks(6)
	if w.get(transport); len(transport.Status.Migrations) != 1 || transport.Status.Migrations[0].Step != v1alpha1.MigrationPrepare {
		t.Errorf("the exchanges are %+v", transport.Status.Migrations)
	}
	bound := slices.ContainsFunc(w.observed().BindingsTo("test"), func(b topology.Binding) bool { return b.Source == "async" })
	if !bound {
		t.Error("the queue is unbound already")
	}
	must(t, w.client.Delete(t.Context(), pod))
	w.rollOut()
	testtransport.Eventually(t, "the exchange to be over", func() bool {
		w.rollOut()
		return w.get(transport) && len(transport.Status.Migrations) == 0
	})
}
