package local

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/internal/manifest"
)

func TestTally_AddsUpTheWorkersOfAQueue(t *testing.T) {
	done := tallies{}
	for range 2 {
		registry := prometheus.NewRegistry()
		handled := prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricHandled}, []string{"queue", "outcome", "strategy"})
		flying := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: metricInFlight}, []string{"queue"})
		registry.MustRegister(handled, flying)
		for outcome, n := range map[string]float64{"succeeded": 8, "failed": 2, "dropped": 1, "redelayed": 9, "requeued": 9} {
			handled.WithLabelValues("test", outcome, "").Add(n)
		}
		handled.WithLabelValues("test", "retried", "throttled").Add(3)
		handled.WithLabelValues("test", "retried", "").Add(4)
		flying.WithLabelValues("test").Set(5)
		if err := done.add(registry); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := *done["test"], (Tally{AtHandler: 10, Handled: 16, Retried: 14, Failed: 4, Dropped: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestSnapshot_TellsUnknownFromNone(t *testing.T) {
	units, err := Prepare(&manifest.Set{Transports: setOf("").Transports})
	if err != nil {
		t.Fatal(err)
	}
	unknown := snapshotOf(&units[0], nil, tallies{})
	if unknown.Waiting != nil || unknown.Failures != nil || unknown.Queues[0].Ready != nil {
		t.Errorf("numbers that nobody counted: %+v", unknown)
	}
	known := snapshotOf(&units[0], counts{"async.fallback.1s": 2, "async.fallback.7s": 3, "test": 0}, tallies{"test": {Handled: 4}})
	if known.Waiting == nil || *known.Waiting != 5 {
		t.Errorf("lanes on their way out count too: got %v, want 5", known.Waiting)
	}
	if row := known.Queues[0]; row.Ready == nil || *row.Ready != 0 || row.Handled != 4 {
		t.Errorf("got %+v, want 0 ready and 4 handled", row)
	}
	if known.FailureQueue != "async.failed" || known.Failures != nil {
		t.Errorf("the failure queue was not counted: %+v", known)
	}
}
