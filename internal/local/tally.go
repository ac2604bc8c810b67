package local

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Tally is what the workers of a Transport did with the messages of one queue since they started.
type Tally struct {
	// AtHandler is the number of messages that the handler has now.
	AtHandler int64 `json:"atHandler"`
	// Handled messages were a success.
	Handled int64 `json:"handled"`
	// Retried counts the retries that were decided on.
	Retried int64 `json:"retried"`
	// Failed messages went to the failure queue.
	Failed int64 `json:"failed"`
	// Dropped messages were forgotten, as their policy says.
	Dropped int64 `json:"dropped"`
}

// Names of the worker's metrics that the table is made of.
const (
	metricHandled  = "redrive_messages_handled_total"
	metricInFlight = "redrive_handler_calls_in_flight"
)

// tallies of queues by name.
type tallies map[string]*Tally

func (t tallies) of(queue string) *Tally {
	if t[queue] == nil {
		t[queue] = &Tally{}
	}
	return t[queue]
}

// add counts what one worker did.
func (t tallies) add(worker prometheus.Gatherer) error {
	families, err := worker.Gather()
	if err != nil {
		return fmt.Errorf("gather the worker's metrics: %w", err)
	}
	t.addFamilies(families)
	return nil
}

func (t tallies) addFamilies(families []*dto.MetricFamily) {
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			switch family.GetName() {
			case metricHandled:
				t.outcome(metric)
			case metricInFlight:
				t.of(label(metric, "queue")).AtHandler += int64(metric.GetGauge().GetValue())
			}
		}
	}
}

func (t tallies) outcome(metric *dto.Metric) {
	tally, count := t.of(label(metric, "queue")), int64(metric.GetCounter().GetValue())
	switch label(metric, "outcome") {
	case "succeeded":
		tally.Handled += count
	case "retried":
		tally.Retried += count
	case "failed":
		tally.Failed += count
	case "dropped":
		tally.Dropped += count
	}
}

func label(metric *dto.Metric, name string) string {
	for _, pair := range metric.GetLabel() {
		if pair.GetName() == name {
			return pair.GetValue()
		}
	}
	return ""
}

// plus adds other tallies, times their sign.
func (t tallies) plus(others tallies, sign int64) {
	for queue, other := range others {
		tally := t.of(queue)
		tally.Handled += sign * other.Handled
		tally.Retried += sign * other.Retried
		tally.Failed += sign * other.Failed
		tally.Dropped += sign * other.Dropped
	}
}
