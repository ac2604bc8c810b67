package apply_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// withoutQuarantine is what a Transport had before there were quarantine queues.
func (s *stage) withoutQuarantine() apply.Input {
	s.t.Helper()
	of := func(name string) bool { return strings.HasSuffix(name, ".quarantine") }
	in := s.input()
	in.Desired.Queues = slices.DeleteFunc(in.Desired.Queues, func(q topology.Queue) bool { return of(q.Name) })
	in.Desired.Bindings = slices.DeleteFunc(in.Desired.Bindings, func(b topology.Binding) bool { return of(b.Destination) })
	in.Desired.Policies = slices.DeleteFunc(in.Desired.Policies, func(p topology.Policy) bool { return of(p.Name) })
	return in
}

func TestQuarantine_IsAddedToATransportThatHoldsMessages(t *testing.T) {
	s := newStage(t)
	plain := v1alpha1.Queue{Name: "plain", Type: new(v1alpha1.QueueClassic), BindingKeys: []string{"plain"}}
	s.spec.Spec.Queues = append(s.spec.Spec.Queues, plain)
	s.legacy(nil)
	before, err := apply.Once(context.Background(), s.client, s.withoutQuarantine(), keep)
	if err != nil || !before.Converged() {
		t.Fatalf("%+v, %v", before, err)
	}
	s.state.Created, s.state.Adopted = before.Created, before.Adopted
	for _, queue := range []string{"test", "plain"} {
		s.publish("async", queue, nil)
	}
	s.publish("async.fallback", "test", amqp091.Table{"redrive-lane": "3s"})

	report := s.once()
	if !report.Converged() || !slices.Equal(report.Created, before.Created) || !slices.Equal(report.Adopted, before.Adopted) {
		t.Errorf("after the upgrade: %+v", report)
	}
	if len(report.Steps) != 4*3 {
		t.Errorf("a queue, a binding and a policy for each of the four, got\n%s", steps(report.Steps))
	}
	s.writes.Store(0)
	if s.once(); s.writes.Load() > 0 {
		t.Errorf("%d writes in the second run", s.writes.Load())
	}
	for _, queue := range []string{"test", "plain", "lost", "legacy"} {
		s.publish("async.return", queue+".quarantine", nil)
		s.handle(queue+".quarantine", 1, func(d amqp091.Delivery) error {
			if d.RoutingKey != queue+".quarantine" {
				t.Errorf("%s: key %q", queue, d.RoutingKey)
			}
			return d.Ack(false)
		})
	}
	for _, queue := range []string{"test", "test", "plain", "legacy"} {
		s.take(queue)
	}
}

func TestQuarantine_FailsAMessageThatIsReturnedTooOften(t *testing.T) {
	s := newStage(t)
	s.once()
	s.eventually("the pin to hold", func() bool {
		state, err := s.client.Queue(context.Background(), "test.quarantine")
		return err == nil && state.Policy == "redrive.async:queue:test.quarantine"
	})
	s.publish("async.return", "test.quarantine", nil)
	s.handle("test.quarantine", 21, func(d amqp091.Delivery) error { return d.Reject(true) })
	s.take("async.failed")
}

func TestQuarantine_OutlivesAQueueThatLeavesTheSpec(t *testing.T) {
	s := newStage(t)
	s.once()
	s.allCounted()
	s.publish("async.return", "test.quarantine", nil)
	s.publish("async", "test", nil)
	s.counted("test", 1)
	s.counted("test.quarantine", 1)
	s.spec.Spec.Queues = s.spec.Spec.Queues[:1]

	s.once()
	s.later(16 * time.Second)
	report := s.once()
	if want := []apply.Blocked{{Queue: "test.quarantine", Messages: 1}, {Queue: "test", Messages: 1}}; !sameBlocked(report.Blocked, want) {
		t.Fatalf("want %v, got %v", want, report.Blocked)
	}
	t.Log("the work queue goes first: a worker may still move what it has of it")
	quarantined := s.get("test")
	s.publish("async.return", "test.quarantine", nil)
	if err := quarantined.Ack(false); err != nil {
		t.Fatal(err)
	}
	s.counted("test", 0)
	s.counted("test.quarantine", 2)
	t.Log("which stays for the retries of what is quarantined")
	for range 3 {
		s.later(time.Hour)
		report = s.once()
		if want := []string{`async.return -> test "test"`}; !slices.Equal(s.bindings("test"), want) {
			t.Fatalf("it has the bindings %q", s.bindings("test"))
		}
	}
	told := slices.ContainsFunc(report.Warnings, func(f topology.Finding) bool {
		return f.Object.Name == "test" && strings.Contains(f.Message, "test.quarantine")
	})
	if !told || !slices.Equal(report.Blocked, []apply.Blocked{{Queue: "test.quarantine", Messages: 2}}) {
		t.Errorf("nobody is told why it stays: %v, %v", report.Warnings, report.Blocked)
	}
	s.handle("test.quarantine", 2, acknowledge)
	s.counted("test.quarantine", 0)
	for step := 0; s.exists("test"); step++ {
		if state := s.retiring("test.quarantine"); state.Since != nil || step > 10 {
			t.Fatalf("the quarantine queue does not wait for test: %+v", state)
		}
		s.later(s.once().RequeueAfter + time.Second)
	}
	t.Log("what waits in a lane still comes back")
	s.publish("async.fallback", "test.quarantine", amqp091.Table{"redrive-lane": "1s"})
	s.counted("test.quarantine", 1)
	s.later(time.Minute)
	if report = s.once(); !slices.Equal(report.Blocked, []apply.Blocked{{Queue: "test.quarantine", Messages: 1}}) {
		t.Fatalf("got %v", report.Blocked)
	}
	s.handle("test.quarantine", 1, acknowledge)
	s.counted("test.quarantine", 0)
	s.untilRetired()
	if rest := s.once(); s.exists("test.quarantine") || !rest.Converged() || len(s.snapshot().Policies) != 5 {
		t.Errorf("left: %+v, %v", rest, s.snapshot().Policies)
	}
}

