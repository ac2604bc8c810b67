package worker_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

// A worker takes messages for large until it has seen eight of a queue. It had two of them at a time until then: where each takes a minute,
// all other slots were idle for four minutes after each start.
func TestWorker_SoonGivesSlowMessagesAllSlots(t *testing.T) {
	const slots = 40
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].Concurrency = new(int32(slots))
		tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(5 * time.Minute)
	})
	r.memory = 256 << 20
	p := newProgram()
	var running atomic.Int64
	done := make(chan struct{})
	p.handle = func(context.Context, handler.Request) *retry.Failure {
		running.Add(1)
		<-done
		return nil
	}
	p.started(r)
	began := time.Now()
	r.publish(numbered(2*slots, "a", "b")...)
	testtransport.Eventually(t, "all slots are used", func() bool { return running.Load() == slots })
	t.Logf("after %s", time.Since(began).Round(100*time.Millisecond))
	close(done)
	testtransport.Eventually(t, "all handled", func() bool { return r.handled() == 2*slots })
}
