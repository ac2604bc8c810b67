package controllers_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testtransport"
)

// The poll would come in an hour. Messages in a lane of which the exchange is gone expire, and stay; when the management API answers again
// after it had not, the exchange is made again, and the lane touched.
func TestTransport_TouchesAStalledLaneWhenTheBrokerAnswersAgain(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{poll: time.Hour})
	w.create(w.policy("policy", time.Second))
	transport := w.transport()
	transport.Spec.Workers[0].Replicas = new(int32(0)) // it would look more often while workers come up
	w.create(transport)
	w.awaitReady(transport)
	seen, since := int64(0), time.Now()
	testtransport.Eventually(t, "nobody to look at the broker", func() bool {
		if reads := w.proxy.reads.Load(); reads != seen {
			seen, since = reads, time.Now()
		}
		// Longer than two looks after a restart are apart: on a loaded machine a question that had no answer in time counts as one.
		return time.Since(since) > 20*time.Second
	})
	must(t, w.amqp.Channel().ExchangeDelete("async.return", false, false))
	w.amqp.Publish("async.fallback", testtransport.Queue, amqp091.Publishing{Headers: amqp091.Table{message.HeaderLane: "1s"}})
	testtransport.Eventually(t, "the message to be expired", func() bool {
		queue, err := w.broker.Queue(t.Context(), "async.fallback.1s")
		return err == nil && queue.MessagesDLX == 1
	})
	writes := int(w.proxy.writes.Load())
	t.Cleanup(func() {
		if t.Failed() {
			lane, err := w.broker.Queue(context.Background(), "async.fallback.1s")
			t.Logf("the lane has %d expired messages (%v); written were %v", lane.MessagesDLX, err, w.proxy.since(writes))
		}
	})
	if reads := w.proxy.reads.Load(); reads != seen {
		t.Fatalf("it has looked %d times already, so this shows nothing", reads-seen)
	}
	w.proxy.down.Store(true)
	testtransport.Eventually(t, "somebody to ask", func() bool { return w.proxy.refused.Load() > 0 })
	w.proxy.down.Store(false)
	testtransport.Eventually(t, "the policy of the lanes to be changed", func() bool {
		return slices.ContainsFunc(w.proxy.since(writes), func(write string) bool {
			return strings.HasPrefix(write, "PUT /api/policies/") && strings.HasSuffix(write, "redrive.async:lanes")
		})
	})
	testtransport.Eventually(t, "the message to come back", func() bool { return w.amqp.Ready(testtransport.Queue) == 1 })
}
