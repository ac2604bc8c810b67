package tenancy

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/internal/broker"
)

// slowServer answers each Get in 5 ms, in which others have the processor.
type slowServer struct{ client.Reader }

func (slowServer) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	broker.Await(ctx, func() { time.Sleep(5 * time.Millisecond) })
	return nil
}

// Reads kept their places while they waited for a processor, and one of a light namespace waited for minutes for theirs.
func TestReader_KeepsNoPlaceWhileItWaitsForAProcessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const namespaces, reconciles, long = 20, 12, 640 * time.Millisecond
		p, reader := newProcessors(32, 90<<20), &Reader{}
		var over atomic.Bool
		reconcile := func(name string, computes time.Duration, steps int) {
			mine, err := p.Acquire(t.Context(), name)
			if err != nil {
				t.Error(err)
				return
			}
			defer mine.Release()
			ctx := broker.WithWaiter(t.Context(), mine)
			for range steps {
				if err := reader.Get(ctx, slowServer{}, client.ObjectKey{Namespace: name, Name: "s"}, &corev1.Secret{}); err != nil {
					t.Error(err)
				}
				time.Sleep(computes)
			}
		}
		var all sync.WaitGroup
		for n := range namespaces {
			for range reconciles {
				all.Go(func() {
					for !over.Load() {
						reconcile("hostile-"+strconv.Itoa(n), long, 1)
					}
				})
			}
		}
		time.Sleep(20 * time.Second)
		for range 5 {
			begun := time.Now()
			reconcile("shop", 2*time.Millisecond, 6)
			if took := time.Since(begun); took > 2*long {
				t.Errorf("a reconcile of a light namespace took %s", took)
			}
			time.Sleep(3 * time.Second)
		}
		over.Store(true)
		all.Wait()
	})
}
