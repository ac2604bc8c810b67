package worker_test

import (
	"net/http"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
)

const standin = "test.migrating"

// withStandin makes a stand-in for the work queue, and lets the worker consume the two as it is told.
func (r *rig) withStandin(reads compile.Reading) {
	r.t.Helper()
	if _, err := r.Channel().QueueDeclare(standin, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
		r.t.Fatal(err)
	}
	r.read(reads)
}

func (r *rig) read(reads compile.Reading) {
	r.t.Helper()
	r.config = r.config.WithStandIns(map[string]compile.Standin{testtransport.Queue: {Queue: standin, Reads: reads}})
	if err := r.worker.Reload(r.config); err != nil {
		r.t.Fatal(err)
	}
}

func TestStandin_MessagesBelongToTheWorkQueue(t *testing.T) {
	p := newPartner(t, func(_ *http.Request, attempt int) int {
		if attempt == 1 {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	})
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.withStandin(compile.ReadsBoth)
	r.Publish("", standin, amqp091.Publishing{MessageId: "m-1", Body: []byte("x")})
	testtransport.Eventually(t, "the retry", func() bool { return len(p.got()) == 2 && r.handled() == 1 })
	first, second := p.got()[0].header, p.got()[1].header
	if first.Get("Redrive-Queue") != testtransport.Queue || first.Get("Idempotency-Key") != second.Get("Idempotency-Key") {
		t.Errorf("the first attempt came with %v, the second with %v", first, second)
	}
	if n := r.counted("redrive_messages_handled_total", "queue", standin); n != 0 {
		t.Errorf("%v messages are counted for the stand-in", n)
	}
}

func TestStandin_LeavesUnsettledMessagesToTheQuarantine(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.stop()
	if _, err := r.Channel().QueueDeclare(standin, true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
		t.Fatal(err)
	}
	r.Publish("", standin, amqp091.Publishing{MessageId: "m-1", Body: []byte("x")})
	r.leaveUnsettled(standin, 1)
	r.config = r.config.WithStandIns(map[string]compile.Standin{testtransport.Queue: {Queue: standin}})
	r.start(nil)
	if quarantined := r.next("test.quarantine"); quarantined.MessageId != "m-1" {
		t.Errorf("the quarantined message is %+v", quarantined)
	}
}

// A worker that stops gives back what it has not begun, by the name of the work queue: that leads to whichever of the two is bound.
func TestDrain_GivesMessagesOfAStandinBackToTheWorkQueue(t *testing.T) {
	release := make(chan struct{})
	p := newPartner(t, func(*http.Request, int) int {
		<-release
		return http.StatusOK
	})
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.withStandin(compile.ReadsStandin)
	const messages = 15 // ten are at the handler, the others wait
	r.Publish("", standin, make([]amqp091.Publishing, messages)...)
	testtransport.Eventually(t, "the handler to be full", func() bool { return len(p.got()) == r.config.Concurrency })
	testtransport.Eventually(t, "the rest to be fetched", func() bool { return r.Ready(standin) == 0 })
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		r.stop()
	}()
	testtransport.Eventually(t, "what was not begun to come back", func() bool {
		return r.Ready(testtransport.Queue) == messages-r.config.Concurrency
	})
	close(release)
	<-stopped
	if failed := r.Ready("async.failed"); failed != 0 {
		t.Errorf("%d messages are in the failure queue", failed)
	}
}

func TestStandin_KeepsItsQueueUnconsumedUntilItIsGone(t *testing.T) {
	p := newPartner(t, always(200))
	r := newRig(t, p, testtransport.Explicit(time.Second), nil)
	r.withStandin(compile.ReadsStandin)
	testtransport.Eventually(t, "the consumer of the queue to be gone", func() bool { return r.consumers(testtransport.Queue) == 0 })
	r.publish(amqp091.Publishing{MessageId: "later"})
	r.Publish("", standin, amqp091.Publishing{MessageId: "first"})
	testtransport.Eventually(t, "the message of the stand-in", func() bool { return r.handled() == 1 })
	if r.Ready(testtransport.Queue) != 1 || r.worker.Ready() != nil {
		t.Errorf("%d messages wait in the queue, and the worker says %v", r.Ready(testtransport.Queue), r.worker.Ready())
	}
	if _, err := r.Channel().QueueDelete(standin, false, false, false); err != nil {
		t.Fatal(err)
	}
	if err := r.worker.Ready(); err != nil {
		t.Errorf("without a stand-in it is not ready: %v", err)
	}
	r.config = r.config.WithStandIns(nil)
	if err := r.worker.Reload(r.config); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "the message of the queue", func() bool { return r.handled() == 2 })
}

func (r *rig) consumers(queue string) int {
	r.t.Helper()
	state, err := r.Channel().QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return state.Consumers
}
