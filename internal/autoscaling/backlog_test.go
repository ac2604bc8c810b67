package autoscaling

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workerstatus"
)

// configured is a source of a configuration with these queues, which is decoded anew each time.
type configured struct {
	Source

	queues []compile.Queue
}

// Configurations implements Source.
func (c configured) Configurations(_ context.Context, _ *v1alpha1.Transport, workers []string, visit func(string, []compile.Queue)) error {
	for _, worker := range workers {
		queues := slices.Clone(c.queues)
		for i := range queues {
			queues[i].Hold = strings.Clone(queues[i].Hold)
		}
		visit(worker, queues)
	}
	return nil
}

// Owner implements Source.
func (c configured) Owner(*v1alpha1.Transport) string { return "here/shop/async" }

func meterOn(queues ...compile.Queue) *Meter {
	return NewMeter(nil, configured{queues: queues}, time.Second)
}

func scaledTransport() *v1alpha1.Transport {
	return &v1alpha1.Transport{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "async", UID: "u"},
		Spec: v1alpha1.TransportSpec{
			Queues:  []v1alpha1.Queue{{Name: "orders"}},
			Workers: []v1alpha1.Worker{{Name: "default", Autoscaling: &v1alpha1.Autoscaling{Max: 5}}},
		},
		Status: v1alpha1.TransportStatus{Created: []string{"queue/orders-before", "exchange/orders-other"}, Adopted: []string{"queue/orders-found"}},
	}
}

// Whoever may write ConfigMaps could have the pods of a Transport follow the queues of somebody else, and learn from it how many messages these hold.
func TestMeter_CountsOnlyTheTransportsOwnQueues(t *testing.T) {
	t.Parallel()
	transport, observed := scaledTransport(), map[string]topology.QueueState{}
	for name, ready := range map[string]int64{
		"orders": 1, "orders-before": 20, "orders-found": 300, "orders-marked": 4000, "orders-other": 50_000, "theirs": 600_000,
	} {
		observed[name] = topology.QueueState{Ready: ready, Evidence: topology.Evidence{Messages: new(ready)}}
	}
	for name, owner := range map[string]string{"orders-marked": "here/shop/async", "theirs": "here/shop/other"} {
		state := observed[name]
		state.Arguments = topology.Arguments{topology.OwnerArgument: owner}
		observed[name] = state
	}
	m := meterOn(compile.Queue{Name: "orders", Standin: "orders-before"}, compile.Queue{Name: "orders-found"},
		compile.Queue{Name: "orders-marked"}, compile.Queue{Name: "orders-other"}, compile.Queue{Name: "theirs"}, compile.Queue{Name: "none"})
	loads, err := m.loads(t.Context(), transport, observed)
	if want := (load{messages: 4321, ready: 4321}); err != nil || loads["default"] != want {
		t.Errorf("got %+v, %v; want %+v", loads, err, want)
	}
	uncounted := observed["orders-found"]
	uncounted.Messages = nil
	observed["orders-found"] = uncounted
	if loads, err = m.loads(t.Context(), transport, observed); err != nil || loads["default"].uncounted != "orders-found" {
		t.Errorf("got %+v, %v; want orders-found as not counted", loads, err)
	}
}

// Where one queue of a group had no leader, the messages in the others had no pod for as long.
func TestLoad_WhatIsCountedMakesPodsAndTakesNoneAway(t *testing.T) {
	t.Parallel()
	const none = -1
	for name, tt := range map[string]struct {
		load    load
		present int64
		open    bool
		failing bool
		want    int64
	}{
		"all are counted":                                   {load{50, 50, ""}, 100, false, false, 50},
		"one is not, and there is no pod":                   {load{50, 50, "second"}, 0, false, false, 50},
		"one is not, and there are too few pods":            {load{50, 50, "second"}, 30, false, false, 50},
		"one is not, and the pods suffice":                  {load{50, 50, "second"}, 50, false, false, none},
		"one is not, and the others hold nothing":           {load{0, 0, "second"}, 0, false, false, none},
		"the breaker is open":                               {load{50, 50, ""}, 10, true, false, 10},
		"the breaker of pods that are gone was open":        {load{50, 50, ""}, 0, true, false, 50},
		"the breaker is open, and one is not":               {load{50, 50, "second"}, 10, true, false, none},
		"pods hold what the broker does not take":           {load{50, 0, ""}, 10, false, true, 10},
		"they hold some, and more wait":                     {load{50, 30, ""}, 10, false, true, 30},
		"they hold few, and fewer pods suffice":             {load{5, 1, ""}, 10, false, true, 5},
		"pods that are gone held some":                      {load{50, 0, ""}, 0, false, true, 50},
		"they hold some, and the breaker is open":           {load{50, 30, ""}, 10, true, true, 10},
		"they have as many in hand, and the broker is well": {load{50, 0, ""}, 10, false, false, 50},
	} {
		got, err := tt.load.demand(tt.present, tt.open, tt.failing)
		if (err != nil) != (tt.want == none) || err == nil && got != tt.want {
			t.Errorf("%s: got %d, %v; want %d", name, got, err, tt.want)
		}
	}
}

// A look is kept for minutes. One at a hundred Transports whose ConfigMaps each name thousands of queues took 190 MB.
func TestMeter_KeepsNoForgedConfiguration(t *testing.T) {
	transport := scaledTransport()
	m := meterOn(compile.Queue{Name: "orders", Hold: strings.Repeat("x", 500_000)})
	var kept []map[string]load
	before := heap()
	for range 100 {
		loads, err := m.loads(t.Context(), transport, map[string]topology.QueueState{"orders": {Evidence: topology.Evidence{Messages: new(int64(0))}}})
		if err != nil || len(loads) != 1 {
			t.Fatalf("%v, %v", loads, err)
		}
		kept = append(kept, loads)
	}
	if took := heap() - before; took > 20<<20 {
		t.Errorf("%d looks take %d bytes", len(kept), took)
	}
}

// heap is how many bytes are in use.
func heap() int {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int(stats.HeapAlloc)
}

// lateSource is a broker whose answer takes longer than KEDA waits for a number.
type lateSource struct{ configured }

// Observe implements Source.
func (lateSource) Observe(context.Context, *v1alpha1.Transport, time.Duration, time.Duration) (topology.Observed, error) {
	time.Sleep(samplePatience + time.Second)
	return topology.Observed{Queues: map[string]topology.QueueState{"orders": {Ready: 7, Evidence: topology.Evidence{Messages: new(int64(7))}}}}, nil
}

// Hear implements Source.
func (lateSource) Hear(context.Context, *workerstatus.Scraper, *v1alpha1.Transport, map[string]int32, time.Time) (map[workerstatus.Problem]int64, error) {
	return map[workerstatus.Problem]int64{}, nil
}

func TestMeter_AnswersASlowBrokersCallersHoweverSeldomTheyAsk(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{10 * time.Second, 52 * time.Second, 5 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			m := NewMeter(nil, lateSource{configured{queues: []compile.Queue{{Name: "orders"}}}}, 5*time.Second)
			if _, err := m.latest(t.Context(), scaledTransport()); !errors.Is(err, ErrNoSample) {
				t.Errorf("the first question, which began the look: %v", err)
			}
			for range 3 {
				time.Sleep(interval)
				if got, err := m.latest(t.Context(), scaledTransport()); err != nil || len(got.loads) == 0 {
					t.Errorf("asked each %s: %v, %v", interval, got.loads, err)
				}
			}
			synctest.Wait()
			time.Sleep(sampleTimeout) // in which the last look ends
		})
	}
}
