package worker

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/internal/resilience"
)

// The first of them that closed took the trouble of the other away, for both were known by the same beginning of their keys.
func TestBreakersOfKeysThatBeginAlikeHaveTroublesOfTheirOwn(t *testing.T) {
	w := &Worker{
		options:  Options{Log: slog.New(slog.DiscardHandler), Now: time.Now, Metrics: NewMetrics(prometheus.NewRegistry())},
		troubles: newTroubles(), regulation: make(chan struct{}, 1),
	}
	long := strings.Repeat("k", maxSubject)
	for _, key := range []string{long + "1", long + "2"} {
		w.breakerChanged(key, resilience.Closed, resilience.Open, "calls fail")
	}
	check := func(when string, want int) {
		t.Helper()
		list := w.troubles.list()
		if len(list) != want {
			t.Fatalf("%s: %d troubles, want %d", when, len(list), want)
		}
		for _, trouble := range list {
			if trouble.Subject != long {
				t.Errorf("%s: the subject is %q", when, trouble.Subject)
			}
		}
	}
	check("both are open", 1)
	w.breakerChanged(long+"1", resilience.Open, resilience.Closed, "the probe succeeded")
	check("one is open", 1)
	w.breakerChanged(long+"2", resilience.Open, resilience.Closed, "the probe succeeded")
	check("none is open", 0)
}
