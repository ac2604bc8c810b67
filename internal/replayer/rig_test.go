package replayer

import (
	"context"
	"crypto/rand"
	"log/slog"
	"maps"
	"strconv"
	"sync"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// rig is a Transport with failed messages and a worker that keeps the truth: what it did with each message, by its ID.
type rig struct {
	t               *testing.T
	url, management string

	broker *testtransport.Broker
	// rate of the replayers that are processes; 0 is none.
	rate int

	mu sync.Mutex
	// runs counts the calls of the handler, and ended has the first event of each message.
	runs  map[string]int
	ended map[string]message.OutcomeKind
}

// newRig has the test run beside others: each has a vhost of its own, and waits most of the time.
func newRig(t *testing.T, shared *testbroker.Broker) *rig {
	t.Helper()
	t.Parallel()
	vhost := shared.Vhost(t)
	shared.SetPolicy(t, vhost, "pinned", `^async\.failed$`, "queues", 1000, map[string]any{"delivery-limit": 2147483647})
	r := &rig{t: t, url: shared.URL(vhost), management: shared.ManagementURL, runs: map[string]int{}, ended: map[string]message.OutcomeKind{}}
	transport := testtransport.New("http://127.0.0.1:1/")
	r.broker = testtransport.Declare(t, r.url, transport, testtransport.Compile(t, transport, testtransport.Explicit(time.Hour)))
	return r
}

// isChosen is true of every second message, and failsAgain of every tenth of these.
func isChosen(n int) bool   { return n%2 == 0 }
func failsAgain(n int) bool { return n%20 == 0 }

// fill puts failed messages into the failure queue, as a worker does.
func (r *rig) fill(messages int) {
	r.t.Helper()
	var failed []amqp091.Publishing
	for n := range messages {
		m, err := message.Failed(message.Message{
			MessageID: strconv.Itoa(n), Body: []byte("body " + strconv.Itoa(n)), Headers: map[string]any{"chosen": isChosen(n)}, Exchange: "async",
			RoutingKey: "test",
		}, message.State{ID: strconv.Itoa(n), Exchange: "async", RoutingKey: "test"}, "test", message.Final{Reason: "MaxRetries", At: time.UnixMilli(int64(n) + 1), ID: rand.Text()})
		if err != nil {
			r.t.Fatal(err)
		}
		failed = append(failed, amqp091.Publishing{MessageId: m.MessageID, Body: m.Body, Headers: m.Headers})
	}
	r.broker.Publish("async.failed", "", failed...)
}

// work handles what comes into the work queue until the test ends. Of some it ends between the event and the ack, as when it is killed.
func (r *rig) work() {
	r.t.Helper()
	connection := testtransport.Connect(r.t, r.url)
	channel := connection.Channel()
	if err := channel.Qos(20, 0, false); err != nil {
		r.t.Fatal(err)
	}
	deliveries, err := channel.Consume("test", "", false, false, false, false, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	target := newOptions(r.url, r.management, nil).Target
	publisher := amqp.NewPublisher(amqp.Options{
		Source: func() (amqp.Target, error) { return target, nil }, Name: "worker", Log: slog.New(slog.DiscardHandler),
	})
	go publisher.Run(r.t.Context())
	go func() {
		for d := range deliveries {
			r.handle(&d, publisher)
		}
	}()
}

func (r *rig) handle(d *amqp091.Delivery, publisher *amqp.Publisher) {
	ctx := context.Background()
	m := amqp.Message(d)
	n, _ := strconv.Atoi(m.MessageID)
	outcome := message.ReplayOutcome{Replay: message.ReplayOf(m.Headers), Kind: message.OutcomeHandled, Queue: "test"}
	r.mu.Lock()
	r.runs[m.MessageID]++
	first := r.runs[m.MessageID] == 1
	if failsAgain(n) {
		outcome.Kind, outcome.Cause = message.OutcomeFailedAgain, "0badcafe"
	}
	r.ended[m.MessageID] = outcome.Kind
	r.mu.Unlock()
	if failsAgain(n) {
		failed, err := message.Failed(m, message.Decode(m, "async", time.Now()), "test", message.Final{Reason: "MaxRetries", At: time.Now(), ID: rand.Text()})
		failed.Exchange = "async.failed"
		if err != nil || publisher.Publish(ctx, &failed) != nil {
			return
		}
	}
	event := outcome.Message()
	event.Exchange = "async.fallback"
	if publisher.Publish(ctx, &event) != nil {
		return
	}
	if first && n%14 == 0 {
		_ = d.Reject(true)
		return
	}
	_ = d.Ack(false)
}

// left are the IDs in the failure queue with how often each is there.
func (r *rig) left() map[string]int {
	r.t.Helper()
	found := map[string]int{}
	for _, d := range r.broker.TakeAll("async.failed") {
		found[d.MessageId]++
	}
	return found
}

// judge compares the result with the truth: nothing is lost, nothing was replayed that was not chosen, and the counts are exact.
func (r *rig) judge(messages int, result Result) (again int) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var handled, failed int64
	for kind := range maps.Values(r.ended) {
		if kind == message.OutcomeHandled {
			handled++
		} else {
			failed++
		}
	}
	if c := result.Counts; c.Handled != handled || c.FailedAgain != failed || c.Selected != int64(messages+1)/2 || result.Causes["0badcafe"] != failed {
		r.t.Errorf("the replay counts %+v, %v; the handler had %d and %d", c, result.Causes, handled, failed)
	}
	left := r.left()
	for n := range messages {
		name := strconv.Itoa(n)
		switch {
		case !isChosen(n) && (r.runs[name] != 0 || left[name] != 1):
			r.t.Errorf("message %d was not chosen, and is handled %d times, and %d times in the failure queue", n, r.runs[name], left[name])
		case isChosen(n) && r.runs[name] == 0:
			r.t.Errorf("message %d was never handled; it is %d times in the failure queue", n, left[name])
		case isChosen(n) && failsAgain(n) == (left[name] == 0):
			r.t.Errorf("message %d failed again: %t, and is %d times in the failure queue", n, failsAgain(n), left[name])
		}
		if isChosen(n) {
			again += r.runs[name] - 1
			if n%14 == 0 {
				again--
			}
		}
	}
	return again
}
