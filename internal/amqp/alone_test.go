package amqp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// ward is a consumer of queues of which some have no leader, and what becomes of the messages of the others.
type ward struct {
	*broker

	own      *testbroker.Broker
	consumer *amqp.Consumer
	// sessions counts those of the connection that queues share.
	sessions atomic.Int64

	mu sync.Mutex
	// handled and came count, by message, how often it was handled and delivered; from counts messages by their queue.
	handled, came, from map[string]int
	// failed counts the tries at a queue that failed since it was consumed last.
	failed map[string]int
	sent   int
	// kept is the latest message of the type "kept", which is not settled.
	kept *amqp.Delivery
	// probation is the shortest one.
	probation time.Duration
}

// newWard declares quorum queues.
func newWard(t *testing.T, queues ...string) *ward {
	t.Helper()
	own := testbroker.Private(t)
	w := &ward{broker: brokerOf(t, own), own: own, handled: map[string]int{}, came: map[string]int{}, from: map[string]int{}, failed: map[string]int{}}
	w.probation = 2 * time.Second
	for _, queue := range queues {
		w.queue(t, queue, quorum())
	}
	return w
}

func (w *ward) start(t *testing.T, source amqp.Source, queues ...string) {
	t.Helper()
	options := w.options(t)
	if source != nil {
		options.Source = source
	}
	options.OnState = func(up bool) {
		if up {
			w.sessions.Add(1)
		}
	}
	options.OnQueue = func(queue string, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.failed[queue]++; err == nil {
			w.failed[queue] = 0
		}
	}
	w.consumer = amqp.NewConsumer(options)
	w.consumer.Probation(w.probation)
	var subscriptions []amqp.Subscription
	for _, queue := range queues {
		subscriptions = append(subscriptions, amqp.Subscription{Queue: queue, Prefetch: 10})
	}
	w.consumer.Subscribe(subscriptions)
	w.consumer.Receive(true)
	run(t, func(ctx context.Context) { w.consumer.Run(ctx, w.deliver) })
}

// deliver handles a message for a while.
func (w *ward) deliver(d *amqp.Delivery) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d.Type == "kept" {
		w.kept = d
		return
	}
	w.came[d.MessageID]++
	time.AfterFunc(50*time.Millisecond, func() {
		if d.Ack() != nil {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.handled[d.MessageID]++
		w.from[d.Queue]++
	})
}

// serve publishes messages to a queue and waits until they are handled.
func (w *ward) serve(t *testing.T, queue string, messages int) {
	t.Helper()
	w.mu.Lock()
	want := w.from[queue] + messages
	w.mu.Unlock()
	for range messages {
		w.sent++
		w.Publish("", queue, amqp091.Publishing{MessageId: strconv.Itoa(w.sent)})
	}
	testtransport.Eventually(t, "the messages of queue "+queue, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.from[queue] >= want
	})
}

// fails waits until so many tries at a queue have failed.
func (w *ward) fails(t *testing.T, queue string, tries int) {
	t.Helper()
	testtransport.Eventually(t, "tries at queue "+queue, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.failed[queue] >= tries
	})
}

