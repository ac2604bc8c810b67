package worker_test

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
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
	return value(r.t, r.registry, "redrive_settlements_pending")
}

func TestSettle_PublishesNoHeldMessageTwiceWhenItsSessionEnds(t *testing.T) {
	const messages = 10
	release := make(chan struct{})
	p := newPartner(t, func(*http.Request, int) int {
		<-release
		return 422
	})
	r := newRig(t, p, rejecting(), nil)
	r.handleQuarantine()
	if err := r.Channel().ExchangeDelete("async.failed", false, false); err != nil {
		t.Fatal(err)
	}
	r.publish(make([]amqp091.Publishing, messages)...)
	testtransport.Eventually(t, "all at the handler", func() bool { return len(p.got()) == messages })
	// The first one finds that the exchange is missing. The others wait for it when the session of their originals ends.
	r.proxy.Refuse(true)
	release <- struct{}{}
	testtransport.Eventually(t, "the refusal", func() bool { return len(r.worker.Status().Troubles) == 1 })
	close(release)
	testtransport.Eventually(t, "all to be held", func() bool { return r.held() == messages })
	r.proxy.Cut()
	testtransport.Eventually(t, "the messages in their queue again", func() bool { return r.Ready(testtransport.Queue) == messages })
	r.failureExchange()
	r.proxy.Refuse(false)
	testtransport.Eventually(t, "all in the failure queue", func() bool { return r.Ready("async.failed") >= messages })
	r.empty()
	r.stop()
	if got := r.Ready("async.failed"); got != messages {
		t.Errorf("%d messages in the failure queue, want %d", got, messages)
	}
}

func TestUnreadable_HeadersFailTheirMessageAlone(t *testing.T) {
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

// dyingTo makes a queue of which every message is dead-lettered at once, with all its keys, to another queue.
func (r *rig) dyingTo(name, next string) {
	r.t.Helper()
	exchange := name + ".dead"
	if err := r.Channel().ExchangeDeclare(exchange, "fanout", true, false, false, false, nil); err != nil {
		r.t.Fatal(err)
	}
	if err := r.Channel().QueueBind(next, "", exchange, false, nil); err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.Channel().QueueDeclare(name, true, false, false, false, amqp091.Table{"x-message-ttl": int32(0), "x-dead-letter-exchange": exchange}); err != nil {
		r.t.Fatal(err)
	}
}

func TestUnreadable_HeadersBeyondEveryFrameDisturbNoOther(t *testing.T) {
	const innocents = 40
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), withQueues(nil, "free"))
	r.dyingTo("second", testtransport.Queue)
	r.dyingTo("first", "second")
	var keys []any
	for range 480 {
		keys = append(keys, strings.Repeat("k", 245))
	}
	r.Publish("", "first", amqp091.Publishing{MessageId: "poison", Headers: amqp091.Table{"CC": keys}})
	for i := range innocents {
		r.Publish("async", "free", amqp091.Publishing{MessageId: strconv.Itoa(i)})
	}
	testtransport.Eventually(t, "the innocents handled", func() bool { return len(p.got()) >= innocents })
	testtransport.Eventually(t, "the poison in the failure queue", func() bool { return r.Ready("async.failed") == 1 })
	r.stop()
	if sessions := value(t, r.registry, "redrive_connections_total"); sessions != 1 {
		t.Errorf("%v sessions of the consumers, want one", sessions)
	}
	if copies := r.Ready("free.quarantine"); len(p.got()) != innocents || copies != 0 {
		t.Errorf("%d attempts, and %d copies of %d messages", len(p.got()), copies, innocents)
	}
}

func TestHeaders_AreBoundedByTheBrokersFrames(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	own := testbroker.Private(t)
	if err := own.Control(t.Context(), "eval", "application:set_env(rabbit, frame_max, 65536)."); err != nil {
		t.Fatal(err)
	}
	p := newPartner(t, always(502))
	r := newRigOn(t, own, p, testtransport.Explicit(100*time.Millisecond), nil)
	for id, size := range map[string]int{"fits": 59_000, "does not fit with what a lane adds": 64_000} {
		r.publish(amqp091.Publishing{MessageId: id, Headers: amqp091.Table{"h": strings.Repeat("x", size)}})
	}
	testtransport.Eventually(t, "both in the failure queue", func() bool { return r.Ready("async.failed") == 2 })
	attempts := map[string]int{}
	for _, request := range p.got() {
		attempts[request.header.Get("Redrive-Message-Id")]++
	}
	if attempts["fits"] != 2 || attempts["does not fit with what a lane adds"] != 1 {
		t.Errorf("attempts %v, want a retry of the one that fits", attempts)
	}
	if sessions := value(t, r.registry, "redrive_connections_total"); sessions != 1 {
		t.Errorf("%v sessions of the consumers, want one", sessions)
	}
}

func TestReload_LosesAndRepeatsNothingUnderLoad(t *testing.T) {
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

// One of 128 MiB ended a worker of 256 MiB while it was received, and each one after it.
func TestMemory_RefusesAMessageLargerThanMayBeOnLoan(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.stop()
	r.memory = 4 << 20
	r.start(nil)
	r.publish(
		amqp091.Publishing{MessageId: "before", Body: make([]byte, 1000)},
		amqp091.Publishing{MessageId: "large", Body: make([]byte, 2<<20), Headers: amqp091.Table{"a": "b"}},
		amqp091.Publishing{MessageId: "after", Body: make([]byte, 1000)},
	)
	testtransport.Eventually(t, "the others handled", func() bool { return len(p.got()) == 2 })
	if failed := r.Take("async.failed"); failed.MessageId != "large" || len(failed.Body) != 2<<20 || failed.Headers["a"] != "b" {
		t.Errorf("%s failed with %d bytes and %v", failed.MessageId, len(failed.Body), failed.Headers)
	}
	r.empty()
	if sessions := value(t, r.registry, "redrive_connections_total"); sessions != 1 || outcomes(r, "rejected") != 1 {
		t.Errorf("%v sessions, want one; %v messages refused", sessions, outcomes(r, "rejected"))
	}
}
