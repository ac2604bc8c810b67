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
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/topology"
)

// stalling is a Transport that stands, with a lane of which the test says how many expired messages do not leave it.
type stalling struct {
	*remembering

	in apply.Input
}

const (
	stuckLane  = "async.fallback.1s"
	otherLane  = "async.fallback.5s"
	lanePolicy = "redrive.async:lanes"
)

func newStalling(t *testing.T) *stalling {
	t.Helper()
	s := &stalling{newRemembering(), input(t)}
	desired, err := topology.Desired(async(), compile.Needs{Lanes: retry.Lanes{time.Second, 5 * time.Second}}, owner)
	if err != nil {
		t.Fatal(err)
	}
	s.in.Desired = desired
	s.settle(t, &s.in)
	for name, queue := range s.observed.Queues {
		queue.Messages = new(int64)
		switch name {
		case stuckLane, otherLane:
			queue.Policy = lanePolicy
		case "test", "test.quarantine":
			queue.Policy = "redrive.async:queue:" + name
		}
		s.observed.Queues[name] = queue
	}
	return s
}

// has lets a queue have so many expired messages, of which so many have left it since the last time.
func (s *stalling) has(queue string, expired, left int64) {
	state := s.observed.Queues[queue]
	state.Published += left
	state.MessagesDLX, state.Messages = expired, new(expired)
	s.observed.Queues[queue] = state
}

// look runs once, some time after the last run, with so many expired messages in the lane, of which so many have left it since.
func (s *stalling) look(t *testing.T, after time.Duration, expired, left int64) apply.Report {
	t.Helper()
	s.has(stuckLane, expired, left)
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

// touched are the times of an hour, with a look every 5 s, at which the policy of the lane is changed. expired says how many messages the
// lane has, of which `left` leave it between two looks.
func (s *stalling) touched(t *testing.T, expired func(at time.Duration) int64, left int64) (times []time.Duration) {
	t.Helper()
	for at := 5 * time.Second; at < time.Hour; at += 5 * time.Second {
		before := s.observed.Policies[lanePolicy].Priority
		s.look(t, 5*time.Second, expired(at), left)
		if s.observed.Policies[lanePolicy].Priority != before {
			times = append(times, at)
		}
	}
	return times
}

func always(expired int64) func(time.Duration) int64 {
	return func(time.Duration) int64 { return expired }
}

func TestTouch_HelpsALaneThatExpiredMessagesDoNotLeave(t *testing.T) {
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
	if report := s.look(t, 6*time.Second, 3, 0); len(report.Touched) > 0 {
		t.Errorf("touched again after 6 s: %v", report.Touched)
	}
	if report := s.look(t, 6*time.Second, 3, 0); len(report.Touched) != 1 || s.observed.Policies[lanePolicy].Priority != before.Priority {
		t.Errorf("touched after 12 s are %v, the policy is %+v", report.Touched, s.observed.Policies[lanePolicy])
	}
	if report := s.look(t, 6*time.Second, 0, 3); report.RequeueAfter != 0 || len(report.Warnings) > 0 {
		t.Errorf("when all have left it, the next look is in %s, and told is %v", report.RequeueAfter, report.Warnings)
	}
}

func TestTouch_HappensAFewTimes(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for name, c := range map[string]struct {
		// restarted is true where the broker was started again just now.
		restarted bool
		expired   func(at time.Duration) int64
		left      int64
		want      []time.Duration
	}{
		"what helps nothing, twice":                 {expired: always(3), want: []time.Duration{15 * second, 25 * second}},
		"what helps nothing after a restart, twice": {restarted: true, expired: always(3), want: []time.Duration{5 * second, 15 * second}},
		"what always has some on their way, three times": {
			expired: always(20), left: 100, want: []time.Duration{15 * second, 25 * second, 35 * second},
		},
		"the same after a restart": {
			restarted: true, expired: always(20), left: 100, want: []time.Duration{5 * second, 15 * second, 25 * second},
		},
		"what stalls once more within 5 minutes after a restart, only then": {restarted: true, expired: func(at time.Duration) int64 {
			if at == 5*second || at > time.Minute && at < 2*time.Minute || at > 3*time.Minute {
				return 3
			}
			return 0
		}, want: []time.Duration{5 * second, 300 * second}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStalling(t)
			if c.restarted {
				s.in.State.Restarted = s.in.Now
			}
			if got := s.touched(t, c.expired, c.left); !slices.Equal(got, c.want) {
				t.Errorf("touched at %v, want %v", got, c.want)
			}
		})
	}
}

