package worker_test

import (
	"net/http"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// deliveryLimit is that of a work queue: RabbitMQ dead-letters what has come back more often.
const deliveryLimit = 20

// postponement is a rig whose messages a crashed worker has left, and whose quarantine queue has no leader. No worker runs.
type postponement struct {
	*rig

	partner *partner
	node    *testbroker.Broker
}

func newPostponement(t *testing.T, messages, crashes int) *postponement {
	t.Helper()
	p := newSuspects(t)
	p.publish(numbered(messages, "tenant", "acme")...)
	for range crashes {
		p.leaveUnsettled(testtransport.Queue, messages)
	}
	p.node.StopMember(t, p.target.VHost, "test.quarantine")
	return p
}

// newSuspects is newPostponement without messages, whose quarantine queue works.
func newSuspects(t *testing.T) *postponement {
	t.Helper()
	t.Parallel()
	p := &postponement{partner: newPartner(t, always(http.StatusOK)), node: testbroker.Private(t)}
	p.rig = newRigOn(t, p.node, p.partner, testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(500 * time.Millisecond)
	})
	p.stop()
	return p
}

// ends checks that each message is handled once the quarantine queue takes messages again, in quarantine.
func (p *postponement) ends(messages int) {
	p.t.Helper()
	if calls, failed := len(p.partner.got()), p.Ready("async.failed"); calls != 0 || failed != 0 {
		p.t.Fatalf("%d calls, %d messages in the failure queue; want none before quarantine", calls, failed)
	}
	p.node.StartMember(p.t, p.target.VHost, "test.quarantine")
	p.handleQuarantine()
	handled := func() int {
		ids := map[string]bool{}
		for _, call := range p.partner.got() {
			ids[call.header.Get("Redrive-Message-Id")] = true
		}
		return len(ids)
	}
	testtransport.Eventually(p.t, "each message handled", func() bool { return handled() == messages })
	p.empty()
	if n := p.counted("redrive_messages_handled_total", "outcome", "succeeded"); n != 0 {
		p.t.Errorf("%v messages were handled among others", n)
	}
	if failed := p.Ready("async.failed"); failed != 0 {
		p.t.Errorf("%d messages failed", failed)
	}
}

// RabbitMQ takes a message back when its consumer timeout is over, and counts that as a delivery.
func TestQuarantine_WaitsForItsQueueBeyondTheDeliveryLimit(t *testing.T) {
	testtransport.Long(t)
	const messages, timeout = 5, 2 * time.Second
	p := newPostponement(t, messages, 1)
	p.node.SetEnvironment(t, "channel_tick_interval", 300)
	p.node.SetEnvironment(t, "consumer_timeout", int(timeout.Milliseconds()))
	p.config.ConsumerTimeout = *v1alpha1.NewDuration(timeout)
	p.start(nil)
	testtransport.Eventually(t, "more waits than the limit allows for", func() bool {
		return p.counted("redrive_messages_handled_total", "outcome", "requeued") > messages*deliveryLimit || p.Ready("async.failed") > 0
	})
	p.ends(messages)
}

// Each pod that ends with a message in hand counts as well, however short it had it.
func TestQuarantine_PublishesAMessageAnewThatHasComeBackOften(t *testing.T) {
	const messages = 5
	p := newPostponement(t, messages, deliveryLimit)
	p.start(nil)
	testtransport.EventuallyWithin(t, time.Minute, "copies of all", func() bool {
		return p.counted("redrive_messages_handled_total", "outcome", "requeued") == messages
	})
	p.stop()
	p.start(nil)
	p.ends(messages)
}

// A channel that has used a queue is told nothing while that has no leader, and RabbitMQ delivers what was published once it has one.
func TestQuarantine_PublishesLittleTwiceWhereItsQueueConfirmsNothing(t *testing.T) {
	testtransport.Long(t)
	const messages, inFlight, rounds = 200, 128, 4
	p := newSuspects(t)
	p.config.ConsumerTimeout = *v1alpha1.NewDuration(20 * time.Second)
	suspects := numbered(messages, "redrive-quarantine", "acme")
	for i := range suspects {
		suspects[i].Headers["redrive-quarantine"] = true
	}
	p.start(nil)
	p.Publish("async.return", testtransport.Queue, suspects[0])
	testtransport.Eventually(t, "the first in quarantine", func() bool { return p.Ready("test.quarantine") == 1 })
	p.node.StopMember(t, p.target.VHost, "test.quarantine")
	p.Publish("async.return", testtransport.Queue, suspects[1:]...)
	testtransport.Eventually(t, "each back in its queue", func() bool {
		return p.counted("redrive_messages_handled_total", "outcome", "requeued") >= rounds*(messages-1)
	})
	p.ends(messages)
	if calls := len(p.partner.got()); calls > messages+inFlight {
		t.Errorf("%d calls for %d messages", calls, messages)
	}
}

// By what RabbitMQ says nobody has had the copy in hand. It waits for no place at the handler.
func TestQuarantine_TakesACopyThatSaysSoWhileTheHandlerIsFull(t *testing.T) {
	release := make(chan struct{})
	partner := newPartner(t, func(*http.Request, int) int {
		<-release
		return http.StatusOK
	})
	defer close(release)
	r := newRig(t, partner, testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(testtransport.Patience + time.Minute)
	})
	r.publish(make([]amqp091.Publishing, r.config.Concurrency)...)
	testtransport.Eventually(t, "the handler to be full", func() bool { return len(partner.got()) == r.config.Concurrency })
	r.Publish("async.return", testtransport.Queue, amqp091.Publishing{MessageId: "m-1", Headers: amqp091.Table{"redrive-quarantine": true}})
	quarantined := r.next("test.quarantine")
	if quarantined.MessageId != "m-1" || quarantined.Headers["redrive-quarantine"] != nil {
		t.Errorf("%s is in quarantine with %v", quarantined.MessageId, quarantined.Headers)
	}
}
