package apply_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/topology"
)

func TestDeletion_WaitsForMessagesAndThenLeavesNothing(t *testing.T) {
	s := newStage(t)
	s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{
		Name: "plain", Type: new(v1alpha1.QueueClassic), BindingKeys: []string{"plain"},
		Bindings: []v1alpha1.Binding{{Exchange: "amq.topic", Keys: []string{"#"}}},
	})
	s.once()
	s.publish("async", "test", nil)
	s.counted("test", 1)
	s.allCounted()

	s.remove(false, false)
	s.publish("async", "test", nil) // Nobody is bound any more: the message goes nowhere.
	s.later(16 * time.Second)
	report := s.remove(false, false)
	if want := []apply.Blocked{{Queue: "test", Messages: 1}}; report.Drained || !slices.Equal(report.Blocked, want) {
		t.Fatalf("want %v, got %+v", want, report)
	}

	// A worker fails it: to the failure queue, then done.
	delivery := s.get("test")
	s.publish("async.failed", "test", nil)
	if err := delivery.Ack(false); err != nil {
		t.Fatal(err)
	}
	s.counted("test", 0)
	s.counted("async.failed", 1)
	if s.remove(false, false).Drained {
		t.Fatal("drained at the first count")
	}
	s.later(11 * time.Second)
	s.untilDrained()

	report = s.untilBlocked()
	if want := []apply.Blocked{{Queue: "async.failed", Messages: 1}}; !slices.Equal(report.Blocked, want) {
		t.Fatalf("want %v, got %+v", want, report)
	}
	observed := s.allCounted()
	if len(observed.Queues) != 1 || len(observed.Exchanges) < 7+6 {
		t.Errorf("only the failure queue, and all exchanges, may be left: %v", observed.Queues)
	}

	s.take("async.failed")
	s.counted("async.failed", 0)
	if report := s.untilBlocked(); !report.Done {
		t.Fatalf("not done: %+v", report)
	}
	s.nothingIsLeft()
}

// untilBlocked goes on with the deletion until it is blocked or done.
func (s *stage) untilBlocked() apply.DeleteReport {
	s.t.Helper()
	for range 20 {
		report := s.remove(true, false)
		if report.Done || len(report.Blocked) > 0 {
			return report
		}
		if report.RequeueAfter <= 0 {
			s.t.Fatalf("it does not say when to go on: %+v", report)
		}
		s.later(report.RequeueAfter + time.Second)
	}
	s.t.Fatal("neither blocked nor done")
	return apply.DeleteReport{}
}