// A quarantined message may be tried for long, and again and again. The wait for lanes began when no configuration needed its queue any more, so that it was
// over by then: the way back was gone while the message was in a lane, and it came to the failure queue with retries left.
func TestQuarantine_OfAQueueThatHasLeftWaitsForLanesFromItsLastMessage(t *testing.T) {
	s := newStage(t)
	s.once()
	s.allCounted()
	s.spec.Spec.Queues = s.spec.Spec.Queues[:1]
	for step := 0; s.exists("test"); step++ {
		if step > 10 {
			t.Fatalf("test does not go: %+v", s.retiring("test"))
		}
		s.later(s.once().RequeueAfter + time.Second)
	}
	s.publish("async.fallback", "test.quarantine", amqp091.Table{"redrive-lane": "1s"})
	s.counted("test.quarantine", 1)
	s.once()
	s.later(16 * time.Second)
	if s.once(); s.retiring("test.quarantine").Unbound != nil {
		t.Errorf("the wait has begun: %+v", s.retiring("test.quarantine"))
	}
	s.handle("test.quarantine", 1, acknowledge)
	s.counted("test.quarantine", 0)
	s.later(time.Second)
	if report := s.once(); len(report.Steps) > 0 {
		t.Errorf("a retry of the last message cannot come back: %s", steps(report.Steps))
	}
	s.untilRetired()
	if s.exists("test.quarantine") {
		t.Error("it is still there")
	}
}

// handle consumes messages one by one, each time settling the one that comes. RabbitMQ does not let anybody get from a queue
// with a single active consumer in another way.
func (s *stage) handle(queue string, times int, settle func(amqp091.Delivery) error) {
	s.t.Helper()
	channel := s.channel()
	if err := channel.Qos(1, 0, false); err != nil {
		s.t.Fatal(err)
	}
	deliveries, err := channel.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	limit := time.NewTimer(testtransport.Patience)
	defer limit.Stop()
	for i := range times {
		select {
		case delivery := <-deliveries:
			if err := settle(delivery); err != nil {
				s.t.Fatal(err)
			}
		case <-limit.C:
			s.t.Fatalf("%d of %d messages in %s within %s", i, times, queue, testtransport.Patience)
		}
	}
	if err := channel.Close(); err != nil {
		s.t.Fatal(err)
	}
}

func acknowledge(d amqp091.Delivery) error { return d.Ack(false) }

// sameBlocked compares without order.
func sameBlocked(got, want []apply.Blocked) bool {
	return len(got) == len(want) && !slices.ContainsFunc(want, func(b apply.Blocked) bool { return !slices.Contains(got, b) })
}

func TestQuarantine_StaysWhileAConfigurationNamesIt(t *testing.T) {
	s := newStage(t)
	s.once()
	s.allCounted()
	t.Log("the queue is made again as a strict one")
	if err := s.client.DeleteQueue(t.Context(), "test", false, false); err != nil {
		t.Fatal(err)
	}
	s.spec.Spec.Queues[1].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
	s.consumed = []string{"test", "test.quarantine"}
	for range 3 {
		s.later(time.Hour)
		if report := s.once(); len(report.Conflicts) > 0 || s.retiring("test.quarantine").Since != nil || s.retiring("test.quarantine").Queue == "" {
			t.Fatalf("%v, %+v", report.Conflicts, s.state.Retiring)
		}
	}
	s.consumed = []string{"test"}
	if report := s.once(); report.RequeueAfter < 9*time.Minute {
		t.Errorf("workers have not read it yet: %+v", report)
	}
	s.later(11 * time.Minute)
	s.untilRetired()
	if s.exists("test.quarantine") || !s.exists("test") {
		t.Errorf("left: %v", s.snapshot().Queues)
	}
}