// connections is how many a user has, as the broker counts some seconds later.
func (w *ward) connections(t *testing.T, username string) int {
	t.Helper()
	response, err := http.Get(w.own.ManagementURL + "/api/connections")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var all []struct{ User string }
	if err := json.NewDecoder(response.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, one := range all {
		if one.User == username {
			n++
		}
	}
	return n
}

// judge expects that no message of the sound queues came again more often than so.
func (w *ward) judge(t *testing.T, most int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, times := range w.came {
		if times > 1+most {
			t.Errorf("message %s came %d times", id, times)
		}
	}
}

func TestConsumer_KeepsQueuesWithoutALeaderAlone(t *testing.T) {
	testtransport.Long(t)
	w := newWard(t, "q", "dead", "deadtoo")
	for _, queue := range []string{"dead", "deadtoo"} {
		w.own.StopMember(t, w.target.VHost, queue)
	}
	w.start(t, nil, "dead", "q", "deadtoo")
	for range 5 {
		w.serve(t, "q", 20)
	}
	w.fails(t, "dead", 3)
	w.fails(t, "deadtoo", 3)
	w.serve(t, "q", 20)
	w.judge(t, 1)
	if sessions := w.sessions.Load(); sessions > 2 {
		t.Errorf("%d sessions, want one that ends and one that stands", sessions)
	}
	testtransport.Eventually(t, "the sound queue to share a connection again", func() bool { return w.consumer.Alone() == 2 })
	if trouble := w.consumer.Trouble(); trouble == nil {
		t.Error("nothing is told of the queues without a leader")
	}
	for _, queue := range []string{"dead", "deadtoo"} {
		w.own.StartMember(t, w.target.VHost, queue)
		w.serve(t, queue, 20)
	}
	testtransport.Eventually(t, "all to share a connection again", func() bool { return w.consumer.Alone() == 0 && w.consumer.Trouble() == nil })
	for _, queue := range []string{"dead", "deadtoo", "q"} {
		w.serve(t, queue, 20)
	}
	w.judge(t, 1)
	if sessions := w.sessions.Load(); sessions > 2 || w.consumer.Active() != 3 {
		t.Errorf("%d sessions, %d queues consumed", sessions, w.consumer.Active())
	}
}

func TestConsumer_LosesOneSessionToALeaderThatIsLost(t *testing.T) {
	testtransport.Long(t)
	w := newWard(t, "q", "dead", "deadtoo")
	w.start(t, nil, "q", "dead", "deadtoo")
	for _, queue := range []string{"q", "dead", "deadtoo"} {
		w.serve(t, queue, 20)
	}
	for _, queue := range []string{"dead", "deadtoo"} {
		w.own.StopMember(t, w.target.VHost, queue)
	}
	w.serve(t, "q", 20) // RabbitMQ has not told of it
	for prefetch := range 3 {
		w.consumer.Subscribe([]amqp.Subscription{
			{Queue: "q", Prefetch: 10}, {Queue: "dead", Prefetch: 11 + prefetch}, {Queue: "deadtoo", Prefetch: 21 + prefetch},
		})
		w.serve(t, "q", 20)
	}
	w.fails(t, "dead", 1)
	w.fails(t, "deadtoo", 1)
	w.serve(t, "q", 20)
	w.judge(t, 1)
	if sessions := w.sessions.Load(); sessions > 2 {
		t.Errorf("%d sessions", sessions)
	}
	for _, queue := range []string{"dead", "deadtoo"} {
		w.own.StartMember(t, w.target.VHost, queue)
		w.serve(t, queue, 20)
	}
}

// Queues that had proved sound kept their connections for the whole probation, and the others waited for as long where RabbitMQ allows so many only.
func TestConsumer_WithFewConnectionsAllowedEachQueueHasItsTurn(t *testing.T) {
	queues := []string{"dead"}
	for i := range 12 {
		queues = append(queues, "q"+strconv.Itoa(i))
	}
	w := newWard(t, queues...)
	w.probation = time.Hour
	name := "limited-" + w.target.VHost
	w.target.Username, w.target.Password = name, w.own.User(t, name, "", w.target.VHost, "", "", ".*")
	w.own.LimitConnections(t, name, 5)
	w.start(t, nil, queues...)
	for _, queue := range queues {
		w.serve(t, queue, 1)
	}
	w.own.StopMember(t, w.target.VHost, "dead")
	var changed []amqp.Subscription
	for _, queue := range queues {
		changed = append(changed, amqp.Subscription{Queue: queue, Prefetch: 11})
	}
	w.consumer.Subscribe(changed)
	w.fails(t, "dead", 1)
	for _, queue := range queues[1:] {
		w.serve(t, queue, 1)
	}
	w.own.StartMember(t, w.target.VHost, "dead")
	w.serve(t, "dead", 1)
}

func TestRenew_ReachesConnectionsOfQueuesThatAreAlone(t *testing.T) {
	testtransport.Long(t)
	w := newWard(t, "q", "dead", "lame")
	var mu sync.Mutex
	first, second := "first-"+w.target.VHost, "second-"+w.target.VHost
	target := w.target
	target.Username, target.Password = first, w.own.User(t, first, "", w.target.VHost, "", "", ".*")
	w.own.StopMember(t, w.target.VHost, "dead")
	w.start(t, func() (amqp.Target, error) {
		mu.Lock()
		defer mu.Unlock()
		return target, nil
	}, "q", "dead", "lame")
	w.consumer.Probation(time.Hour)
	w.fails(t, "dead", 1)
	w.serve(t, "q", 20)
	password := w.own.User(t, second, "", w.target.VHost, "", "", ".*")
	mu.Lock()
	target.Username, target.Password = second, password
	mu.Unlock()
	w.consumer.Renew()
	testtransport.Eventually(t, "the end of the connections of before", func() bool {
		return w.connections(t, first) == 0 && w.connections(t, second) >= 3
	})
	for _, queue := range []string{"q", "lame"} {
		w.serve(t, queue, 20)
	}
	w.judge(t, 1)
	w.own.StartMember(t, w.target.VHost, "dead")
	w.serve(t, "dead", 20)
}

func TestConsumer_DropsAnUnwantedQueueThatIsAlone(t *testing.T) {
	testtransport.Long(t)
	w := newWard(t, "q", "dead")
	w.own.StopMember(t, w.target.VHost, "dead")
	w.start(t, nil, "q", "dead")
	w.fails(t, "dead", 1)
	w.consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 10}})
	w.serve(t, "q", 20)
	testtransport.Eventually(t, "the end of the trouble", func() bool { return w.consumer.Trouble() == nil && w.consumer.Active() == 1 })
	w.own.StartMember(t, w.target.VHost, "dead")
	w.consumer.Subscribe([]amqp.Subscription{{Queue: "dead", Prefetch: 10}})
	w.serve(t, "dead", 20)
}

