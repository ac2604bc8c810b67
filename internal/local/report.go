package local

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"redrive.dev/redrive/internal/compile"
)

// answer is what a worker in another process tells of itself. Nobody changes it.
type answer struct {
	status compile.WorkerStatus
	// ready is true for a worker that can receive and settle messages; only one of a group is asked.
	ready    bool
	families []*dto.MetricFamily
	// done is what the families count.
	done tallies
}

// readMetrics reads the families of an answer.
func readMetrics(from io.Reader) ([]*dto.MetricFamily, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(from)
	return slices.Collect(maps.Values(families)), err
}

// record is what processes that follow one another have told of themselves. The lock of whoever has it guards it.
type record struct {
	// now is what the process that runs has told last, and before what those before it have done.
	now    answer
	before tallies
}

// ended puts what a process has told to what those before it have.
func (r *record) ended() {
	r.before.plus(r.now.done, 1)
	r.now = answer{}
}

// addTo counts what all processes have done.
func (r *record) addTo(all tallies) {
	all.plus(r.before, 1)
	all.plus(r.now.done, 1)
	for queue, tally := range r.now.done {
		all.of(queue).AtHandler += tally.AtHandler
	}
}

// member is what the process that runs has told last.
func (r *record) member(process, problem string) member {
	families := r.now.families
	return member{
		status:  WorkerSnapshot{Process: process, Problem: problem, WorkerStatus: r.now.status},
		metrics: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return families, nil }),
	}
}

// reportEvery is how often the quarantine process tells of itself.
const reportEvery = time.Second

// report is what it tells: one JSON document on a line.
type report struct {
	Status compile.WorkerStatus `json:"status"`
	// Metrics are in Prometheus's text format.
	Metrics string `json:"metrics"`
}

// reportTo writes a report each second until ctx ends, and then a last one. What a process did in the second before it is killed is not
// told.
func reportTo(ctx context.Context, to io.Writer, status func() compile.WorkerStatus, metrics prometheus.Gatherer) {
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	encoder := json.NewEncoder(to)
	for ended := false; !ended; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			ended = true
		}
		text, err := metricsText(metrics)
		if err != nil {
			continue
		}
		if err := encoder.Encode(report{Status: status(), Metrics: text}); err != nil {
			return // who listened is gone, and soon is this process
		}
	}
}

func metricsText(metrics prometheus.Gatherer) (string, error) {
	families, err := metrics.Gather()
	if err != nil {
		return "", err //nolint:wrapcheck // nobody sees it
	}
	var text strings.Builder
	for _, family := range families {
		if _, err := expfmt.MetricFamilyToText(&text, family); err != nil {
			return "", err //nolint:wrapcheck // nobody sees it
		}
	}
	return text.String(), nil
}

// reportReader takes what reportTo writes.
type reportReader struct {
	tell func(answer)
	rest []byte
}

// Write implements io.Writer. What is no report is ignored.
func (r *reportReader) Write(p []byte) (int, error) {
	r.rest = append(r.rest, p...)
	for {
		line, rest, whole := bytes.Cut(r.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		r.rest = rest
		var told report
		if json.Unmarshal(line, &told) != nil {
			continue
		}
		if families, err := readMetrics(strings.NewReader(told.Metrics)); err == nil {
			done := tallies{}
			done.addFamilies(families)
			r.tell(answer{status: told.Status, families: families, done: done})
		}
	}
}
