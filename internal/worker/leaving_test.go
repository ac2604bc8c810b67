package worker_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/testtransport"
)

// A queue that the spec does not have any more is consumed with its own settings until it is gone, and the worker is ready with it
// and without it.
func TestAWorkerEmptiesAQueueThatLeaves(t *testing.T) {
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
