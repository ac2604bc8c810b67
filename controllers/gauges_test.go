package controllers

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/topology"
)

// A registry serves nothing at all where two metrics have the same labels: what is told of one Transport must not take the others' away.
func TestAQueueThatIsToldTwiceTakesNoMetricsAway(t *testing.T) {
	t.Parallel()
	g, now := newGauges(), time.Now()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(g); err != nil {
		t.Fatal(err)
	}
	count := func(messages int64, role topology.Role) apply.QueueCount {
		return apply.QueueCount{Name: "a.standin", Role: role, Messages: &messages}
	}
	g.set(types.NamespacedName{Namespace: "hostile", Name: "twice"}, []apply.QueueCount{
		count(1, topology.RoleWork), count(2, topology.RoleWork), count(3, topology.RoleLane),
	}, now)
	g.set(types.NamespacedName{Namespace: "shop", Name: "orders"}, []apply.QueueCount{count(4, topology.RoleWork)}, now)
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