func (s *stage) nothingIsLeft() {
	s.t.Helper()
	observed, err := s.client.Observe(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	for name := range observed.Exchanges {
		if name != "" && name[:4] != "amq." {
			s.t.Errorf("exchange %s is left", name)
		}
	}
	if len(observed.Queues)+len(observed.Bindings)+len(observed.Policies) > 0 {
		s.t.Errorf("left: %v, %v, %v", observed.Queues, observed.Bindings, observed.Policies)
	}
	if len(s.state.Created)+len(s.state.Retiring) > 0 {
		s.t.Errorf("left in the state: %v, %v", s.state.Created, s.state.Retiring)
	}
}

func TestDeletion_LetsRetriesComeBackWhileWorkersDrain(t *testing.T) {
	s := newStage(t)
	s.lanes = append(s.lanes, time.Hour)
	s.once()
	s.allCounted()
	s.publish("async.fallback", "test", amqp091.Table{"redrive-lane": "3s"})
	s.publish("async.fallback", "test", amqp091.Table{"redrive-lane": "1h"})
	s.remove(false, false)
	s.publish("async.fallback", "test", amqp091.Table{"redrive-lane": "1s"}) // A worker retries while it drains.
	s.counted("test", 2)
	s.counted("async.fallback.1h", 1)
	s.counted("async.fallback.1s", 0) // The broker counts each queue in its own time.
	s.counted("async.fallback.3s", 0)
	s.later(16 * time.Second)
	want := []apply.Blocked{{Queue: "test", Messages: 2}, {Queue: "async.fallback.1h", Messages: 1}}
	if report := s.remove(false, false); report.Drained || !slices.Equal(report.Blocked, want) {
		t.Errorf("want %v, got %+v", want, report)
	}
}

func TestDeletion_TakesTheMessagesWithItWhereItIsForced(t *testing.T) {
	s := newStage(t)
	s.once()
	s.publish("async", "test", nil)
	s.publish("async.failed", "", nil)
	if report := s.remove(false, true); !report.Drained || report.Done {
		t.Errorf("want the workers stopped first, got %+v", report)
	}
	if report := s.remove(true, true); !report.Done || len(report.Left) != 0 {
		t.Errorf("not done: %+v", report)
	}
	s.nothingIsLeft()
}

func TestDeletion_LeavesAnExchangeThatOthersUse(t *testing.T) {
	s := newStage(t)
	s.once()
	if _, err := s.amqp.QueueDeclare("audit", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.amqp.QueueBind("audit", "test", "async", false, nil); err != nil {
		t.Fatal(err)
	}
	report := s.remove(true, true)
	if !report.Done || len(report.Left) != 1 || report.Left[0].Object.String() != "exchange/async" {
		t.Errorf("want the exchange left and named, got %+v", report)
	}
}

func TestDeletion_EndsAtOnceWhereNothingWasMade(t *testing.T) {
	s := newStage(t)
	if report := s.remove(false, false); !report.Drained {
		t.Errorf("there is nothing to wait for: %+v", report)
	}
	if report := s.remove(true, false); !report.Done || s.writes.Load() != 0 {
		t.Errorf("want it done without a write, got %+v", report)
	}
}

// An adopted queue dead-letters to the failure exchange, and outlives its Transport: what it dead-letters later was lost.
func TestDeletion_KeepsTheWayOutOfAQueueThatStays(t *testing.T) {
	theirs := topology.Policy{
		Name: "theirs", Pattern: "^theirs$", ApplyTo: "queues", Priority: 10,
		Definition: topology.Arguments{"dead-letter-exchange": "async.failed", "delivery-limit": 5},
	}
	for name, c := range map[string]struct {
		arguments amqp091.Table
		policy    *topology.Policy
		limits    *v1alpha1.Limits
		applies   string // in the end
	}{
		"by an argument": {arguments: amqp091.Table{"x-dead-letter-exchange": "async.failed"}},
		"by a policy of its owner that ours hides": {
			policy: &theirs, limits: &v1alpha1.Limits{MessageTTL: v1alpha1.NewDuration(time.Hour)}, applies: "theirs",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			arguments := amqp091.Table{"x-queue-type": "quorum"}
			maps.Copy(arguments, c.arguments)
			if _, err := s.amqp.QueueDeclare("theirs", true, false, false, false, arguments); err != nil {
				t.Fatal(err)
			}
			if c.policy != nil {
				if _, err := s.client.Apply(t.Context(), topology.Step{Action: topology.ActionCreate, Policy: c.policy}); err != nil {
					t.Fatal(err)
				}
			}
			s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: "theirs", Adopt: new(true), Limits: c.limits})
			s.once()
			s.publish("", "theirs", nil)
			s.deletedButForTheWayOutOf("theirs")
			s.eventually("the policy "+c.applies, func() bool { return s.snapshot().Queues["theirs"].Policy == c.applies })
			d, ok, err := s.amqp.Get("theirs", false)
			if err != nil || !ok || d.Reject(false) != nil {
				t.Fatal(ok, err)
			}
			s.counted("async.failed", 1)
		})
	}
}

// deletedButForTheWayOutOf deletes the Transport, and expects that it says what it leaves for a queue.
func (s *stage) deletedButForTheWayOutOf(queue string) {
	s.t.Helper()
	gone, done := false, apply.DeleteReport{}
	s.eventually("the deletion to end", func() bool {
		s.allCounted()
		done = s.remove(gone, false)
		gone = gone || done.Drained
		s.later(max(done.RequeueAfter, 11*time.Second))
		return done.Done
	})
	if len(done.Left) != 1 || !strings.Contains(done.Left[0].Message, "queue "+queue+" dead-letters to it") || s.exists("async.fallback.1s") {
		s.t.Errorf("left is %v", done.Left)
	}
}
