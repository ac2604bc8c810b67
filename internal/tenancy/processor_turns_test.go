package tenancy

import (
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// Forty namespaces, each of which has computed 20 ms less than the one that came before it, compute all at a time: none waits for those before it.
func TestProcessors_ComputeOnNoMoreThanThereAre(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcessors(32, 90<<20)
		const namespaces = 40
		compute := func(n int, long time.Duration, running, most *atomic.Int64) {
			mine, err := p.Acquire(t.Context(), "hostile-"+strconv.Itoa(n))
			if err != nil {
				t.Error(err)
				return
			}
			defer mine.Release()
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(long)
			running.Add(-1)
		}
		var running, most atomic.Int64
		for n := range namespaces {
			compute(n, time.Duration(namespaces-n)*20*time.Millisecond, &running, &most)
		}
		running.Store(0)
		most.Store(0)
		for n := range namespaces {
			go compute(n, 3*time.Second, &running, &most)
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		if most.Load() > int64(p.all)+1 {
			t.Errorf("%d have computed at a time, of %d", most.Load(), p.all)
		}
	})
}

// A namespace that has computed a few milliseconds waits for all those that come back after a while, one after the other.
func TestProcessors_ALightNamespaceWaitsForNoneThatComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProcessors(2, 90<<20)
		const turn, namespaces = 2 * time.Second, 10
		compute := func(name string, long time.Duration) {
			mine, err := p.Acquire(t.Context(), name)
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(long)
			mine.Release()
		}
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() { // one that raises what counts
			defer close(stopped)
			for {
				select {
				case <-stop:
					return
				default:
					compute("busy", 50*time.Millisecond)
				}
			}
		}()
		worst := time.Duration(0)
		for round := range 6 {
			time.Sleep(time.Minute)
			for n := range namespaces {
				go compute("hostile-"+strconv.Itoa(n), turn)
			}
			time.Sleep(10 * time.Millisecond)
			begun := time.Now()
			for range 10 { // steps of a reconcile
				compute("shop", 2*time.Millisecond)
				time.Sleep(time.Millisecond)
			}
			took := time.Since(begun)
			if round > 0 { // in the first one it is not known yet which are light
				worst = max(worst, took)
			}
			time.Sleep(30 * time.Second)
		}
		close(stop)
		<-stopped
		if worst > 2*time.Second {
			t.Errorf("a reconcile of a light namespace took %s", worst)
		}
	})
}
