package apply_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// betweenCounts goes to the moment after the first count of queue test on its way out of the spec, with the broker's figures fresh.
func (s *stage) betweenCounts() {
	s.t.Helper()
	s.once()
	s.allCounted()
	s.spec.Spec.Queues = s.spec.Spec.Queues[:1]
	s.once()
	for s.later(16 * time.Second); s.retiring("test").Empty == nil; s.later(16 * time.Second) {
		s.once()
		if !s.exists("test") {
			s.t.Fatal("it is gone too early")
		}
	}
}

func (s *stage) mustKeep(queue string) {
	s.t.Helper()
	if !s.exists(queue) {
		s.t.Fatalf("the queue was deleted with a message in it: %+v", s.state.Retiring)
	}
}

func TestRetirement_KeepsAMessageThatComesBackBetweenCounts(t *testing.T) {
	s := newStage(t)
	s.betweenCounts()
	s.publish("async.fallback", "test", amqp091.Table{"redrive-lane": "1s"})
	arrived := ""
	s.eventually("the message to come back", func() bool {
		for _, queue := range []string{"test", "async.failed"} {
			if state, err := s.amqp.QueueDeclarePassive(queue, true, false, false, false, nil); err == nil && state.Messages == 1 {
				arrived = queue
			}
		}
		return arrived != ""
	})
	s.later(11 * time.Second)
	s.once() // The broker's figures do not show the message yet.
	s.mustKeep(arrived)
}

func TestRetirement_KeepsAQueueThatIsBoundBetweenCounts(t *testing.T) {
	s := newStage(t)
	s.betweenCounts()
	if err := s.amqp.QueueBind("test", "theirs", "async", false, nil); err != nil {
		t.Fatal(err)
	}
	s.publish("async", "theirs", nil)
	before := s.state
	s.later(11 * time.Second)
	s.once()
	s.mustKeep("test")
	// Whoever carried that out was killed, and the next one has the state from before.
	s.state = before
	s.once()
	s.mustKeep("test")
}

func TestDeletion_KeepsAWorkQueueThatIsBoundMeanwhile(t *testing.T) {
	s := newStage(t)
	s.once()
	s.allCounted()
	for step := 0; ; step++ {
		report := s.remove(true, false)
		counted := false
		for _, state := range s.state.Retiring {
			counted = counted || state.Queue == "test" && state.Empty != nil
		}
		if counted {
			break
		}
		if report.Done || step > 20 {
			t.Fatalf("queue test was never counted: %+v", report)
		}
		s.later(report.RequeueAfter + time.Second)
	}
	if err := s.amqp.QueueBind("test", "theirs", "async", false, nil); err != nil {
		t.Fatal(err)
	}
	s.publish("async", "theirs", nil)
	before := s.state
	s.later(11 * time.Second)
	s.remove(true, false)
	s.mustKeep("test")
	s.state = before
	s.remove(true, false)
	s.mustKeep("test")
}

