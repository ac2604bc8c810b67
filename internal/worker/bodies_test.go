package worker_test

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

// costlyBody is a JSON body of nearly this size that takes as long and as much memory to decode as any.
func costlyBody(size int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"tenant":"large","a":[{"":0}`)
	for b.Len() < size-20 {
		b.WriteString(`,{"":0}`)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

// publishSteadily publishes a message again and again, on a connection of its own, until the test ends.
func publishSteadily(t *testing.T, r *rig, queue string, every time.Duration, m amqp091.Publishing) {
	t.Helper()
	own := testtransport.Connect(t, r.url)
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				_ = own.Channel().Publish("async", queue, false, false, m)
			}
		}
	})
	t.Cleanup(func() { close(done); running.Wait() })
}

// One queue's bodies take all the memory that expressions have for large ones. The keys of another queue's small bodies were read at a 17th of
// their rate meanwhile.
func TestLargeBodiesThatKeysReadKeepNoSmallOnesWaiting(t *testing.T) {
	testtransport.Long(t)
	key := "message.body.tenant"
	r := newRigAlone(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		withQueues(nil, "free")(tr)
		tr.Spec.Workers[0].RateLimits = []v1alpha1.RateLimit{{Name: "tenants", PerSecond: intstr.FromInt32(10_000), Key: &key}}
	})
	r.memory = 256 << 20
	p := newProgram()
	var small, large atomic.Int64
	p.handle = func(_ context.Context, request handler.Request) *retry.Failure {
		if request.Queue == "free" {
			small.Add(1)
		} else {
			large.Add(1)
		}
		return nil
	}
	p.started(r)
	publishSteadily(t, r, "free", 5*time.Millisecond, amqp091.Publishing{Body: []byte(`{"tenant":"small"}`)})
	testtransport.Eventually(t, "small messages", func() bool { return small.Load() > 0 })
	rate := func() float64 {
		before, began := small.Load(), time.Now()
		time.Sleep(8 * time.Second)
		return float64(small.Load()-before) / time.Since(began).Seconds()
	}
	alone := rate()
	body := costlyBody(2<<20 - 100)
	for range 120 {
		r.Publish("async", testtransport.Queue, amqp091.Publishing{Body: body})
	}
	before := large.Load()
	beside := rate()
	t.Logf("small messages: %.1f/s alone, %.1f/s beside large ones (%.2f), of which %d were handled", alone, beside, beside/alone, large.Load()-before)
	if r.Ready(testtransport.Queue) == 0 {
		t.Error("there were too few large messages")
	}
	// It was a tenth before they had room of their own. The decoding takes a processor, so that not all is left where others use the machine too.
	if beside < alone/3 {
		t.Errorf("small messages: %.1f/s beside large ones, and %.1f/s alone", beside, alone)
	}
}
