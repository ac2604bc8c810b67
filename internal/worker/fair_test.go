package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

// withQueues adds queues to the one that is there, named like their binding keys.
func withQueues(weights map[string]int32, names ...string) func(*v1alpha1.Transport) {
	return func(t *v1alpha1.Transport) {
		for _, name := range names {
			t.Spec.Queues = append(t.Spec.Queues, v1alpha1.Queue{Name: name, BindingKeys: []string{name}})
		}
		for i := range t.Spec.Queues {
			if weight, ok := weights[t.Spec.Queues[i].Name]; ok {
				t.Spec.Queues[i].Weight = &weight
			}
		}
	}
}

// held counts how long the messages of each queue were at the handler.
type held struct {
	mu   sync.Mutex
	time map[string]time.Duration
}

func (h *held) handle(lasts map[string]time.Duration) func(context.Context, handler.Request) *retry.Failure {
	return func(_ context.Context, request handler.Request) *retry.Failure {
		began := time.Now()
		time.Sleep(lasts[request.Queue])
		h.mu.Lock()
		defer h.mu.Unlock()
		h.time[request.Queue] += time.Since(began)
		return nil
	}
}

func (h *held) of(queue string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.time[queue]
}

func TestWorker_LetsARareMessagePassABusyQueue(t *testing.T) {
	const messages, lasts = 5000, 50 * time.Millisecond
	r := newRigAlone(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), withQueues(nil, "free"))
	p := newProgram()
	var mu sync.Mutex
	began := map[string]time.Time{}
	var busy atomic.Int64
	p.handle = func(_ context.Context, request handler.Request) *retry.Failure {
		mu.Lock()
		began[request.ID] = time.Now()
		mu.Unlock()
		if request.Queue == testtransport.Queue {
			busy.Add(1)
		}
		time.Sleep(lasts)
		return nil
	}
	p.started(r, func() { r.publish(numbered(messages, "a", "busy")...) })
	testtransport.Eventually(t, "the busy queue", func() bool { return busy.Load() > 50 })
	var worst time.Duration
	for i := range 20 {
		before, id := busy.Load(), "rare"+strconv.Itoa(i)
		r.Publish("async", "free", amqp091.Publishing{MessageId: id})
		published := time.Now()
		var at time.Time
		testtransport.Eventually(t, "the message of the other queue", func() bool {
			mu.Lock()
			defer mu.Unlock()
			at = began[id]
			return !at.IsZero()
		})
		worst = max(worst, at.Sub(published))
		testtransport.Eventually(t, "the busy queue to go on", func() bool { return busy.Load() > before+20 })
	}
	if left := r.Ready(testtransport.Queue); left < messages/5 {
		t.Fatalf("only %d of the busy queue's messages still wait: that shows nothing", left)
	}
	t.Logf("a message of the other queue began after %s at most", worst)
	// Behind the 5,000 it would take 25 s, and behind those that are prefetched 100 ms.
	if worst > 2*time.Second {
		t.Errorf("a message of the other queue began after %s, want with the next place that is free", worst)
	}
}

func TestWeight_SharesTheHandlersTimeAmongQueues(t *testing.T) {
	testtransport.Long(t)
	cases := []struct {
		name    string
		weights map[string]int32
		lasts   map[string]time.Duration
		want    float64
		// within is by which factor it may be missed: a machine that is busy with other things hands messages over late.
		within float64
	}{
		{
			"three to one",
			map[string]int32{testtransport.Queue: 3},
			map[string]time.Duration{testtransport.Queue: 20 * time.Millisecond, "free": 20 * time.Millisecond},
			3, 1.25,
		},
		{
			"alike, of which one has slow messages", nil,
			map[string]time.Duration{testtransport.Queue: 400 * time.Millisecond, "free": 40 * time.Millisecond},
			1, 1.7,
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			r := newRigAlone(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), withQueues(c.weights, "free"))
			p, h := newProgram(), &held{time: map[string]time.Duration{}}
			p.handle = h.handle(c.lasts)
			p.started(r, func() {
				for queue, lasts := range c.lasts {
					r.Publish("async", queue, numbered(int(80*time.Second/lasts), "a", queue)...)
				}
			})
			testtransport.Eventually(t, "12 s of its time", func() bool { return h.of(testtransport.Queue) >= 12*time.Second })
			before := [2]time.Duration{h.of(testtransport.Queue), h.of("free")}
			testtransport.Eventually(t, "36 s of its time", func() bool { return h.of(testtransport.Queue) >= 36*time.Second })
			ratio := float64(h.of(testtransport.Queue)-before[0]) / float64(h.of("free")-before[1])
			if r.Ready(testtransport.Queue) == 0 || r.Ready("free") == 0 {
				t.Fatal("a queue was empty: that shows nothing")
			}
			t.Logf("%s to %s: %.2f", h.of(testtransport.Queue), h.of("free"), ratio)
			if ratio < c.want/c.within || ratio > c.want*c.within {
				t.Errorf("the queues had the handler's time as %.2f to 1, want %v", ratio, c.want)
			}
		})
	}
}

