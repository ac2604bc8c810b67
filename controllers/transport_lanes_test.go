package controllers

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// Whoever may write ConfigMaps may name any number of lanes, each of which is a queue.
func TestLanesOfForgedConfigurationsAreBounded(t *testing.T) {
	t.Parallel()
	forged := compile.Config{Lanes: make(retry.Lanes, 10_000), HighLanes: true}
	for i := range forged.Lanes {
		forged.Lanes[i] = time.Duration(i+1) * time.Second
	}
	own, former := retry.Lanes{time.Second}, compile.Config{Lanes: retry.Lanes{time.Minute, time.Hour}}
	transport := testtransport.New("http://127.0.0.1:8080")
	run := &transportRun{compiled: &compile.Result{Needs: compile.Needs{Lanes: own}}, live: workload.NewLive(transport, nil, map[string]*corev1.ConfigMap{
		"forged": publishedOf(t, transport, forged), "former": publishedOf(t, transport, former),
	})}
	if configs := run.live.Configs(); len(configs) != 2 {
		t.Fatalf("%d configurations are taken for published", len(configs))
	}
	needs := (&TransportReconciler{}).needs(run)
	if !slices.Equal(needs.Lanes, retry.Lanes{time.Second, time.Minute, time.Hour}) || len(needs.HighLanes) > 0 {
		t.Errorf("%d lanes are needed, and %d for high priorities", len(needs.Lanes), len(needs.HighLanes))
	}
}

// publishedOf is the ConfigMap of a configuration with a queue that has a quarantine queue, and one that has not.
func publishedOf(t *testing.T, transport *v1alpha1.Transport, config compile.Config) *corev1.ConfigMap {
	t.Helper()
	config.Version, config.Worker, config.Concurrency = compile.Version, "default", 1
	config.Exchanges = compile.Exchanges{Fallback: "async.fallback", Return: "async.return", Failed: "async.failed"}
	config.Queues = []compile.Queue{{Name: "test", Policy: "policy", Quarantine: "test.quarantine"}, {Name: "strict", Policy: "policy"}}
	config.Policies = map[string]v1alpha1.RetryPolicySpec{"policy": {}}
	config.Timeout.Duration.Duration = time.Second
	configMap, err := workload.ConfigMap(transport, config)
	if err != nil {
		t.Fatal(err)
	}
	return configMap
}
