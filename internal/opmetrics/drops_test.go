package opmetrics

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/topology"
)

// figures are what the broker says of a failure queue with a bound of 10, and how many messages are counted as dropped until then.
type figures struct{ published, acked, messages, want int64 }

func TestDrops_FollowFromTheFiguresOfAFailureQueue(t *testing.T) {
	tests := map[string][]figures{
		"nothing is dropped below the bound":       {{0, 0, 0, 0}, {5, 0, 5, 0}, {10, 0, 10, 0}, {10, 0, 10, 0}},
		"what was published, less what is there":   {{0, 0, 0, 0}, {10, 0, 10, 0}, {30, 0, 10, 0}, {30, 0, 10, 20}, {31, 0, 10, 20}, {31, 0, 10, 21}},
		"filled over the bound between two":        {{0, 0, 0, 0}, {30, 0, 10, 0}, {30, 0, 10, 20}},
		"what was dropped before the first look":   {{30, 0, 10, 0}, {30, 0, 10, 0}, {34, 0, 10, 0}, {34, 0, 10, 4}},
		"what is taken is not dropped":             {{10, 0, 10, 0}, {14, 4, 10, 0}, {14, 4, 10, 0}, {14, 14, 0, 0}, {14, 14, 0, 0}},
		"dropped and then taken":                   {{10, 0, 10, 0}, {30, 0, 10, 0}, {30, 10, 0, 20}, {30, 10, 0, 20}},
		"on loan messages are over the bound":      {{10, 0, 10, 0}, {15, 0, 15, 0}, {15, 0, 10, 0}, {15, 0, 10, 5}},
		"a purge is not dropped":                   {{10, 0, 10, 0}, {10, 0, 0, 0}, {10, 0, 0, 0}, {20, 0, 10, 0}, {20, 0, 10, 0}, {23, 0, 10, 0}, {23, 0, 10, 3}},
		"dropped, and then purged":                 {{10, 0, 10, 0}, {15, 0, 10, 0}, {15, 0, 0, 5}, {25, 0, 10, 5}, {25, 0, 10, 5}},
		"a lower bound drops at once":              {{40, 0, 40, 0}, {40, 0, 10, 0}, {40, 0, 10, 30}},
		"dead-lettered ones fill the queue":        {{0, 0, 0, 0}, {0, 0, 10, 0}, {0, 0, 10, 0}, {7, 0, 10, 0}, {7, 0, 10, 7}},
		"the number of messages is late":           {{0, 0, 0, 0}, {30, 0, 0, 0}, {30, 0, 10, 0}, {30, 0, 10, 20}, {32, 0, 10, 20}, {32, 0, 10, 22}},
		"the counters are late":                    {{0, 0, 0, 0}, {0, 0, 10, 0}, {10, 0, 10, 0}, {10, 0, 10, 0}, {12, 0, 10, 0}, {12, 0, 10, 2}},
		"an acknowledgement is late":               {{10, 0, 10, 0}, {13, 0, 10, 0}, {13, 3, 10, 0}, {13, 3, 10, 0}},
		"the broker begins to count anew":          {{30, 5, 10, 0}, {0, 0, 10, 0}, {0, 0, 10, 0}, {4, 0, 10, 0}, {4, 0, 10, 4}},
		"only one of the counters begins anew":     {{30, 5, 10, 0}, {30, 0, 10, 0}, {30, 0, 10, 0}},
		"the queue is made again":                  {{30, 0, 10, 0}, {0, 0, 0, 0}, {15, 0, 10, 0}, {15, 0, 10, 5}},
		"figures of a node are away for a while":   {{90, 0, 10, 0}, {50, 0, 10, 0}, {90, 0, 10, 0}, {90, 0, 10, 0}, {92, 0, 10, 0}, {92, 0, 10, 2}},
		"no counters at all, with rates_mode none": {{0, 0, 0, 0}, {0, 0, 10, 0}, {0, 0, 10, 0}, {0, 0, 0, 0}, {0, 0, 10, 0}, {0, 0, 10, 0}},
	}
	for name, looks := range tests {
		t.Run(name, func(t *testing.T) {
			b, now, total := bounded{}, time.Now(), int64(0)
			for i, l := range looks {
				total += b.see(apply.QueueCount{Published: l.published, Acked: l.acked, Messages: &l.messages}, 10, now)
				if total != l.want {
					t.Errorf("look %d: %d messages were dropped, want %d", i, total, l.want)
				}
				now = now.Add(minDampInterval)
			}
		})
	}
}

