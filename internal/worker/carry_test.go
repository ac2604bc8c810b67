package worker_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

// refusals answer each attempt with a failure and what it carries, in their order; carried are what the attempts got.
type refusals struct {
	mu      sync.Mutex
	answers []*retry.Failure
	carried []string
}

func (r *refusals) handle(_ context.Context, request handler.Request) *retry.Failure {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.carried = append(r.carried, request.Carry)
	answer := r.answers[0]
	r.answers = r.answers[1:]
	return answer
}

func (r *refusals) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.carried)
}

func carrying(text string) *retry.Failure {
	return &retry.Failure{Source: retry.SourceHandler, Class: "Half", Carry: &text}
}

func TestWorker_CarriesWhatAFailureAsksForToTheNextAttempt(t *testing.T) {
	t.Parallel()
	crash := &retry.Failure{Source: retry.SourceCrash, Class: "SIGKILL"}
	queues := map[string]struct {
		change func(*v1alpha1.Transport)
		policy v1alpha1.RetryPolicySpec
	}{
		"through a lane":            {nil, testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond)},
		"at once":                   {nil, v1alpha1.RetryPolicySpec{Immediate: new(int32(4)), MaxRetries: new(int32(4))}},
		"in a queue that is strict": {strict(v1alpha1.OnFailureContinue), testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond)},
	}
	for name, c := range queues {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, newPartner(t, always(200)), c.policy, c.change)
			told := &refusals{answers: []*retry.Failure{carrying("first"), crash, carrying("second"), carrying(""), nil}}
			p := newProgram()
			p.handle = told.handle
			p.started(r)
			r.publish(letters("a")...)
			testtransport.Eventually(t, "success", func() bool { return outcomes(r, "succeeded") == 1 })
			if want := []string{"", "first", "first", "second", ""}; !slices.Equal(told.got(), want) {
				t.Errorf("carried %q, want %q", told.got(), want)
			}
			p.check(t)
		})
	}
}

func TestWorker_AFailedMessageKeepsWhatItCarries(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(), nil)
	told := &refusals{answers: []*retry.Failure{carrying("half done"), nil}}
	p := newProgram()
	p.handle = told.handle
	p.started(r)
	r.publish(letters("a")...)
	failed := r.Take("async.failed")
	if carried := text(t, failed.Headers, "redrive-carry"); carried != "half done" {
		t.Errorf("it carries %q", carried)
	}
	r.Publish("async.return", testtransport.Queue, amqp091.Publishing{MessageId: "a", Headers: failed.Headers})
	testtransport.Eventually(t, "success", func() bool { return outcomes(r, "succeeded") == 1 })
	if want := []string{"", "half done"}; !slices.Equal(told.got(), want) {
		t.Errorf("carried %q, want %q", told.got(), want)
	}
	p.check(t)
}

func TestWorker_DropsWhatAProducerMakesAMessageCarry(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(100*time.Millisecond), nil)
	released := carrying("its own")
	released.Advice, released.RetryAfter = retry.AdviseRelease, new(100*time.Millisecond)
	told := &refusals{answers: []*retry.Failure{released, nil}}
	p := newProgram()
	p.handle = told.handle
	p.started(r)
	message := letters("a")[0]
	message.Headers = amqp091.Table{"redrive-carry": "forged"}
	r.publish(message)
	testtransport.Eventually(t, "success", func() bool { return outcomes(r, "succeeded") == 1 })
	// The second attempt is the first that counts, for it was released: what that carries is its handler's.
	if want := []string{"", "its own"}; !slices.Equal(told.got(), want) {
		t.Errorf("carried %q, want %q", told.got(), want)
	}
	if got := value(t, r.registry, "redrive_invalid_headers_total"); got != 1 {
		t.Errorf("redrive_invalid_headers_total is %v, want 1", got)
	}
	p.check(t)
}