func TestTouch_IsSharedByLanesThatStallOneAfterAnother(t *testing.T) {
	s := newStalling(t)
	s.in.State.Restarted = s.in.Now
	times := s.touched(t, func(at time.Duration) int64 {
		s.has(otherLane, int64(at/(10*time.Second))%2, 100)
		return int64(at/(5*time.Second)) % 2
	}, 100)
	if len(times) == 0 || len(times) > 3 {
		t.Errorf("touched at %v", times)
	}
}

func TestTouch_BeginsAgainAfterAnotherRestart(t *testing.T) {
	t.Parallel()
	s := newStalling(t)
	for range 3 {
		s.in.State.Restarted = s.in.Now
		if got := s.touched(t, func(at time.Duration) int64 {
			if at > 10*time.Second {
				return 0
			}
			return 3
		}, 0); !slices.Equal(got, []time.Duration{5 * time.Second}) {
			t.Fatalf("touched at %v", got)
		}
		s.in.Now = s.in.Now.Add(-time.Hour + time.Minute)
	}
}

func TestLookAfterRestart_IsDueThreeTimes(t *testing.T) {
	restarted := time.Now()
	var looks []time.Duration
	for at := restarted; ; {
		after, due := apply.LookAfterRestart(restarted, at)
		if !due {
			break
		}
		at = at.Add(after)
		looks = append(looks, at.Sub(restarted))
	}
	if !slices.Equal(looks, []time.Duration{5 * time.Second, 14 * time.Second, 30 * time.Second}) {
		t.Errorf("looks after %v", looks)
	}
	if _, due := apply.LookAfterRestart(time.Time{}, restarted); due {
		t.Error("without a restart a look is due")
	}
}

// Queues of each kind that dead-letter at-least-once stall alike.
func TestTouch_HelpsWorkAndQuarantineQueuesToo(t *testing.T) {
	s := newStalling(t)
	s.in.State.Restarted = s.in.Now
	s.has("test", 3, 0)
	s.has("test.quarantine", 2, 0)
	report := s.look(t, 5*time.Second, 1, 0)
	slices.Sort(report.Touched)
	if want := []string{stuckLane, "test", "test.quarantine"}; !slices.Equal(report.Touched, want) {
		t.Errorf("touched are %v, want %v", report.Touched, want)
	}
}

func TestTouch_WarnsOfALaneThatItDoesNotHelp(t *testing.T) {
	for name, c := range map[string]struct {
		expired      int64
		full, steady bool
		want         string
	}{
		"few":                        {expired: 3, want: "the broker started the lane before its work queue; it sends again 180 s after its start"},
		"so many that it is stopped": {expired: 32, want: "the broker started the lane before its work queue; it sends again 180 s after its start"},
		"where a queue is full":      {expired: 32, full: true, want: "queue test is full"},
		"of a broker that was not restarted": {
			expired: 3, steady: true, want: "a queue that they go to takes none; look for a node that stands still, or a queue without a leader",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStalling(t)
			if !c.steady {
				s.in.State.Restarted = s.in.Now
			}
			if c.full {
				queue := s.observed.Queues["test"]
				queue.EffectiveDefinition = topology.Arguments{"max-length": int64(1), "overflow": "reject-publish"}
				queue.Ready = 1
				s.observed.Queues["test"] = queue
			}
			var told []topology.Finding
			for at := 5 * time.Second; at <= time.Minute; at += 5 * time.Second {
				report := s.look(t, 5*time.Second, c.expired, 0)
				told = slices.DeleteFunc(report.Warnings, func(f topology.Finding) bool { return f.Object.Name != stuckLane })
				if at == time.Minute && report.RequeueAfter != 0 {
					t.Errorf("after all touches the next look is in %s", report.RequeueAfter)
				}
			}
			if len(told) != 1 || told[0].Reason != v1alpha1.ReasonLaneStalled || told[0].Passing || !strings.Contains(told[0].Message, c.want) ||
				strings.Contains(told[0].Message, "dead_letter_worker_publisher_confirm_timeout") == (c.full || c.steady) {
				t.Errorf("told is %v", told)
			}
			if report := s.look(t, 3*time.Minute, 0, c.expired); slices.ContainsFunc(report.Warnings, func(f topology.Finding) bool {
				return f.Reason == v1alpha1.ReasonLaneStalled
			}) {
				t.Errorf("when all have left it, told is %v", report.Warnings)
			}
		})
	}
}

