package controllers

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The reconciles of fifty Transports of one namespace, at as many brokers, kept the processors from those of all others: a new Transport of another
// team was served after 13 s in place of 3.
func TestSomeReconcilesOfANamespaceRunAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all cpuSlots
		var begun atomic.Int64
		next, answer := make(chan struct{}), make(chan struct{})
		for range 50 {
			go func() {
				mine, err := all.acquire(t.Context(), "hostile")
				if err != nil {
					t.Error(err)
					return
				}
				defer mine.release()
				begun.Add(1)
				<-next
				mine.Wait(t.Context(), func() { <-answer })
			}()
		}
		expect := func(want int64) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			if got := begun.Load(); got != want {
				t.Errorf("%d reconciles have begun, want %d", got, want)
			}
		}
		expect(slotsOfNamespace)
		other, err := all.acquire(t.Context(), "shop")
		if err != nil {
			t.Fatalf("another namespace: %v", err)
		}
		other.release()
		for range slotsOfNamespace { // they wait for their brokers now
			next <- struct{}{}
		}
		expect(2 * slotsOfNamespace)
		close(answer)
		close(next)
		expect(50)
		if left := len(all.of("hostile")) + len(all.of("shop")); left != 0 {
			t.Errorf("%d slots are not given back", left)
		}
	})
}

// A reconcile whose time is over while it waits has no slot to give back.
func TestAReconcileWhoseTimeIsOverTakesNoSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all cpuSlots
		ctx, cancel := context.WithCancel(t.Context())
		mine, err := all.acquire(ctx, "shop")
		if err != nil {
			t.Fatal(err)
		}
		mine.Wait(ctx, func() {
			time.Sleep(2 * moment)
			synctest.Wait()
			for range slotsOfNamespace {
				all.of("shop") <- struct{}{}
			}
			cancel()
		})
		mine.Wait(ctx, func() { time.Sleep(2 * moment) })
		mine.release()
		if taken := len(all.of("shop")); taken != slotsOfNamespace {
			t.Errorf("%d slots are taken, want the %d of the others", taken, slotsOfNamespace)
		}
		if _, err := all.acquire(ctx, "shop"); err == nil {
			t.Error("a reconcile begins whose time is over")
		}
	})
}
