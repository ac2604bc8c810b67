package brokerpool

import (
	"context"
	"testing"
	"testing/synctest"

	"redrive.dev/redrive/internal/tenancy"
)

// Namespaces whose processors were taken named the host and port of another's broker: the question to that broker waited for their processors.
func TestRestartWatch_HoldsNoSlotWhileItWaitsForAProcessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		processors := tenancy.NewProcessors()
		r, slot := NewRestartWatch(0, processors), make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		one, err := processors.Acquire(ctx, "hostile")
		if err != nil {
			t.Fatal(err)
		}
		for more := one; more != nil; more = processors.TryAcquire("hostile") {
			defer more.Release()
		}
		go func() { _, _ = r.turn(ctx, "hostile", slot) }()
		synctest.Wait()
		if len(slot) > 0 {
			t.Error("the slot is taken by one that has no processor")
		}
	})
}

func TestRestartWatch_HoldsNoProcessorWhileItWaitsForTheSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		processors := tenancy.NewProcessors()
		r, slot := NewRestartWatch(0, processors), make(chan struct{}, 1)
		slot <- struct{}{} // by somebody else
		came := make(chan *tenancy.Processor)
		go func() {
			processor, leave := r.turn(t.Context(), "shop", slot)
			defer leave()
			came <- processor
		}()
		synctest.Wait()
		other := processors.TryAcquire("shop")
		if other == nil {
			t.Fatal("the processor is taken by one that waits for the slot")
		}
		other.Release()
		<-slot
		processor := <-came
		if processor == nil {
			t.Fatal("no turn when the slot was free")
		}
		processor.Release()
		synctest.Wait()
		if len(slot) > 0 {
			t.Error("the slot is not given back")
		}
	})
}
