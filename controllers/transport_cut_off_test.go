package controllers_test

import (
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/internal/testcluster"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/workload"
)

// A management API that is away when the queues have just been made lets a queue without a count grow old with nothing bound to it. Workers were told to
// consume it all the same: the retries of what an application had put there went from the lane into the failure queue.
func TestTransport_ANewQueueToWhichNothingLeadsBackIsNotConsumed(t *testing.T) {
	t.Parallel()
	w := newUnattendedWorld(t, &operator{young: time.Second})
	w.proxy.uncounted.Store(new("test"))
	w.create(w.policy("policy", time.Second, 2*time.Second))
	transport := w.transport()
	w.create(transport)
	w.operator.start(t, testcluster.Start(t))
	t.Cleanup(w.operator.stop)
	testtransport.Eventually(t, "its queues", func() bool { return w.hasQueue("test") })
	w.proxy.down.Store(true)
	time.Sleep(21 * time.Second) // until a queue counts as one that stays without a count
	w.proxy.down.Store(false)

	consumed := func() (names []string) {
		configMaps := w.configMaps()
		for i := range configMaps {
			config, _ := workload.Published(&configMaps[i])
			for _, queue := range config.Queues {
				names = append(names, queue.Consumed()...)
			}
		}
		slices.Sort(names)
		return names
	}
	testtransport.Eventually(t, "workers that consume the other queue", func() bool { w.rollOut(); return len(consumed()) > 0 })
	if got := consumed(); !slices.Equal(got, []string{"lost"}) {
		t.Errorf("workers are to consume %v", got)
	}
	if leads := w.observed().BindingsTo("test"); len(leads) > 0 {
		t.Fatalf("the queue has a way back: %v", leads)
	}
	w.proxy.uncounted.Store(nil)
	testtransport.Eventually(t, "workers that consume both queues", func() bool { w.rollOut(); return slices.Equal(consumed(), []string{"lost", "test"}) })
}