func TestConsumer_KeepsAnUntriedQueueAlone(t *testing.T) {
	testtransport.Long(t)
	w := newWard(t, "q", "dead")
	w.probation = time.Millisecond
	w.own.StopMember(t, w.target.VHost, "dead")
	var asked atomic.Int64
	w.start(t, func() (amqp.Target, error) {
		asked.Add(1)
		return w.target, nil
	}, "q", "dead")
	testtransport.Eventually(t, "the sound queue to share a connection again", func() bool {
		return w.consumer.Alone() == 1 && w.consumer.Connections() == 1
	})
	w.consumer.Receive(false)
	testtransport.Eventually(t, "the end of receiving", w.consumer.Quiet)
	before, renewals := w.sessions.Load(), int64(3)
	for range renewals { // one begins when the connection of the one before works
		connected := asked.Load()
		w.consumer.Renew()
		testtransport.Eventually(t, "both connections to be renewed", func() bool { return asked.Load() >= connected+2 })
	}
	w.consumer.Receive(true)
	w.serve(t, "q", 20)
	w.fails(t, "dead", 3)
	w.serve(t, "q", 20)
	if sessions := w.sessions.Load() - before; sessions > renewals {
		t.Errorf("%d sessions that are no renewals", sessions-renewals)
	}
	w.judge(t, 1)
}

func TestConsumer_RejoinsAQueueThatIsSetApartTwice(t *testing.T) {
	testtransport.Long(t)
	w := newWard(t, "q", "dead", "later")
	w.Publish("", "q", amqp091.Publishing{Type: "kept"})
	w.own.StopMember(t, w.target.VHost, "dead")
	w.start(t, nil, "q", "dead", "later")
	testtransport.Eventually(t, "the sound queues to share a connection again", func() bool { return w.consumer.Alone() == 1 })
	w.own.StopMember(t, w.target.VHost, "later")
	w.consumer.Subscribe([]amqp.Subscription{{Queue: "q", Prefetch: 10}, {Queue: "dead", Prefetch: 10}, {Queue: "later", Prefetch: 11}})
	w.fails(t, "later", 1)
	w.mu.Lock()
	kept := w.kept
	w.mu.Unlock()
	if err := kept.Ack(); err != nil {
		t.Fatal("the message is not on loan any more: ", err)
	}
	testtransport.Eventually(t, "the sound queue to share a connection again", func() bool { return w.consumer.Alone() == 2 })
	w.serve(t, "q", 20)
	w.judge(t, 2)
}

func TestConsumer_ConnectsPartedQueuesOneAfterTheOther(t *testing.T) {
	testtransport.Long(t)
	queues := make([]string, 24)
	for i := range queues {
		queues[i] = "q" + strconv.Itoa(i)
	}
	w := newWard(t, queues...)
	w.own.StopMember(t, w.target.VHost, "q0")
	var mu sync.Mutex
	var asked []time.Time
	w.start(t, func() (amqp.Target, error) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, time.Now())
		return w.target, nil
	}, queues...)
	testtransport.Eventually(t, "a connection for each queue", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(asked) >= len(queues) && w.consumer.Active() == len(queues)-1
	})
	mu.Lock()
	defer mu.Unlock()
	for i, at := range asked[:len(asked)-len(queues)/2] {
		if took := asked[i+len(queues)/2].Sub(at); took < 100*time.Millisecond {
			t.Errorf("%d connections within %s", len(queues)/2, took)
		}
	}
}