func TestDrops_CompareNoFiguresThatMayBeTheSame(t *testing.T) {
	b, now := bounded{}, time.Now()
	see := func(after time.Duration, published int64) int64 {
		return b.see(apply.QueueCount{Published: published, Messages: new(int64(10))}, 10, now.Add(after))
	}
	if see(0, 10) != 0 || see(minDampInterval, 30) != 0 || see(2*minDampInterval-1, 30) != 0 {
		t.Error("messages count that a later look may find")
	}
	if got := see(2*minDampInterval, 30); got != 20 {
		t.Errorf("%d messages were dropped, want 20", got)
	}
}

// A queue is played, whose figures are true: no message counts that was not dropped, and in the end all count that were dropped while
// nobody purged.
func TestDrops_CountNoMoreThanWereDropped(t *testing.T) {
	const bound = 10
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for round := range 300 {
		b, now := bounded{}, time.Now()
		var published, acked, messages, dropped, counted int64
		look := func() {
			counted += b.see(apply.QueueCount{Published: published, Acked: acked, Messages: new(messages)}, bound, now)
			if now = now.Add(minDampInterval); counted > dropped {
				t.Fatalf("%d messages count and %d were dropped", counted, dropped)
			}
		}
		look()
		for range 100 {
			for range random.IntN(8) {
				published++
				messages++
				dropped, messages = dropped+max(0, messages-bound), min(messages, bound)
			}
			if messages > 0 && round%3 == 1 && random.IntN(4) == 0 {
				taken := random.Int64N(messages)
				acked, messages = acked+taken, messages-taken
			}
			if round%3 == 2 && random.IntN(20) == 0 {
				messages = 0
			}
			look()
		}
		look()
		if round%3 == 0 && counted != dropped {
			t.Fatalf("%d messages count and %d were dropped", counted, dropped)
		}
	}
}

func TestDrops_TellOnlyOfFailureQueuesWithABound(t *testing.T) {
	d, name, now := NewDrops(), types.NamespacedName{Namespace: "shop", Name: "async"}, time.Now()
	look := func(bound *int64, queue string, published int64, messages *int64) map[string]float64 {
		now = now.Add(minDampInterval)
		d.Set(name, bound, []apply.QueueCount{
			{Name: queue, Role: topology.RoleFailure, Published: published, Messages: messages},
			{Name: "test", Role: topology.RoleWork, Published: 2 * published, Messages: messages},
		}, now)
		return told(t, d.Total)
	}
	bound, full := new(int64(10)), new(int64(10))
	check := func(what string, got map[string]float64, queue string, want float64) {
		t.Helper()
		if value, ok := got[queue]; len(got) != 1 || !ok || value != want {
			t.Errorf("%s: %v is told, want %s: %g", what, got, queue, want)
		}
	}
	if got := look(nil, "async.failed", 10, full); len(got) != 0 {
		t.Errorf("without a bound %v is told", got)
	}
	if got := look(bound, "async.failed", 10, nil); len(got) != 0 {
		t.Errorf("without statistics %v is told", got)
	}
	check("the first look", look(bound, "async.failed", 10, full), "async.failed", 0)
	look(bound, "async.failed", 30, full)
	check("the figures stand", look(bound, "async.failed", 30, full), "async.failed", 20)
	check("statistics missing", look(bound, "async.failed", 0, nil), "async.failed", 20)
	check("counted anew", look(bound, "async.failed", 0, full), "async.failed", 20)
	check("another queue", look(bound, "graves", 50, full), "graves", 0)
	if d.Forget(name); len(told(t, d.Total)) != 0 {
		t.Errorf("%v is told of a Transport that is gone", told(t, d.Total))
	}
}

// told are the values of a metric by the label queue.
func told(t *testing.T, collector prometheus.Collector) map[string]float64 {
	t.Helper()
	metrics := make(chan prometheus.Metric, 10)
	collector.Collect(metrics)
	close(metrics)
	values := map[string]float64{}
	for metric := range metrics {
		var got dto.Metric
		if err := metric.Write(&got); err != nil {
			t.Fatal(err)
		}
		for _, label := range got.GetLabel() {
			if label.GetName() == "queue" {
				values[label.GetValue()] = got.GetCounter().GetValue()
			}
		}
	}
	return values
}