func TestTouch_DoesNotWarnOfALaneWithMuchTraffic(t *testing.T) {
	s := newStalling(t)
	for range 100 {
		if report := s.look(t, 6*time.Second, 20, 100); len(report.Warnings) > 0 {
			t.Fatalf("told is %v", report.Warnings)
		}
	}
}

// What is known of them is kept until the next look, and a server may list any number.
func TestTouch_IgnoresUnknownQueuesUnderOurPolicy(t *testing.T) {
	s := newStalling(t)
	forged := func(name string) {
		s.observed.Queues[name] = topology.QueueState{Queue: topology.Queue{Name: name}, Policy: lanePolicy, MessagesDLX: 1}
	}
	forged("forged")
	for at := time.Duration(0); at < time.Minute; at += 5 * time.Second {
		if report := s.look(t, 5*time.Second, 0, 0); len(report.Touched)+len(report.Warnings) > 0 || report.RequeueAfter > 0 {
			t.Fatalf("touched %v, warnings %v, next look in %s", report.Touched, report.Warnings, report.RequeueAfter)
		}
	}
	s.in.State.Retiring = []v1alpha1.Retirement{{Queue: "forged"}}
	if report := s.look(t, 5*time.Second, 0, 0); report.RequeueAfter == 0 {
		t.Error("one that is on its way out is not followed")
	}
}

func TestTouch_LeavesPoliciesOfOthersAlone(t *testing.T) {
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
func TestTouch_FreesALaneSoonAfterItsExchangeIsBack(t *testing.T) {
	t.Parallel()
	s := newStageOn(t, testbroker.Private(t, testbroker.LongConfirmTimeout))
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

// With the smaller priority it would have that of the other one, or a lower one, and RabbitMQ would apply the other: one that expires queues, say.
func TestTouch_AvoidsThePriorityOfAnotherPolicy(t *testing.T) {
	for _, below := range []int{0, 1} {
		s := newStalling(t)
		s.observed.Policies["theirs"] = topology.Policy{
			Name: "theirs", Pattern: ".*", ApplyTo: "queues", Priority: s.observed.Policies[lanePolicy].Priority - below,
			Definition: topology.Arguments{"expires": int64(1000)},
		}
		if times := s.touched(t, func(time.Duration) int64 { return 3 }, 0); len(times) > 0 {
			t.Errorf("beside one that is %d below it is touched at %v", below, times)
		}
		delete(s.observed.Policies, "theirs")
		if times := s.touched(t, func(time.Duration) int64 { return 3 }, 0); len(times) == 0 {
			t.Error("nor without that one: this shows nothing")
		}
	}
}

// A policy that was touched stayed one below its priority for good. One of somebody else that came with just that priority later won on some versions of
// RabbitMQ, and was not told of: it could expire lanes with their messages.
func TestTouch_RestoresThePriorityWhereAnotherPolicyHasTheLower(t *testing.T) {
	s := newStalling(t)
	policy := s.observed.Policies[lanePolicy]
	wanted := policy.Priority
	policy.Priority--
	s.observed.Policies[lanePolicy] = policy
	s.look(t, 5*time.Second, 0, 0) // with no step
	s.observed.Policies["theirs"] = topology.Policy{
		Name: "theirs", Pattern: ".*", ApplyTo: "queues", Priority: policy.Priority, Definition: topology.Arguments{"expires": int64(1000)},
	}
	s.in.Now = s.in.Now.Add(5 * time.Second)
	if report, err := apply.Once(t.Context(), s, s.in, keep); err != nil || len(report.Steps) != 1 {
		t.Fatalf("steps %s: %v", steps(report.Steps), err)
	}
	if got := s.observed.Policies[lanePolicy].Priority; got != wanted {
		t.Errorf("priority %d, want %d", got, wanted)
	}
}
