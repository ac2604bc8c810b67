package apply_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

// stalling is a Transport that stands, with a lane of which the test says how many expired messages do not leave it.
type stalling struct {
	*remembering

	in apply.Input
}

const (
	stuckLane  = "async.fallback.1s"
	lanePolicy = "redrive.async:lanes"
)

func newStalling(t *testing.T) *stalling {
	t.Helper()
	s := &stalling{newRemembering(), input(t)}
	desired, err := topology.Desired(async(), compile.Needs{Lanes: retry.Lanes{time.Second}}, owner)
	if err != nil {
		t.Fatal(err)
	}
	s.in.Desired = desired
	s.settle(t, &s.in)
	for name, queue := range s.observed.Queues {
		queue.Messages = new(int64)
		if name == stuckLane {
			queue.Policy = lanePolicy
		}
		s.observed.Queues[name] = queue
	}
	return s
}

// look runs once, some seconds after the last run, with so many expired messages in the lane, of which so many have left it since.
func (s *stalling) look(t *testing.T, after time.Duration, expired, left int64) apply.Report {
	t.Helper()
	lane := s.observed.Queues[stuckLane]
	lane.Published += left
	lane.MessagesDLX, lane.Messages = expired, new(expired)
	s.observed.Queues[stuckLane] = lane
	s.in.Now = s.in.Now.Add(after)
	report, err := apply.Once(t.Context(), s, s.in, keep)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Steps) > 0 {
		t.Errorf("steps: %s", steps(report.Steps))
	}
	s.in.State.Stuck = report.Stuck
	return report
}

func TestThePolicyOfALaneThatExpiredMessagesDoNotLeaveIsTouched(t *testing.T) {
	s := newStalling(t)
	for range 2 {
		if report := s.look(t, 6*time.Second, 3, 0); len(report.Touched) > 0 || report.RequeueAfter != 5*time.Second {
			t.Fatalf("touched are %v, the next look is in %s", report.Touched, report.RequeueAfter)
		}
	}
	if report := s.look(t, time.Second, 3, 0); len(report.Touched) > 0 {
		t.Errorf("touched after a second: %v", report.Touched)
	}
	before := s.observed.Policies[lanePolicy]
	if report := s.look(t, 6*time.Second, 3, 0); !slices.Equal(report.Touched, []string{stuckLane}) {
		t.Fatalf("touched are %v", report.Touched)
	}
	after := s.observed.Policies[lanePolicy]
	if after.Priority != before.Priority-1 || after.Pattern != before.Pattern {
		t.Errorf("the policy was %+v, and is %+v", before, after)
	}
	if report := s.look(t, 20*time.Second, 3, 0); len(report.Touched) > 0 {
		t.Errorf("touched again after 20 s: %v", report.Touched)
	}
	if report := s.look(t, 11*time.Second, 3, 0); len(report.Touched) != 1 || s.observed.Policies[lanePolicy].Priority != before.Priority {
		t.Errorf("touched after 30 s are %v, the policy is %+v", report.Touched, s.observed.Policies[lanePolicy])
	}
	if report := s.look(t, 6*time.Second, 0, 3); report.RequeueAfter != 0 || len(report.Warnings) > 0 {
		t.Errorf("when all have left it, the next look is in %s, and told is %v", report.RequeueAfter, report.Warnings)
	}
}

func TestALaneThatTouchesDoNotHelpIsToldOfAndLeftAlone(t *testing.T) {
	s := newStalling(t)
	touches, told := 0, time.Duration(0)
	for at := time.Duration(0); at < time.Hour; at += 6 * time.Second {
		report := s.look(t, 6*time.Second, 3, 0)
		touches += len(report.Touched)
		for _, warning := range report.Warnings {
			if warning.Reason != v1alpha1.ReasonLaneStalled || warning.Object.Name != stuckLane || warning.Passing ||
				!strings.Contains(warning.Message, "dead_letter_worker_publisher_confirm_timeout") {
				t.Fatalf("told is %v", report.Warnings)
			}
			if told == 0 {
				told = at
			}
		}
		if touches == 10 && report.RequeueAfter != 0 {
			t.Fatalf("after all touches the next look is in %s", report.RequeueAfter)
		}
	}
	if touches != 10 || told == 0 || told > 2*time.Minute {
		t.Errorf("%d touches, told after %s", touches, told)
	}
}

func TestALaneWithMuchTrafficIsNotToldOf(t *testing.T) {
	s := newStalling(t)
	for range 100 {
		if report := s.look(t, 6*time.Second, 20, 100); len(report.Warnings) > 0 {
			t.Fatalf("told is %v", report.Warnings)
		}
	}
}

func TestAPolicyOfSomebodyElseIsNotTouched(t *testing.T) {
	s := newStalling(t)
	lane := s.observed.Queues[stuckLane]
	lane.Policy = "theirs"
	s.observed.Queues[stuckLane] = lane
	s.observed.Policies["theirs"] = topology.Policy{Name: "theirs", Pattern: ".*", ApplyTo: "queues", Priority: 5000}
	for range 20 {
		if report := s.look(t, 6*time.Second, 3, 0); len(report.Touched) > 0 {
			t.Fatalf("touched are %v", report.Touched)
		}
	}
}

// Messages that expire while the exchange is gone stay in the lane when it is there again, for 180 s by RabbitMQ alone. So they do where
// a vhost of a broker before 4.2 starts its queues before its exchanges.
func TestExpiredMessagesLeaveALaneSoonAfterTheirExchangeIsBack(t *testing.T) {
	s := newStage(t)
	s.once()
	s.allCounted()
	if err := s.amqp.ExchangeDelete("async.return", false, false); err != nil {
		t.Fatal(err)
	}
	const messages = 3
	for range messages {
		s.publish("async.fallback", "test", amqp091.Table{message.HeaderLane: "1s"})
	}
	s.eventually("the messages to be expired", func() bool {
		queue, err := s.client.Queue(context.Background(), stuckLane)
		return err == nil && queue.MessagesDLX == messages
	})
	back := time.Now()
	touched := 0
	s.eventually("the messages to come back", func() bool {
		s.now = time.Now()
		report := s.once()
		touched += len(report.Touched)
		queue, err := s.client.Queue(context.Background(), "test")
		return err == nil && queue.Messages != nil && *queue.Messages == messages
	})
	t.Logf("they were back after %s", time.Since(back).Round(time.Second))
	if touched == 0 {
		t.Error("they came back without a touch, so this shows nothing")
	}
	if report := s.once(); len(report.Steps) > 0 {
		t.Errorf("what was touched is changed back: %s", steps(report.Steps))
	}
}
