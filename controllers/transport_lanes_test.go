package controllers

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// Whoever may write ConfigMaps may name any number of lanes, each of which is a queue.
func TestNeeds_BoundTheLanesOfForgedConfigurations(t *testing.T) {
	t.Parallel()
	transport, own := testtransport.New("http://127.0.0.1:8080"), retry.Lanes{time.Second}
	published := func(lanes retry.Lanes, high bool) *corev1.ConfigMap {
		config := testtransport.Compile(t, transport, testtransport.Explicit(time.Second)).Workers[0]
		config.Lanes, config.HighLanes = lanes, high
		configMap, err := workload.ConfigMap(transport, config)
		if err != nil {
			t.Fatal(err)
		}
		return configMap
	}
	forged := make(retry.Lanes, 10_000)
	for i := range forged {
		forged[i] = time.Duration(i+1) * time.Second
	}
	run := &transportRun{compiled: &compile.Result{Needs: compile.Needs{Lanes: own}}, live: workload.NewLive(transport, nil, map[string]*corev1.ConfigMap{
		"forged": published(forged, true), "former": published(retry.Lanes{time.Minute, time.Hour}, false),
	})}
	if configs := run.live.Configs(); len(configs) != 2 {
		t.Fatalf("%d configurations are taken for published", len(configs))
	}
	needs := (&TransportReconciler{}).needs(run)
	if !slices.Equal(needs.Lanes, retry.Lanes{time.Second, time.Minute, time.Hour}) || len(needs.HighLanes) > 0 {
		t.Errorf("%d lanes are needed, and %d for high priorities", len(needs.Lanes), len(needs.HighLanes))
	}
}
