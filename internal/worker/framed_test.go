package worker_test

import (
	"context"
	"strings"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

// framed is a program that writes each message anew, into ten times as much.
type framed struct{ *program }

func (framed) FrameSize(m *message.Message) int {
	return 10 * (len(m.Body) + message.HeaderSize(m.Headers))
}

// A body of 16 MiB can take 96 MiB as a frame, which nothing counted, and headers of 128 KiB take 768.
func TestFrameSize_CountsInTheMemory(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), nil)
	r.stop()
	r.memory = 8 << 20
	p := newProgram()
	var most float64
	p.handle = func(context.Context, handler.Request) *retry.Failure {
		most = value(t, r.registry, "redrive_inflight_bytes")
		return nil
	}
	r.handlers = func(v1alpha1.Handler, int) (handler.Handler, error) { return framed{p}, nil }
	r.start(nil)
	r.publish(amqp091.Publishing{MessageId: "large", Body: make([]byte, 100_000)})
	testtransport.Eventually(t, "it is handled", func() bool { return outcomes(r, "succeeded") == 1 })
	if most < 1_100_000 {
		t.Errorf("%v bytes were on loan, want the message and its frame", most)
	}
	r.publish(amqp091.Publishing{MessageId: "long header", Headers: amqp091.Table{"a": strings.Repeat("a", 100_000)}})
	testtransport.Eventually(t, "it is handled", func() bool { return outcomes(r, "succeeded") == 2 })
	if most < 1_200_000 {
		t.Errorf("%v bytes were on loan, want twice the headers and the frame", most)
	}
	r.publish(amqp091.Publishing{MessageId: "too large", Body: make([]byte, 600_000), Headers: amqp091.Table{"a": "b"}})
	if failed := r.Take("async.failed"); failed.MessageId != "too large" || len(failed.Body) != 600_000 || failed.Headers["a"] != "b" {
		t.Errorf("%s failed with %d bytes and %v", failed.MessageId, len(failed.Body), failed.Headers)
	}
	r.empty()
	if calls := p.called(); len(calls) != 2 || outcomes(r, "rejected") != 1 {
		t.Errorf("calls %v, %v refused", calls, outcomes(r, "rejected"))
	}
}

// What waited at the time of a reload went to the new handler with frames that nothing counted, however large.
func TestFrameSize_IsThatOfTheHandlerThatGetsTheMessage(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), withQueues(nil, "q0"))
	r.memory, r.config.Concurrency = 8<<20, 1
	before, after, end := newProgram(), newProgram(), make(chan struct{})
	before.handle = func(context.Context, handler.Request) *retry.Failure {
		<-end
		return nil
	}
	var bytes []float64
	after.handle = func(context.Context, handler.Request) *retry.Failure {
		bytes = append(bytes, value(t, r.registry, "redrive_inflight_bytes"))
		return nil
	}
	before.started(r)
	r.publish(amqp091.Publishing{MessageId: "first"})
	testtransport.Eventually(t, "the first one at the handler", func() bool { return len(before.called()) == 1 })
	r.Publish("async", "q0", amqp091.Publishing{MessageId: "too large", Body: make([]byte, 600_000)})
	testtransport.Eventually(t, "one that waits", func() bool { return value(t, r.registry, "redrive_inflight_bytes") > 600_000 })
	next := r.config
	next.Handler.HTTP = &v1alpha1.HTTPHandler{URL: "http://127.0.0.1:1/next"}
	r.handlers = func(v1alpha1.Handler, int) (handler.Handler, error) { return framed{after}, nil }
	if err := r.worker.Reload(next); err != nil {
		t.Fatal(err)
	}
	close(end)
	if failed := r.Take("async.failed"); failed.MessageId != "too large" {
		t.Errorf("%s failed", failed.MessageId)
	}
	r.publish(amqp091.Publishing{MessageId: "large", Body: make([]byte, 100_000)})
	testtransport.Eventually(t, "it is handled", func() bool { return outcomes(r, "succeeded") == 2 })
	r.empty()
	if calls := after.called(); len(calls) != 1 || len(bytes) != 1 || bytes[0] < 1_100_000 || outcomes(r, "rejected") != 1 {
		t.Errorf("calls %v with %v bytes on loan, %v refused", calls, bytes, outcomes(r, "rejected"))
	}
	testtransport.Eventually(t, "nothing on loan", func() bool { return value(t, r.registry, "redrive_inflight_bytes") == 0 })
}
