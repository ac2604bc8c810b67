package worker_test

import (
	"context"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/worker"
)

// redrive run gave each of its workers a quarter of the memory: with eight of them it was killed.
func TestMemory_IsSharedByTheWorkersOfOneProcess(t *testing.T) {
	const memory, size, workers, messages, small = 64 << 20, 2 << 20, 3, 8, 300
	t.Parallel()
	shared := worker.NewMemory(memory)
	atHandler, end := make(chan struct{}, workers*messages), make(chan struct{})
	rigs := make([]*rig, workers)
	for i := range rigs {
		rigs[i] = newRigAlone(t, newPartner(t, always(200)), testtransport.Explicit(), nil)
		rigs[i].shared = shared
		p := newProgram()
		p.handle = func(_ context.Context, request handler.Request) *retry.Failure {
			if len(request.Body) < size {
				return nil
			}
			atHandler <- struct{}{}
			<-end
			return nil
		}
		p.started(rigs[i])
	}
	for _, r := range rigs { // so that the prefetches do not hold back what comes then
		r.publish(numbered(small, "a", "b")...)
		testtransport.Eventually(t, "the small ones", func() bool { return r.handled() == small })
	}
	for _, r := range rigs {
		for range messages {
			r.publish(amqp091.Publishing{Body: make([]byte, size)})
		}
	}
	most := memory / 4 / size
	testtransport.Eventually(t, "the memory is used", func() bool { return len(atHandler) >= most-1 })
	time.Sleep(2 * time.Second) // in which more would come
	if n := len(atHandler); n > most {
		t.Errorf("%d messages are on loan, and there is memory for %d", n, most)
	}
	close(end)
	for _, r := range rigs {
		testtransport.Eventually(t, "all handled", func() bool { return r.handled() == small+messages })
	}
}
