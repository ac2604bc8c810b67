package local

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Labels that say which worker measured something. The first three are those that Prometheus adds to what it reads from a pod.
const (
	labelNamespace = "namespace"
	labelTransport = "transport"
	labelWorker    = "worker"
	labelProcess   = "process"
)

// Status is what /status answers.
type Status struct {
	// Transports in the order in which they were taken.
	Transports []Snapshot `json:"transports"`
}

// Endpoints serves /healthz, which only says that this process answers, /status, which says how the Transports and their workers
// are, and /metrics of this process and of all workers. What workers measure has the labels namespace, transport and worker; that of
// a quarantine process has the label process, too.
func (r *Runner) Endpoints() http.Handler {
	own := prometheus.NewRegistry()
	own.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /status", func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(rw).Encode(Status{Transports: r.Snapshots()})
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(
		prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return r.gather(own) }),
		promhttp.HandlerOpts{
			// What one worker measures wrongly must not hide the rest.
			ErrorHandling: promhttp.ContinueOnError,
			ErrorLog:      slog.NewLogLogger(r.options.Log.Handler(), slog.LevelWarn),
		}))
	return mux
}

// gather reads what this process and all workers measure. Of two workers with the same labels, one of which drains, the newer counts.
func (r *Runner) gather(own prometheus.Gatherer) ([]*dto.MetricFamily, error) {
	helps := map[string]*string{}
	all := prometheus.Gatherers{labeled(own, nil, helps)}
	for _, site := range r.current() {
		seen, name, members := map[string]bool{}, site.unit.Load().Name(), site.members()
		for _, m := range slices.Backward(members) {
			labels := []*dto.LabelPair{pair(labelNamespace, name.Namespace), pair(labelTransport, name.Name), pair(labelWorker, m.status.Worker)}
			if m.status.Process != "" {
				labels = append(labels, pair(labelProcess, m.status.Process))
			}
			if key := m.status.Worker + "/" + m.status.Process; !seen[key] {
				seen[key] = true
				all = append(all, labeled(m.metrics, labels, helps))
			}
		}
	}
	return all.Gather() //nolint:wrapcheck // it says of what
}

// labeled adds labels to what another gatherer gives, without a change to it. A label that is there by the same name is renamed as
// Prometheus renames one. Programs may describe one metric in different words; the first that come to helps hold for all.
func labeled(from prometheus.Gatherer, labels []*dto.LabelPair, helps map[string]*string) prometheus.Gatherer {
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := from.Gather()
		copies := make([]*dto.MetricFamily, 0, len(families))
		for _, family := range families {
			if helps[family.GetName()] == nil {
				helps[family.GetName()] = new(family.GetHelp())
			}
			next := &dto.MetricFamily{Name: family.Name, Help: helps[family.GetName()], Type: family.Type, Unit: family.Unit}
			for _, metric := range family.GetMetric() {
				next.Metric = append(next.Metric, &dto.Metric{
					Label: withLabels(metric.GetLabel(), labels), Gauge: metric.GetGauge(), Counter: metric.GetCounter(), Summary: metric.GetSummary(),
					Untyped: metric.GetUntyped(), Histogram: metric.GetHistogram(), TimestampMs: metric.TimestampMs,
				})
			}
			copies = append(copies, next)
		}
		return copies, err //nolint:wrapcheck // it says of what
	})
}

// withLabels is a list of labels with more of them, by name.
func withLabels(own, more []*dto.LabelPair) []*dto.LabelPair {
	all := slices.Clone(more)
	for _, label := range own {
		if slices.ContainsFunc(more, func(other *dto.LabelPair) bool { return other.GetName() == label.GetName() }) {
			label = pair("exported_"+label.GetName(), label.GetValue())
		}
		all = append(all, label)
	}
	slices.SortFunc(all, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return all
}

func pair(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }
