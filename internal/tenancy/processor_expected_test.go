package tenancy

import (
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Each short turn took a quarter off what was expected of the next one: namespaces whose turns are long made them look short by two cheap reconciles, and came
// with a long one each.
func TestProcessors_ExpectALongTurnAgainWhateverShortOnesCameSince(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcessors(32, 90<<20)
		const namespaces, long = 20, 640 * time.Millisecond
		compute := func(name string, long time.Duration) {
			mine, err := p.Acquire(t.Context(), name)
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(long)
			mine.Release()
		}
		hostile := func(n int) string { return "hostile-" + strconv.Itoa(n) }
		for n := range namespaces {
			compute(hostile(n), long)
		}
		var all sync.WaitGroup
		for round := range 6 {
			time.Sleep(30 * time.Second)
			for n := range namespaces {
				for range 30 {
					compute(hostile(n), time.Millisecond)
				}
			}
			for range 4 { // one more namespace of the attacker raises what counts
				compute("hostile", long)
			}
			for n := range namespaces {
				all.Go(func() { compute(hostile(n), long) })
			}
			time.Sleep(10 * time.Millisecond)
			begun := time.Now()
			for range 10 { // steps of a reconcile
				compute("shop", 2*time.Millisecond)
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(begun); took > 2*long {
				t.Errorf("round %d: a reconcile of a light namespace took %s", round, took)
			}
			all.Wait()
		}
	})
}