func TestWorker_GivesOneBusyQueueOf64AllPlaces(t *testing.T) {
	testtransport.Long(t)
	names := make([]string, 63)
	for i := range names {
		names[i] = fmt.Sprintf("q%d", i)
	}
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), withQueues(nil, names...))
	p := newProgram()
	var running, most atomic.Int64
	p.handle = func(context.Context, handler.Request) *retry.Failure {
		if now := running.Add(1); now > most.Load() {
			most.Store(now)
		}
		defer running.Add(-1)
		time.Sleep(20 * time.Millisecond)
		return nil
	}
	p.started(r)
	testtransport.Eventually(t, "the worker", func() bool { return r.worker.Ready() == nil })
	r.publish(numbered(6000, "a", "m")...)
	testtransport.Eventually(t, "all places taken", func() bool { return most.Load() >= 9 })
	for _, name := range names[:10] {
		r.Publish("async", name, numbered(20, "a", name)...)
	}
	testtransport.Eventually(t, "all handled", func() bool { return outcomes(r, "succeeded") == 6200 })
	if moved := outcomes(r, "quarantined"); moved != 0 {
		t.Errorf("%d messages came back as if their worker had crashed", moved)
	}
	if most.Load() > 10 {
		t.Errorf("%d messages at a time, limit 10", most.Load())
	}
}

func TestMemory_LargeMessagesStayWithinTheirShare(t *testing.T) {
	testtransport.Long(t)
	stayWithinTheirShare(t, 2*8<<20, 256<<20, parcels(testtransport.Queue, 200, 8<<20))
}

func TestMemory_ManySmallHeadersStayWithinTheirShare(t *testing.T) {
	testtransport.Long(t)
	headers := amqp091.Table{}
	for i := range 8000 {
		headers[strconv.Itoa(i)] = nil
	}
	all := parcels(testtransport.Queue, 200, 0)
	for i := range all {
		all[i].Headers = headers
	}
	stayWithinTheirShare(t, 2*700_000, 32<<20, all)
}

// While messages are small many of them may be on loan: then large ones took 345 MiB where 64 were allowed.
func TestMemory_LargeMessagesBehindSmallOnesStayWithinTheirShare(t *testing.T) {
	stayWithinTheirShare(t, 2<<20, 32<<20, parcels(testtransport.Queue, 3000, 10), parcels(testtransport.Queue, 40, 1<<20))
}

// Each queue may have one on loan, whatever its size.
func TestMemory_LargeMessagesOfManyQueuesStayWithinTheirShare(t *testing.T) {
	queues := []string{"q1", "q2", "q3", "q4", "q5", "q6", "q7"}
	var all [][]parcel
	for _, queue := range queues {
		all = append(all, parcels(queue, 3, 3<<20))
	}
	stayWithinTheirShare(t, 2*3<<20, 32<<20, all...)
}

// parcel is a message for a queue.
type parcel struct {
	queue string
	amqp091.Publishing
}

// parcels are messages for a queue that have bodies of a certain size.
func parcels(queue string, n, size int) []parcel {
	all, body := make([]parcel, n), make([]byte, size)
	for i := range all {
		all[i] = parcel{queue, amqp091.Publishing{MessageId: fmt.Sprintf("%s %d %d", queue, size, i), Body: body}}
	}
	return all
}

