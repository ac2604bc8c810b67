package local

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"redrive.dev/redrive/internal/manifest"
)

// measuring is a group of which only what it measures is known.
type measuring struct {
	group

	members []member
	ended   chan struct{}
}

func (g measuring) workers() []member        { return g.members }
func (g measuring) drained() <-chan struct{} { return g.ended }

// measured is a worker with one counter, whose help may be its own.
func measured(process, help string, value float64, labels prometheus.Labels) member {
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "orders_total", Help: help, ConstLabels: labels})
	counter.Add(value)
	registry.MustRegister(counter)
	return member{status: WorkerSnapshot{Process: process}, metrics: registry}
}

func TestEndpoints_ServeTheMetricsOfAllWorkers(t *testing.T) {
	units, err := Prepare(&manifest.Set{Transports: setOf("").Transports})
	if err != nil {
		t.Fatal(err)
	}
	runner := NewRunner(Options{Log: slog.New(slog.DiscardHandler)})
	site := newSite(&runner.options, &units[0], Broker{})
	runner.sites[units[0].Name()] = site
	runner.order = append(runner.order, units[0].Name())
	ended := make(chan struct{})
	close(ended)
	site.staffed = []staffed{
		{worker: "gone", group: measuring{members: []member{measured("", "a", 1, nil)}, ended: ended}},
		{worker: "first", group: measuring{members: []member{measured("", "a", 2, nil)}}}, // which drains, for the one below
		{worker: "second", group: measuring{members: []member{
			measured("", "other words", 3, prometheus.Labels{"transport": "bus"}), measured(processQuarantine, "a", 4, nil),
		}}},
		{worker: "first", group: measuring{members: []member{measured("", "a", 5, nil)}}},
	}
	answer := httptest.NewRecorder()
	runner.Endpoints().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	var got []string
	for line := range strings.Lines(answer.Body.String()) {
		if strings.HasPrefix(line, "orders_total") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	of := `namespace="default",transport="` + units[0].Name().Name + `"`
	want := []string{
		`orders_total{` + of + `,worker="first"} 5`,
		`orders_total{exported_transport="bus",` + of + `,worker="second"} 3`,
		`orders_total{namespace="default",process="quarantine",transport="` + units[0].Name().Name + `",worker="second"} 4`,
	}
	if len(got) != len(want) {
		t.Fatalf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, line := range want {
		if !strings.Contains(strings.Join(got, "\n"), line) {
			t.Errorf("got\n%s\nwithout\n%s", strings.Join(got, "\n"), line)
		}
	}
	if answer.Code != http.StatusOK || strings.Count(answer.Body.String(), "# TYPE orders_total") != 1 {
		t.Errorf("status %d:\n%s", answer.Code, answer.Body)
	}
}
