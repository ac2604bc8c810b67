package worker_test

import (
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
)

// A message that came back from a lane asked the rules before its attempt and after it, out of one budget: a rule that took more than half
// of it matched at the first attempt and not at the second, and the queue's policy decided.
func TestRules_CostlyOnesChooseThePolicyAtEachAttempt(t *testing.T) {
	p := newPartner(t, always(502))
	r := newRigAlone(t, p, testtransport.Explicit(200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond), nil)
	text := strings.Repeat("a", 100)
	large := "'" + text + "'.replace('','" + text + "').replace('','" + text + "').size()"
	config := r.config
	config.Rules = []compile.Rule{{When: large + " + " + large + " + " + large + " + " + large + " > 5", Policy: "patient"}}
	config.Policies = map[string]v1alpha1.RetryPolicySpec{
		"policy":  testtransport.Explicit(),
		"patient": testtransport.Explicit(200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond),
	}
	if err := r.worker.Reload(config); err != nil {
		t.Fatal(err)
	}
	r.publish(amqp091.Publishing{MessageId: "m"})
	failed := r.Take("async.failed")
	if n := len(p.got()); n != 4 {
		t.Errorf("%d attempts, want 4: %v", n, failed.Headers["redrive-explanation"])
	}
}
