package worker

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/resilience"
)

// The first of them that closed took the trouble of the other away, for both were known by the same beginning of their keys.
func TestTroubles_StayUntilTheLastBreakerOfASubjectCloses(t *testing.T) {
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

// A status of more than 64 KiB is none to the operator: with messages of some 60 keys a producer hid that a queue was blocked.
func TestTroubles_OfManyBreakersLeaveRoomForThoseOfQueues(t *testing.T) {
	w := &Worker{
		options:  Options{Log: slog.New(slog.DiscardHandler), Now: time.Now, Metrics: NewMetrics(prometheus.NewRegistry())},
		troubles: newTroubles(), regulation: make(chan struct{}, 1),
	}
	for i := range 2 * maxTroubles {
		w.breakerChanged(fmt.Sprintf("%03d", i)+strings.Repeat("<", maxSubject), resilience.Closed, resilience.Open, "calls fail")
	}
	w.troubles.begin(troubleBlocked, "orders", time.Now())
	all := sorted(w.troubles.list())
	if data, err := json.Marshal(all); err != nil || len(data) < 64<<10 {
		t.Fatalf("they take %d bytes, %v: the test shows nothing", len(data), err)
	}
	shown := within(all, maxShown)
	data, err := json.Marshal(compile.WorkerStatus{Troubles: shown})
	if err != nil || len(data) > maxShown+1024 {
		t.Errorf("the status has %d bytes, %v", len(data), err)
	}
	if last := shown[len(shown)-1]; last.Reason != troubleBlocked || len(shown) < maxTroubles/4 {
		t.Errorf("%d troubles are shown, the last of them %s", len(shown), last.Reason)
	}
}
