package worker_test

import (
	"net/http"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
)

func rejecting() v1alpha1.RetryPolicySpec {
	policy := testtransport.Explicit()
	policy.Strategies = []v1alpha1.Strategy{{Name: "rejected", When: "true", Action: v1alpha1.ActionFail}}
	return policy
}

// failureExchange makes the exchange to which the worker gives up messages.
func (r *rig) failureExchange() {
	r.t.Helper()
	if err := r.Channel().ExchangeDeclare("async.failed", "fanout", true, false, false, false, amqp091.Table{"redrive-owner": "test/default/async"}); err != nil {
		r.t.Fatal(err)
	}
	if err := r.Channel().QueueBind("async.failed", "", "async.failed", false, nil); err != nil {
		r.t.Fatal(err)
	}
}

// held is the number of messages that have an outcome and wait for the broker to take it.
func (r *rig) held() float64 {
	r.t.Helper()
	return value(r.t, r.registry, "redrive_held_messages")
}

func TestAMessageThatIsHeldWhenItsSessionEndsIsNotPublishedTwice(t *testing.T) {
	const messages = 10
	release := make(chan struct{})
	p := newPartner(t, func(*http.Request, int) int {
		<-release
		return 422
	})
	r := newRig(t, p, rejecting(), nil)
	r.handleSuspects()
	if err := r.Channel().ExchangeDelete("async.failed", false, false); err != nil {
		t.Fatal(err)
	}
	r.publish(make([]amqp091.Publishing, messages)...)
	testtransport.Eventually(t, "all at the handler", func() bool { return len(p.got()) == messages })
	// The first one ends the publisher's session. The others wait for the next one when their own session ends too.
	r.proxy.Refuse(true)
	release <- struct{}{}
	testtransport.Eventually(t, "the publisher's end", func() bool { return r.worker.Ready() != nil })
	close(release)
	testtransport.Eventually(t, "all to be held", func() bool { return r.held() == messages })
	r.proxy.Cut()
	testtransport.Eventually(t, "the messages in their queue again", func() bool { return r.Ready(testtransport.Queue) == messages })
	r.failureExchange()
	r.proxy.Refuse(false)
	testtransport.EventuallyWithin(t, time.Minute, "all in the failure queue", func() bool { return r.Ready("async.failed") >= messages })
	r.empty()
	r.stop()
	if got := r.Ready("async.failed"); got != messages {
		t.Errorf("%d messages in the failure queue, want %d", got, messages)
	}
}

func TestAMessageWithHeadersThatCannotBeReadFailsAlone(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.publish(
		amqp091.Publishing{MessageId: "before"},
		amqp091.Publishing{MessageId: "long", Headers: amqp091.Table{"list": make([]any, 9000)}},
		amqp091.Publishing{MessageId: "after"},
	)
	testtransport.Eventually(t, "the message in the failure queue", func() bool { return r.Ready("async.failed") == 1 })
	testtransport.Eventually(t, "the others handled", func() bool { return len(p.got()) == 2 })
	r.empty()
}

func TestReloadsUnderLoadLoseAndRepeatNothing(t *testing.T) {
	const messages = 500
	progress := make(chan struct{}, 2*messages)
	p := newPartner(t, func(_ *http.Request, attempt int) int {
		progress <- struct{}{}
		if attempt < 2 {
			return 503
		}
		return 200
	})
	r := newRig(t, p, testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond), nil)
	r.publish(make([]amqp091.Publishing, messages)...)
	urls := []string{p.URL, p.URL + "/other"}
	for i := range messages { // with every attempt of the first half
		<-progress
		config := r.config
		config.Concurrency = 1 + i%7
		config.Handler = v1alpha1.Handler{HTTP: &v1alpha1.HTTPHandler{URL: urls[i%len(urls)]}}
		elsewhere := config // the queue is another worker's, for a moment
		elsewhere.Queues = []compile.Queue{{Name: "other", Policy: "policy"}}
		for _, next := range []compile.Config{elsewhere, config} {
			if err := r.worker.Reload(next); err != nil {
				t.Fatal(err)
			}
		}
	}
	testtransport.Eventually(t, "all handled", func() bool { return len(p.got()) >= 2*messages })
	r.empty()
	r.stop()
	if left := r.Ready("async.failed"); left != 0 || len(p.got()) != 2*messages {
		t.Errorf("%d attempts, want %d; %d failed", len(p.got()), 2*messages, left)
	}
}
