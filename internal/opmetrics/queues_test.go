package opmetrics

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/topology"
)

// A registry serves nothing at all where two metrics have the same labels: what is told of one Transport must not take the others' away.
func TestQueues_ServeAllMetricsWhereAQueueIsToldTwice(t *testing.T) {
	t.Parallel()
	g, now := NewQueues(), time.Now()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(g); err != nil {
		t.Fatal(err)
	}
	count := func(messages int64, role topology.Role) apply.QueueCount {
		return apply.QueueCount{Name: "a.migrating", Role: role, Messages: &messages}
	}
	g.Set(types.NamespacedName{Namespace: "hostile", Name: "twice"}, []apply.QueueCount{
		count(1, topology.RoleWork), count(2, topology.RoleWork), count(3, topology.RoleLane),
	}, now)
	g.Set(types.NamespacedName{Namespace: "shop", Name: "orders"}, []apply.QueueCount{count(4, topology.RoleWork)}, now)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "redrive_queue_messages" {
			continue
		}
		told := 0.0
		for _, metric := range family.GetMetric() {
			told = 10*told + metric.GetGauge().GetValue()
		}
		if told != 14 {
			t.Errorf("the messages are %v", family.GetMetric())
		}
	}
}

// A registry that is slow to take the metrics, as where there are very many, must not have the looks at all Transports wait for it.
func TestCollect_HoldsUpNoLook(t *testing.T) {
	t.Parallel()
	name := types.NamespacedName{Namespace: "shop", Name: "orders"}
	g, s := NewQueues(), NewConditions()
	set := func() { g.Set(name, []apply.QueueCount{{Name: "a"}, {Name: "b"}}, time.Now()) }
	set()
	s.all[name] = State{Holds: []Condition{{"Ready", "Succeeded"}, {"Degraded", "MessagesQuarantined"}}}
	for what, tt := range map[string]struct {
		prometheus.Collector
		look func()
	}{
		"gauges":    {g, set},
		"standings": {s, func() { s.Forget(types.NamespacedName{}) }},
	} {
		metrics, looked := make(chan prometheus.Metric), make(chan struct{})
		go func() {
			defer close(metrics)
			tt.Collect(metrics)
		}()
		<-metrics // it is about to send the next one
		go func() {
			defer close(looked)
			tt.look()
		}()
		select {
		case <-looked:
		case <-time.After(10 * time.Second):
			t.Errorf("%s: a look waits until the metrics are collected", what)
		}
		for range metrics { // the rest
		}
	}
}
