package worker_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
)

// A queue that the spec does not have any more is consumed with its own settings until it is gone, and the worker is ready with it
// and without it.
func TestWorker_EmptiesAQueueThatLeaves(t *testing.T) {
	p := newPartner(t, always(http.StatusOK))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	const old = standin
	if _, err := r.Channel().QueueDeclare(old, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	last := r.config
	last.Queues = append(slices.Clip(last.Queues), last.Queues[0])
	last.Queues[len(last.Queues)-1].Name, last.Queues[len(last.Queues)-1].Quarantine = old, ""
	leaving := r.config.WithLeaving(last, []string{old})
	if err := r.worker.Reload(leaving); err != nil {
		t.Fatal(err)
	}
	r.Publish("", old, amqp091.Publishing{MessageId: "m-1", Body: []byte("x")})
	testtransport.Eventually(t, "its message to be handled", func() bool { return r.handled() == 1 })
	if got := p.got()[0].header.Get("Redrive-Queue"); got != old {
		t.Errorf("the handler is told that it came from %q", got)
	}
	if _, err := r.Channel().QueueDelete(old, false, false, false); err != nil {
		t.Fatal(err)
	}
	r.Publish("", testtransport.Queue, amqp091.Publishing{MessageId: "m-2", Body: []byte("x")})
	testtransport.Eventually(t, "the other queue to be handled", func() bool { return r.handled() == 2 })
	testtransport.Eventually(t, "the worker to be ready", func() bool { return r.worker.Ready() == nil })
	if err := r.worker.Reload(r.config.WithLeaving(leaving, nil)); err != nil {
		t.Fatal(err)
	}
}

// What waited for a place at the handler, or came until the consumer was cancelled, was handled here, and decided on by the policy of another queue.
func TestReload_GivesBackWhatHasNotBegunOfAQueueThatAnotherGroupHasNow(t *testing.T) {
	release := make(chan struct{})
	p := newPartner(t, func(*http.Request, int) int {
		<-release
		return http.StatusOK
	})
	r := newRig(t, p, testtransport.Explicit(time.Second), withQueues(nil, "free"))
	const messages = 15 // ten are at the handler, the others wait
	r.publish(make([]amqp091.Publishing, messages)...)
	testtransport.Eventually(t, "the handler to be full", func() bool { return len(p.got()) == r.config.Concurrency })
	testtransport.Eventually(t, "the rest to be fetched", func() bool { return r.Ready(testtransport.Queue) == 0 })
	next := r.config
	next.Queues = slices.DeleteFunc(slices.Clone(next.Queues), func(q compile.Queue) bool { return q.Name == testtransport.Queue })
	if err := r.worker.Reload(next); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "what was not begun to come back", func() bool {
		return r.Ready(testtransport.Queue) == messages-r.config.Concurrency
	})
	close(release)
	testtransport.Eventually(t, "what was begun to end", func() bool { return r.handled() == r.config.Concurrency })
	for _, d := range r.TakeAll(testtransport.Queue) {
		if d.Redelivered || d.Headers["redrive-attempts"] != nil {
			t.Errorf("a message has come back with %v, redelivered %v", d.Headers, d.Redelivered)
		}
	}
	if calls, failed := len(p.got()), r.Ready("async.failed"); calls != r.config.Concurrency || failed != 0 {
		t.Errorf("%d calls, and %d messages failed", calls, failed)
	}
}