// stayWithinTheirShare expects of messages that they take a quarter of the memory at most, with an eighth of that more where some are small,
// and at some time no less than least bytes.
func stayWithinTheirShare(t *testing.T, least, memory int, batches ...[]parcel) {
	t.Helper()
	all, share := slices.Concat(batches...), memory/4
	if slices.ContainsFunc(all, func(m parcel) bool { return len(m.Body) == 10 }) {
		share += share / 8
	}
	var others []string
	for _, m := range all {
		if m.queue != testtransport.Queue && !slices.Contains(others, m.queue) {
			others = append(others, m.queue)
		}
	}
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), withQueues(nil, others...))
	r.stop()
	r.memory = int64(memory)
	p := newProgram()
	p.handle = func(_ context.Context, request handler.Request) *retry.Failure {
		if len(request.Body) != 10 {
			time.Sleep(100 * time.Millisecond)
		}
		return nil
	}
	r.handlers = func(v1alpha1.Handler, int) (handler.Handler, error) { return p, nil }
	for _, m := range all {
		r.Publish("async", m.queue, m.Publishing)
	}
	r.start(nil)
	var watching sync.WaitGroup
	var most float64
	done, stop := context.WithCancel(t.Context())
	watching.Go(func() {
		for done.Err() == nil {
			most = max(most, value(t, r.registry, "redrive_inflight_bytes"))
		}
	})
	testtransport.Eventually(t, "all handled", func() bool { return outcomes(r, "succeeded") == len(all) })
	stop()
	watching.Wait()
	t.Logf("%v MiB on loan at most", most/(1<<20))
	if most > float64(share) || most < float64(least) {
		t.Errorf("%v MiB were on loan, want %d bytes at least, and %d at most", most/(1<<20), least, share)
	}
	if moved := outcomes(r, "quarantined"); moved != 0 {
		t.Errorf("%d messages came back as if their worker had crashed", moved)
	}
}

func TestWaitForPlace_ReturnsAMessageThatWaitsTooLong(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), func(tr *v1alpha1.Transport) {
		withQueues(nil, "free")(tr)
		tr.Spec.Broker.ConsumerTimeout = v1alpha1.NewDuration(6 * time.Second)
		tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(time.Second)
		tr.Spec.Workers[0].Concurrency = new(int32(1))
	})
	p, release := newProgram(), make(chan struct{})
	p.handle = func(context.Context, handler.Request) *retry.Failure {
		<-release // longer than it may
		return nil
	}
	p.started(r)
	r.publish(letters("a")...)
	testtransport.Eventually(t, "the first at the handler", func() bool { return len(p.called()) == 1 })
	r.Publish("async", "free", letters("b")...)
	testtransport.Eventually(t, "the other one to go back", func() bool { return outcomes(r, "requeued") > 0 })
	close(release)
	testtransport.Eventually(t, "both handled", func() bool { return outcomes(r, "succeeded") == 2 })
	if calls := p.called(); len(calls) != 2 || calls[1] != "b1" || outcomes(r, "quarantined") != 0 {
		t.Errorf("calls %v: want each once", calls)
	}
}

func TestReady_HoldsWhileThePrefetchShrinks(t *testing.T) {
	r := newRig(t, newPartner(t, always(200)), testtransport.Explicit(time.Second), nil)
	p, release := newProgram(), make(chan struct{})
	p.handle = func(context.Context, handler.Request) *retry.Failure {
		<-release
		return nil
	}
	p.started(r, func() { r.publish(numbered(60, "a", "m")...) })
	testtransport.Eventually(t, "a full worker", func() bool { return len(p.called()) == 10 && value(t, r.registry, "redrive_prefetch") == 20 })
	config := r.config
	config.Concurrency = 2
	if err := r.worker.Reload(config); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "a smaller prefetch", func() bool { return value(t, r.registry, "redrive_prefetch") == 4 })
	deadline := time.Now().Add(3 * time.Second) // a consumer that is full is cancelled within two
	testtransport.Eventually(t, "the time to cancel a consumer", func() bool {
		if err := r.worker.Ready(); err != nil {
			t.Fatalf("not ready: %v", err)
		}
		return time.Now().After(deadline)
	})
	close(release)
	testtransport.Eventually(t, "all handled", func() bool { return outcomes(r, "succeeded") == 60 })
	if moved := outcomes(r, "quarantined"); moved != 0 {
		t.Errorf("%d messages came back as if their worker had crashed", moved)
	}
}
