package faults

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testtransport"
)

// kind of a message: what the partner answers to it, and so where it goes.
type kind string

const (
	plain   kind = "plain"   // it succeeds
	short   kind = "short"   // it fails once, and waits in the first lane
	long    kind = "long"    // it fails once, and waits in the second lane
	failing kind = "failing" // it goes to the failure queue
)

const shortDelay, longDelay = time.Second, 2 * time.Second

// statuses that the first attempt at a message is answered with.
var statuses = map[kind]int{
	plain: http.StatusOK, short: http.StatusBadGateway, long: http.StatusServiceUnavailable, failing: http.StatusUnprocessableEntity,
}

// byStatus sends each kind its way.
func byStatus() v1alpha1.RetryPolicySpec {
	wait := func(name, status string, delay time.Duration) v1alpha1.Strategy {
		return v1alpha1.Strategy{
			Name: name, When: "error.status == " + status,
			Backoff: &v1alpha1.Backoff{Type: v1alpha1.BackoffConstant, Delay: v1alpha1.NewDuration(delay)},
		}
	}
	policy := testtransport.Explicit(shortDelay, longDelay)
	policy.Strategies = []v1alpha1.Strategy{
		{Name: "failing", When: "error.status == 422", Action: v1alpha1.ActionFail}, wait("short", "502", shortDelay), wait("long", "503", longDelay),
	}
	return policy
}

// flow is the messages of one kind in one queue.
type flow struct {
	queue string
	kind  kind
}

func (f flow) String() string { return f.queue + "/" + string(f.kind) }

// traffic is flows that are published at a pace, whatever becomes of them. Each queue has a connection of its own for that: the
// broker reads no more from one whose messages it cannot store.
type traffic struct {
	t testing.TB
	// takes is how long the partner has a message.
	takes time.Duration

	mu sync.Mutex
	// flows by the number of the message.
	flows  []flow
	paused map[flow]bool

	ctx     context.Context //nolint:containedctx // the end of the publishers
	end     context.CancelFunc
	running sync.WaitGroup
}

// answer to a call of the partner.
func (r *traffic) answer(c call) int {
	time.Sleep(r.takes)
	if c.attempt > 1 {
		return http.StatusOK
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return statuses[r.flows[c.id].kind]
}

// start publishes the kinds of each queue, so many of each a second, in turns.
func (r *traffic) start(url string, pace int, kinds map[string][]kind) {
	r.paused = map[flow]bool{}
	r.ctx, r.end = context.WithCancel(context.Background())
	for _, queue := range slices.Sorted(maps.Keys(kinds)) {
		channel := testtransport.Connect(r.t, url).Channel()
		r.running.Go(func() { r.feed(channel, queue, pace, kinds[queue]) })
	}
}

// feed publishes to one queue, and waits at the end until all is confirmed.
func (r *traffic) feed(channel *amqp091.Channel, queue string, pace int, kinds []kind) {
	confirms := map[int]*amqp091.DeferredConfirmation{}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for turn := 0; r.ctx.Err() == nil; {
		for due := int(time.Since(began).Seconds() * float64(pace)); turn < due; turn++ {
			for _, k := range kinds {
				id, ok := r.next(flow{queue, k})
				if !ok {
					continue
				}
				confirm, err := channel.PublishWithDeferredConfirm("async", queue, true, false, numbered(id))
				if err != nil {
					r.t.Errorf("publish to queue %q: %v", queue, err)
					return
				}
				confirms[id] = confirm
			}
		}
		select {
		case <-tick.C:
		case <-r.ctx.Done():
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), worksWithin)
	defer cancel()
	for id, confirm := range confirms {
		if acked, err := confirm.WaitContext(ctx); err != nil || !acked {
			r.t.Errorf("message %d of queue %q: confirmed %v, %v", id, queue, acked, err)
		}
	}
}

func numbered(id int) amqp091.Publishing {
	return amqp091.Publishing{MessageId: strconv.Itoa(id), DeliveryMode: amqp091.Persistent}
}

// next gives out a number, unless the flow is paused.
func (r *traffic) next(f flow) (id int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.paused[f] {
		return 0, false
	}
	r.flows = append(r.flows, f)
	return len(r.flows) - 1, true
}

// pause a flow, or let it go on.
func (r *traffic) pause(f flow, on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paused[f] = on
}

// stop ends all flows, and returns how many messages there were.
func (r *traffic) stop() int {
	r.end()
	r.running.Wait()
	return len(r.flows)
}

// published is how many messages there were so far.
func (r *traffic) published() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.flows)
}

// ended counts the messages with a number from first and below `before` that have, by flow, and lists those that have not.
func (r *traffic) ended(ends map[int]int, first, before int) (counts map[flow]int, missing map[flow][]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts, missing = map[flow]int{}, map[flow][]int{}
	for id := first; id < before; id++ {
		f := r.flows[id]
		if ends[id] > 0 {
			counts[f]++
		} else {
			missing[f] = append(missing[f], id)
		}
	}
	return counts, missing
}