func TestRetirement_CountsAQueueAgainThatIsPublishedInto(t *testing.T) {
	s := newStage(t)
	s.betweenCounts()
	before, err := s.client.Queue(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	s.publish("", "test", nil) // Nobody can be kept from that. What comes after the last count is lost.
	s.take("test")
	s.eventually("the broker to count what was published", func() bool {
		state, err := s.client.Queue(t.Context(), "test")
		return err == nil && state.Published > before.Published && state.Messages != nil && *state.Messages == 0
	})
	s.later(11 * time.Second)
	s.once()
	s.mustKeep("test")
	s.later(12 * time.Second)
	s.once()
	if s.exists("test") {
		t.Errorf("it is still there: %+v", s.state.Retiring)
	}
}

func TestDeletion_LosesNothingToABrokerKilledInAnyStage(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	b := testbroker.Private(t)
	s := newStageOn(t, b)
	s.once()
	s.allCounted()
	s.publish("async", "test", nil)
	s.publish("async.fallback", "lost", amqp091.Table{"redrive-lane": "3s"})
	s.publish("async.failed", "", nil)
	kill := func(when string) {
		t.Helper()
		t.Log("the broker is killed", when)
		if err := b.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := apply.Delete(t.Context(), s.client, apply.DeleteInput{Owner: s.owner, Prefix: "async", State: s.state}); !errors.Is(err, broker.ErrUnreachable) {
			t.Errorf("without a broker: %v", err)
		}
		if err := b.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.amqp = s.channel()
	}
	until := func(workersGone bool, reached func(apply.DeleteReport) bool) {
		t.Helper()
		for began := time.Now(); ; {
			report := s.remove(workersGone, false)
			if reached(report) {
				return
			}
			if report.Done || time.Since(began) > 3*time.Minute {
				t.Fatalf("it does not come to the stage: %+v", report)
			}
			s.allCounted()
			s.later(report.RequeueAfter + time.Second)
		}
	}
	counted := func(queue string) func(apply.DeleteReport) bool {
		return func(apply.DeleteReport) bool {
			return slices.ContainsFunc(s.state.Retiring, func(r v1alpha1.Retirement) bool { return r.Queue == queue && r.Empty != nil })
		}
	}
	s.remove(false, false)
	kill("when the ways in are cut")
	s.take("test")
	s.take("lost")
	s.counted("test", 0)
	s.counted("lost", 0)
	until(false, counted("test"))
	kill("between the counts of the drain")
	until(false, func(r apply.DeleteReport) bool { return r.Drained })
	until(true, counted("async.fallback.1s"))
	kill("between the counts of the lanes")
	until(true, counted("test"))
	kill("between the counts of the work queues")
	until(true, func(r apply.DeleteReport) bool {
		return slices.Equal(r.Blocked, []apply.Blocked{{Queue: "async.failed", Messages: 1}})
	})
	kill("while the failure queue holds a message")
	s.take("async.failed")
	s.counted("async.failed", 0)
	until(true, func(r apply.DeleteReport) bool { return r.Done })
	s.nothingIsLeft()
}

// realWaits are as short as is sound where the broker's figures are at most 5 s late, which is its default.
func realWaits() topology.Waits {
	return topology.Waits{Unbound: 7 * time.Second, Empty: 2 * time.Second}
}

// pass lets real time pass.
func (s *stage) pass(wait time.Duration) {
	s.t.Helper()
	select {
	case <-time.After(wait):
	case <-s.t.Context().Done():
	}
	s.now = time.Now()
}

func TestRetirement_LosesNothingUnderAPublisher(t *testing.T) {
	s := newStage(t)
	s.waits, s.now = realWaits(), time.Now()
	kept, going := "stays", []string{"q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8"}
	s.spec.Spec.Exchange.UnroutedTo = nil
	s.spec.Spec.Queues = []v1alpha1.Queue{{Name: kept, BindingKeys: []string{kept}}}
	for _, name := range going {
		s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: name, BindingKeys: []string{name}})
	}
	s.once()
	tr := newTraffic(s)
	for i := range 4 {
		tr.publisher(fmt.Sprintf("p%d", i), "async", slices.Concat(going, []string{kept})...)
	}
	consumed := slices.Concat(going, []string{kept})
	for _, queue := range slices.Clone(consumed) {
		consumed = append(consumed, queue+compile.QuarantineSuffix)
	}
	tr.worker(t.Context(), consumed...)
	s.eventually("messages to be handled", func() bool { return tr.count(handled) > 1000 })

	s.spec.Spec.Queues = s.spec.Spec.Queues[:1]
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for report := s.once(); len(s.state.Retiring) > 0; report = s.once() {
		if ctx.Err() != nil {
			t.Fatalf("they are still there: %+v", report)
		}
		s.pass(max(report.RequeueAfter, 100*time.Millisecond))
	}
	for _, name := range consumed[:len(going)] {
		if s.exists(name) || s.exists(name+compile.QuarantineSuffix) {
			t.Errorf("queue %s is still there", name)
		}
	}
	checkNothingLost(t, tr)
}

func TestDeletion_LosesNothingUnderAPublisher(t *testing.T) {
	s := newStage(t)
	s.waits, s.now = realWaits(), time.Now()
	s.once()
	tr := newTraffic(s)
	for i := range 4 {
		tr.publisher(fmt.Sprintf("p%d", i), "async", "test", "lost", "a key that nobody bound")
	}
	working, stopWorkers := context.WithCancel(t.Context())
	defer stopWorkers()
	for range 2 {
		tr.worker(working, "test", "lost", "test.quarantine", "lost.quarantine")
	}
	s.eventually("messages to be handled", func() bool { return tr.count(handled) > 1000 })

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	stopped := false
	// Workers that stop too early leave messages behind, and lose none.
	s.waits = topology.Waits{Unbound: time.Second, Empty: time.Second}
	for report := s.remove(false, false); !report.Done; report = s.remove(stopped, false) {
		if ctx.Err() != nil {
			t.Fatalf("it is still there: %+v", report)
		}
		if report.Drained && !stopped {
			stopWorkers()
			tr.workers.Wait()
			stopped, s.waits = true, realWaits()
		}
		for _, blocked := range report.Blocked {
			if stopped && !strings.HasPrefix(blocked.Queue, "async.fallback.") {
				tr.takeOut(blocked.Queue)
			}
		}
		s.pass(max(report.RequeueAfter, 100*time.Millisecond))
	}
	checkNothingLost(t, tr)
	s.nothingIsLeft()
}
