package opmetrics

import (
	"fmt"
	"maps"
	"runtime"
	"strconv"
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

// ofSize are the queues of a Transport with as many as it may have.
func ofSize(n int) (queues []apply.QueueCount) {
	for _, role := range []topology.Role{topology.RoleWork, topology.RoleQuarantine, topology.RoleLane} {
		for i := range n {
			queues = append(queues, apply.QueueCount{Name: fmt.Sprint(role, i), Role: role, Unacked: 1})
		}
	}
	return queues
}

// lookAt takes looks at the queues of 50 Transports; a message has come to each since the last one.
func lookAt(g *Queues, namespace string, looks int) {
	begun := time.Now()
	for i := range 50 {
		queues := ofSize(64)
		for look := range looks {
			messages := int64(look + 1)
			for q := range queues {
				queues[q].Messages, queues[q].Published = &messages, messages
			}
			g.Set(types.NamespacedName{Namespace: namespace, Name: strconv.Itoa(i)}, queues, begun.Add(time.Duration(look)*time.Minute))
		}
	}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Four namespaces of a quota kept 135 MB of looks at their queues.
func TestQueues_KeepLittleOfManyLooks(t *testing.T) {
	g, before := NewQueues(), heap()
	lookAt(g, "hostile", 120)
	if kept := (heap() - before) >> 20; kept > 8 {
		t.Errorf("looks at the queues of a namespace take %d MB", kept)
	}
	runtime.KeepAlive(g)
}

// They also had each look of Prometheus take 84 MB more.
func TestQueues_BoundWhatIsToldOfAllNamespaces(t *testing.T) {
	t.Parallel()
	g := NewQueues()
	for range 3 { // polls: the shares of the first ones shrink
		for n := range 12 {
			lookAt(g, fmt.Sprint("hostile-", n), 1)
		}
	}
	series := func(name types.NamespacedName) (all, its int, messages float64) {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(g)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			all += len(family.GetMetric())
			for _, metric := range family.GetMetric() {
				if metric.GetLabel()[0].GetValue() == name.Namespace && metric.GetLabel()[3].GetValue() == name.Name {
					its++
					if family.GetName() == "redrive_queue_messages" {
						messages += metric.GetGauge().GetValue()
					}
				}
			}
		}
		return all, its, messages
	}
	summed := types.NamespacedName{Namespace: "hostile-11", Name: "49"}
	all, its, messages := series(summed)
	if most := 5*maxQueues + 12*50*15; all > most || its != 15 || messages != 3*64 {
		t.Errorf("%d series, want at most %d; %d of them with %v messages are those of a Transport that finds no room", all, most, its, messages)
	}
	if !g.Unacked(summed)[""] {
		t.Error("nobody has its messages in hand")
	}
	light := types.NamespacedName{Namespace: "shop", Name: "orders"}
	g.Set(light, ofSize(4), time.Now())
	if !g.single[light] {
		t.Error("the queues of another namespace have no numbers of their own")
	}
	for name := range maps.Clone(g.queues) {
		g.Forget(name)
	}
	if g.all != 0 || len(g.told)+len(g.single)+len(g.queues) != 0 {
		t.Errorf("%d queues of %v are remembered", g.all, g.told)
	}
}
