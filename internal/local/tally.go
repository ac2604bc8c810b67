package local

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Tally is what the workers of this process did with the messages of one queue since they started.
type Tally struct {
	// AtHandler is the number of messages that the handler has now.
	AtHandler int64
	// Handled messages were a success.
	Handled int64
	// Retried counts the retries that were decided on.
	Retried int64
	// Failed messages went to the failure queue.
	Failed int64
	// Dropped messages were forgotten, as their policy says.
	Dropped int64
}

// Names of the worker's metrics that the table is made of.
const (
	metricHandled  = "redrive_messages_handled_total"
	metricInFlight = "redrive_in_flight_messages"
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
	return nil
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
