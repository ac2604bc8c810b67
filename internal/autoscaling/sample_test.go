package autoscaling

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workerstatus"
)

// slowSource is a source whose broker answers a second after it is asked, and counts the questions.
type slowSource struct {
	configured

	looks *atomic.Int64
}

// Observe implements Source.
func (s slowSource) Observe(context.Context, *v1alpha1.Transport, time.Duration, time.Duration) (topology.Observed, error) {
	s.looks.Add(1)
	time.Sleep(time.Second)
	return topology.Observed{Queues: map[string]topology.QueueState{"orders": {Ready: 7, Evidence: topology.Evidence{Messages: new(int64(7))}}}}, nil
}

// Hear implements Source.
func (slowSource) Hear(
	context.Context, *workerstatus.Scraper, *v1alpha1.Transport, map[string]int32, time.Time,
) (map[workerstatus.Problem]int64, error) {
	return nil, nil //nolint:nilnil // there is none
}

// KEDA asks for each worker group, and whoever reaches the port may ask as often as he likes.
func TestMeter_LooksOnceForAllWhoAskTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const age, questions = 5 * time.Second, 1000
		looks := &atomic.Int64{}
		m, transport := NewMeter(nil, slowSource{configured{queues: []compile.Queue{{Name: "orders"}}}, looks}, age), scaledTransport()
		ask := func() {
			var asking sync.WaitGroup
			for range questions {
				asking.Go(func() {
					if taken, err := m.latest(t.Context(), transport); err != nil || taken.loads["default"].messages != 7 {
						t.Errorf("got %+v, %v", taken, err)
					}
				})
			}
			asking.Wait()
		}
		for _, round := range []struct {
			name  string
			after time.Duration
			looks int64
		}{
			{"the first ones", 0, 1},
			{"while the sample is recent", age - time.Millisecond, 1},
			{"once it is not", time.Millisecond, 2},
		} {
			time.Sleep(round.after)
			if ask(); looks.Load() != round.looks {
				t.Errorf("%s: %d questions are %d looks by now, want %d", round.name, questions, looks.Load(), round.looks)
			}
		}
	})
}
