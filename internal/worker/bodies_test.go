package worker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
	"k8s.io/apimachinery/pkg/util/intstr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
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

// largestCostly is about the largest costlyBody that is decoded where bodies may have so much room: it counts as almost twice its size.
func largestCostly(room int) int { return room * 11 / 20 }

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

// Keys, rules and the policy of one message decoded its body anew each, so that one body of a megabyte took a processor for seconds.
func TestBodies_AreDecodedOnceBeforeTheHandlerAndOnceAfter(t *testing.T) {
	r := newRigAlone(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), nil)
	const limit = 2 << 20
	body := costlyBody(largestCostly(limit))
	allocated := func(do func()) uint64 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		do()
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	once := allocated(func() {
		var value any
		if err := json.Unmarshal(body, &value); err != nil {
			t.Fatal(err)
		}
	})
	r.memory = 128 * limit
	p := newProgram()
	p.handle = func(context.Context, handler.Request) *retry.Failure {
		return &retry.Failure{Source: retry.SourceHandler, Status: 500}
	}
	key := "message.body.tenant"
	r.config.RateLimits = []compile.RateLimit{{Name: "a", PerSecond: 1000, Burst: 1000, Key: key}, {Name: "b", PerSecond: 1000, Burst: 1000, Key: key + " + 'b'"}}
	r.config.CircuitBreaker = &compile.CircuitBreaker{FailurePercent: 100, MinimumCalls: 100, Window: *v1alpha1.NewDuration(time.Minute), OpenFor: *v1alpha1.NewDuration(time.Second), Key: key}
	r.config.Rules = []compile.Rule{{When: "message.body.tenant == 'other'", Policy: r.config.Queues[0].Policy}}
	for name, policy := range r.config.Policies {
		policy.MaxRetries = new(int32(0))
		policy.Strategies = []v1alpha1.Strategy{{Name: "s", When: "message.body.tenant == 'other'", Action: v1alpha1.ActionDrop}}
		r.config.Policies[name] = policy
	}
	p.started(r)
	all := allocated(func() {
		r.publish(amqp091.Publishing{MessageId: "1", Body: body})
		r.Take("async.failed")
	})
	t.Logf("%d bytes were allocated, and %d for decoding it once", all, once)
	if all > 7*once/2 {
		t.Errorf("%d bytes were allocated, want about twice the %d of decoding it once", all, once)
	}
}

// Who waits for the handler keeps no room that others need to have their bodies decoded.
func TestBodies_AreNotKeptDecodedWhileTheHandlerRuns(t *testing.T) {
	key := "message.body.tenant"
	queues := []string{testtransport.Queue, "q0"} // one of these bodies has room at a time
	r := newRigAlone(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		withQueues(nil, queues[1:]...)(tr)
		tr.Spec.Workers[0].RateLimits = []v1alpha1.RateLimit{{Name: "tenants", PerSecond: intstr.FromInt32(10_000), Key: &key}}
	})
	r.memory = 256 << 20
	p, end := newProgram(), make(chan struct{})
	var had atomic.Int64
	p.handle = func(ctx context.Context, _ handler.Request) *retry.Failure {
		had.Add(1)
		select {
		case <-end:
		case <-ctx.Done():
		}
		return nil
	}
	p.started(r)
	for _, queue := range queues {
		r.Publish("async", queue, amqp091.Publishing{Body: costlyBody(largestCostly(2 << 20))})
	}
	testtransport.Eventually(t, "all large messages at the handler", func() bool { return int(had.Load()) == len(queues) })
	close(end)
}

// One queue's bodies take all the memory that expressions have for large ones. The keys of another queue's small bodies were read at a 17th of
// their rate meanwhile.
func TestBodies_LargeOnesThatKeysReadKeepNoSmallOnesWaiting(t *testing.T) {
	testtransport.Long(t)
	smallBesideCostly(t, 1, "message.body.tenant", amqp091.Publishing{Body: costlyBody(largestCostly(2 << 20))}, 40*time.Millisecond)
}

// Each queue has its turn, so that whoever has many of them had as many turns.
func TestBodies_ManyCostlyQueuesKeepNoSmallOnesWaiting(t *testing.T) {
	testtransport.Long(t)
	t.Run("large bodies", func(t *testing.T) {
		smallBesideCostly(t, 8, "message.body.tenant", amqp091.Publishing{Body: costlyBody(largestCostly(2 << 20))}, 250*time.Millisecond)
	})
	t.Run("expressions", func(t *testing.T) {
		list := "[" + strings.Repeat("0,", 600) + "0]"
		smallBesideCostly(t, 8, "message.body.a.all(x, message.body.a.all(y, y != 1)) ? message.body.tenant : ''",
			amqp091.Publishing{Body: []byte(`{"tenant":"large","a":` + list + `}`)}, 20*time.Millisecond)
	})
}

// smallBesideCostly compares the rate of small messages with that beside costly ones, of which each of so many queues gets one at a time, where a
// key reads the bodies of all.
func smallBesideCostly(t *testing.T, queues int, key string, costly amqp091.Publishing, every time.Duration) {
	t.Helper()
	var names []string
	for i := range queues {
		names = append(names, fmt.Sprintf("q%d", i))
	}
	r := newRigAlone(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		withQueues(nil, append([]string{"free"}, names...)...)(tr)
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
	publishSteadily(t, r, "free", 5*time.Millisecond, amqp091.Publishing{Body: []byte(`{"tenant":"small","a":[]}`)})
	testtransport.Eventually(t, "small messages", func() bool { return small.Load() > 0 })
	rate := func() float64 {
		before, began := small.Load(), time.Now()
		time.Sleep(8 * time.Second)
		return float64(small.Load()-before) / time.Since(began).Seconds()
	}
	alone := rate()
	for _, name := range names {
		publishSteadily(t, r, name, every, costly)
	}
	before := large.Load()
	testtransport.Eventually(t, "costly messages to wait", func() bool {
		for _, name := range names {
			if r.Ready(name) == 0 {
				return false
			}
		}
		return true
	})
	beside := rate()
	t.Logf("small messages: %.1f/s alone, %.1f/s beside costly ones (%.2f), of which %d were handled", alone, beside, beside/alone, large.Load()-before)
	for _, name := range names {
		if r.Ready(name) == 0 {
			t.Error("there were too few costly messages: this shows nothing")
		}
	}
	// It was a tenth before they had room of their own. The decoding takes a processor, so that not all is left where others use the machine too.
	if beside < alone/3 {
		t.Errorf("small messages: %.1f/s beside costly ones, and %.1f/s alone", beside, alone)
	}
}
