package worker_test

import (
	"context"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

// framed is a program that writes each message anew, into ten times as much.
type framed struct{ *program }

func (framed) FrameSize(body []byte) int { return 10 * len(body) }

// A body of 16 MiB can take 96 MiB as a frame, which nothing counted.
func TestWhatAHandlerWritesAMessageIntoCountsInItsMemory(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), nil)
	r.stop()
	r.memory = 8 << 20
	p := newProgram()
	var most float64
	p.handle = func(context.Context, handler.Request) *retry.Failure {
		most = value(t, r.registry, "redrive_loan_bytes")
		return nil
	}
	r.handlers = func(v1alpha1.Handler, int) (handler.Handler, error) { return framed{p}, nil }
	r.start(nil)
	r.publish(amqp091.Publishing{MessageId: "large", Body: make([]byte, 100_000)})
	testtransport.Eventually(t, "it is handled", func() bool { return outcomes(r, "succeeded") == 1 })
	if most < 1_100_000 {
		t.Errorf("%v bytes were on loan, want the message and its frame", most)
	}
	r.publish(amqp091.Publishing{MessageId: "too large", Body: make([]byte, 600_000), Headers: amqp091.Table{"a": "b"}})
	if failed := r.Take("async.failed"); failed.MessageId != "too large" || len(failed.Body) != 600_000 || failed.Headers["a"] != "b" {
		t.Errorf("%s failed with %d bytes and %v", failed.MessageId, len(failed.Body), failed.Headers)
	}
	r.empty()
	if calls := p.called(); len(calls) != 1 || outcomes(r, "refused") != 1 {
		t.Errorf("calls %v, %v refused", calls, outcomes(r, "refused"))
	}
}
