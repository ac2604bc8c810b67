package worker_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

// A message that had waited two seconds for its turn at a rate limit had its delays begin anew.
func TestJitter_DecorrelatedGoesOnFromTheLastFailure(t *testing.T) {
	const messages, last, waited = 30, 200 * time.Second, 2 * time.Second
	policy := v1alpha1.RetryPolicySpec{MaxRetries: new(int32(20)), Backoff: &v1alpha1.Backoff{
		Type: v1alpha1.BackoffConstant, Delay: v1alpha1.NewDuration(100 * time.Millisecond), MaxDelay: v1alpha1.NewDuration(time.Hour),
		Jitter: &v1alpha1.Jitter{Type: v1alpha1.JitterDecorrelated},
	}}
	r := newRig(t, newPartner(t, always(502)), policy, nil)
	at := time.Now().Add(-last).UnixMilli()
	for i := range messages {
		r.Publish("async.return", testtransport.Queue, amqp091.Publishing{MessageId: strconv.Itoa(i), Headers: amqp091.Table{
			"redrive-attempts": int64(2), "redrive-retries": int64(2), "redrive-first-failure": at, "redrive-delay": waited.Milliseconds(),
			"redrive-history": fmt.Sprintf(`[{"attempt":1,"at":%d,"delay":1000},{"attempt":2,"at":%d,"delay":%d}]`, at, at, last.Milliseconds()),
		}})
	}
	testtransport.Eventually(t, "all failed again", func() bool { return outcomes(r, "retried") == messages })
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "redrive_retry_delay_seconds" {
			continue
		}
		if sum := family.GetMetric()[0].GetHistogram().GetSampleSum(); sum < messages*10*waited.Seconds() {
			t.Errorf("%d delays are %.0f s in all, and half of three times %s each on the average", messages, sum, last)
		}
		return
	}
	t.Error("no delay was counted")
}
