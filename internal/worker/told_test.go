package worker_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/worker"
)

// sharedBuffer is a log that is read while it is written.
type sharedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *sharedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *sharedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// failingEverywhere has an expression that fails on the marked message in each place of a Transport that has one.
func failingEverywhere(transport *v1alpha1.Transport) {
	const noKey = "string({'gold': 1}[message.body.text])"
	transport.Spec.RetryPolicies = []v1alpha1.PolicyRule{{When: "message.headers[message.body.text] == 'x'", RetryPolicyRef: v1alpha1.PolicyReference{Name: "policy"}}}
	group := &transport.Spec.Workers[0]
	group.RateLimits = []v1alpha1.RateLimit{{Name: "partner", PerSecond: intstr.FromInt32(1000), Key: new(noKey)}}
	group.CircuitBreaker = &v1alpha1.CircuitBreaker{MinimumCalls: new(int32(1)), OpenFor: v1alpha1.NewDuration(time.Second), Key: new("message.headers[message.headers.mark]")}
}

// The operator's status and events have of messages what a worker's status has.
func TestExpressions_TellNoValueOfAMessageWhereTheyFail(t *testing.T) {
	policy := testtransport.Explicit(100 * time.Millisecond)
	for i, when := range worker.Failing() {
		policy.Strategies = append(policy.Strategies, v1alpha1.Strategy{Name: fmt.Sprint("fails-", i), When: when, Action: v1alpha1.ActionDrop})
	}
	policy.Strategies = append(policy.Strategies, v1alpha1.Strategy{Name: "without-a-delay", When: "true", DelayFrom: new("duration(message.body.text)")})
	r := newRigAlone(t, newPartner(t, always(http.StatusInternalServerError)), policy, failingEverywhere)
	log := &sharedBuffer{}
	r.log = slog.NewJSONHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})
	collector := traceState(t, r, nil)
	r.publish(amqp091.Publishing{MessageId: "marked", Body: []byte(worker.MarkedBody), Headers: amqp091.Table{"mark": worker.Mark + "-header"}})
	failed := r.Take("async.failed")
	testtransport.Eventually(t, "the spans of both attempts", func() bool { return len(collector.Named("process test")) == 2 })

	told := map[string]string{"log": log.String()}
	for _, path := range []string{"/status", "/readyz", "/metrics"} {
		answer := httptest.NewRecorder()
		r.worker.Endpoints(r.registry).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
		told[path] = answer.Body.String()
	}
	for i, span := range collector.Spans() {
		told[fmt.Sprint("span ", i)] = span.String()
	}
	delete(failed.Headers, "mark") // the producer's own
	told["headers of the failed message"] = fmt.Sprint(failed.Headers)
	for where, text := range told {
		if text == "" || strings.Contains(text, worker.Mark) {
			t.Errorf("%s: %s", where, text)
		}
	}
	for where, part := range map[string]string{"log": "an expression failed", "/metrics": `redrive_expression_errors_total{policy="policy"}`, "headers of the failed message": "without-a-delay"} {
		if !strings.Contains(told[where], part) {
			t.Errorf("%s does not have %q: %s", where, part, told[where])
		}
	}
}