func TestOrderingStrict_ConflictsWithAQueueOfOthers(t *testing.T) {
	s := newStage(t)
	if _, err := s.amqp.QueueDeclare("test", true, false, false, false, amqp091.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "async.failed", "x-dead-letter-strategy": "at-least-once",
		"x-overflow": "reject-publish",
	}); err != nil {
		t.Fatal(err)
	}
	s.once()
	s.allCounted()
	s.spec.Spec.Queues[1].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
	for range 3 {
		s.later(time.Hour)
		report := s.once()
		if len(report.Conflicts) != 1 || !strings.Contains(report.Conflicts[0].Remedy, "Strict ordering needs a queue") {
			t.Fatalf("conflicts: %v", report.Conflicts)
		}
	}
	s.publish("async", "test", nil)
	s.publish("async.return", "test.quarantine", nil)
	s.take("test")
	s.handle("test.quarantine", 1, acknowledge)
}

func TestDeletion_WaitsForQuarantine(t *testing.T) {
	s := newStage(t)
	s.once()
	s.publish("async.return", "test.quarantine", nil)
	s.counted("test.quarantine", 1)
	s.allCounted()
	s.remove(false, false)
	s.later(16 * time.Second)
	if report := s.remove(false, false); report.Drained || !slices.Equal(report.Blocked, []apply.Blocked{{Queue: "test.quarantine", Messages: 1}}) {
		t.Fatalf("the quarantine worker is stopped with a message to handle: %+v", report)
	}
	s.handle("test.quarantine", 1, acknowledge)
	s.counted("test.quarantine", 0)
	s.untilDrained()
	for report := s.remove(true, false); !report.Done; report = s.remove(true, false) {
		if queues := s.snapshot().Queues; queues["test"].Name != "" && queues["test.quarantine"].Name == "" {
			t.Fatal("the quarantine queue goes before its work queue")
		}
		s.later(report.RequeueAfter + time.Second)
	}
	s.nothingIsLeft()
}

func TestDeletion_WaitsForTheQuarantineOfAdoptedQueues(t *testing.T) {
	s := newStage(t)
	s.legacy(nil)
	s.spec.Spec.Exchange.UnroutedTo = nil
	s.spec.Spec.Queues = s.spec.Spec.Queues[2:]
	s.lanes = retry.Lanes{time.Hour}
	s.once()
	s.publish("async.fallback", "legacy", amqp091.Table{"redrive-lane": "1h"}) // While others publish, lanes may never be empty.
	s.publish("async.return", "legacy.quarantine", nil)
	s.counted("legacy.quarantine", 1)
	s.allCounted()
	s.remove(false, false)
	s.later(16 * time.Second)
	if report := s.remove(false, false); report.Drained || !slices.Equal(report.Blocked, []apply.Blocked{{Queue: "legacy.quarantine", Messages: 1}}) {
		t.Fatalf("the quarantine worker is stopped with a message to handle: %+v", report)
	}
	s.handle("legacy.quarantine", 1, acknowledge)
	s.counted("legacy.quarantine", 0)
	s.untilDrained()
	if report := s.untilBlocked(); !slices.Equal(report.Blocked, []apply.Blocked{{Queue: "async.fallback.1h", Messages: 1}}) {
		t.Fatalf("want the lane to come back first, got %+v", report)
	}
	s.take("async.fallback.1h")
	s.counted("async.fallback.1h", 0)
	if report := s.untilBlocked(); !report.Done || !s.exists("legacy") || s.exists("legacy.quarantine") {
		t.Fatalf("not done: %+v", report)
	}
}

func TestOrderingStrict_KeepsTheOrderThroughAllRetries(t *testing.T) {
	s := newStage(t)
	s.spec.Spec.Queues[1].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
	s.deliveries = map[string]int64{"test": 4}
	s.once()
	if s.exists("test.quarantine") {
		t.Error("a strict queue has no quarantined messages")
	}
	s.limited("test", 4)
	s.publish("async", "test", amqp091.Table{"n": "first"})
	s.publish("async", "test", amqp091.Table{"n": "second"})
	reject := func(times int) {
		t.Helper()
		s.handle("test", times, func(d amqp091.Delivery) error {
			if got := fmt.Sprint(d.Headers["n"]); got != "first" {
				t.Errorf("it has lost its place to the %s", got)
			}
			return d.Reject(true)
		})
	}
	reject(3)
	t.Log("more retries are allowed, in place")
	s.deliveries["test"] = 30
	if got := steps(s.once().Steps); got != "~ policy redrive.async:queue:test  delivery-limit: 4 -> 30" {
		t.Fatalf("got %s", got)
	}
	s.limited("test", 30)
	reject(22)
	var order []any
	s.handle("test", 2, func(d amqp091.Delivery) error {
		order = append(order, d.Headers["n"])
		return d.Ack(false)
	})
	if !slices.Equal(order, []any{"first", "second"}) {
		t.Errorf("handled %v", order)
	}
}

// limited waits until a delivery limit is in force.
func (s *stage) limited(queue string, limit int64) {
	s.t.Helper()
	s.eventually("the delivery limit", func() bool {
		state, err := s.client.Queue(context.Background(), queue)
		return err == nil && fmt.Sprint(state.EffectiveDefinition["delivery-limit"]) == strconv.FormatInt(limit, 10)
	})
}
