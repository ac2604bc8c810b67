package worker_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

// Who can publish must not be able to fill the memory of whoever reads the metrics.
func TestMetrics_MakeNoLabelOfAMessage(t *testing.T) {
	const messages, hostile = 60, "hostile"
	p := newPartner(t, func(_ *http.Request, attempt int) int { return 400 + 100*(attempt%2) })
	policy := testtransport.Explicit(100 * time.Millisecond)
	policy.Strategies = []v1alpha1.Strategy{
		{Name: "rejected", When: "error.status == 400", Action: v1alpha1.ActionFail},
		{Name: "broken", When: "message.headers.missing == 'x'", Action: v1alpha1.ActionFail},
	}
	r := newRig(t, p, policy, nil)
	all := make([]amqp091.Publishing, messages)
	for i := range all {
		name := fmt.Sprintf("%s-%d", hostile, i)
		all[i] = amqp091.Publishing{
			MessageId: name, Type: name, CorrelationId: name, AppId: name, ContentType: name, Body: []byte(name),
			Headers: amqp091.Table{
				name: name, "redrive-strategy": name, "redrive-queue": name, "redrive-exchange": name, "redrive-routing-key": name,
				"redrive-retries": name, "redrive-lane": name, "redrive-traceparent": name, "traceparent": name,
			},
		}
	}
	r.Publish("async.return", testtransport.Queue, all...) // by which headers of ours are believed
	testtransport.Eventually(t, "all in the failure queue", func() bool { return r.Ready("async.failed") == messages })
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := 0
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			series++
			for _, label := range metric.GetLabel() {
				if strings.Contains(label.GetValue(), hostile) {
					t.Errorf("%s has the label %s", family.GetName(), label)
				}
			}
		}
	}
	if series == 0 || series > messages {
		t.Errorf("%d series for %d messages", series, messages)
	}
}
