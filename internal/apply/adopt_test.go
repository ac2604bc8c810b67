package apply_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

// legacy makes a queue as somebody else does, with one message in it.
func (s *stage) legacy(arguments amqp091.Table) {
	s.t.Helper()
	if _, err := s.amqp.QueueDeclare("legacy", true, false, false, false, arguments); err != nil {
		s.t.Fatal(err)
	}
	s.publish("", "legacy", nil)
	s.counted("legacy", 1)
	s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: "legacy", Adopt: new(true), BindingKeys: []string{"legacy"}})
}

// bindings are the names of what leads into a queue.
func (s *stage) bindings(queue string) []string {
	s.t.Helper()
	bindings, err := s.client.Bindings(context.Background(), queue)
	if err != nil {
		s.t.Fatal(err)
	}
	names := make([]string, len(bindings))
	for i, binding := range bindings {
		names[i] = binding.Name()
	}
	slices.Sort(names)
	return names
}

func TestAdoption_LosesNothingAndLeavesTheQueueAsItWas(t *testing.T) {
	t.Parallel()
	for name, arguments := range map[string]amqp091.Table{
		"classic": nil, "quorum": {"x-queue-type": "quorum"}, "quorum with a bound": {"x-queue-type": "quorum", "x-max-length": int32(100)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.legacy(arguments)
			first := s.once()
			if !first.Converged() || !slices.Equal(first.Adopted, []string{"queue/legacy"}) || slices.Contains(first.Created, "queue/legacy") {
				t.Fatalf("adopted %v, created %v, conflicts %v, problems %v", first.Adopted, first.Created, first.Conflicts, first.Problems)
			}
			s.writes.Store(0)
			if s.once(); s.writes.Load() > 0 {
				t.Errorf("%d writes in the second run", s.writes.Load())
			}
			s.publish("async.return", "legacy", nil)
			s.publish("async", "legacy", nil)
			s.counted("legacy", 3)
			s.eventually("the policy to apply", func() bool {
				state, err := s.client.Queue(context.Background(), "legacy")
				return err == nil && state.Policy == "redrive.async:queue:legacy"
			})
			if err := s.get("legacy").Reject(false); err != nil {
				t.Fatal(err)
			}
			s.take("async.failed")

			s.spec.Spec.Queues = s.spec.Spec.Queues[:2]
			report := s.once()
			if want := []string{`async.return -> legacy "legacy"`}; !slices.Equal(s.bindings("legacy"), want) || len(report.Retiring) != 2 {
				t.Errorf("while workers may consume it: bindings %q, retiring %+v", s.bindings("legacy"), report.Retiring)
			}
			s.later(10*time.Minute + 10*time.Second) // and what lanes may hold
			report = s.once()
			if got := steps(report.Steps); got != "- binding async.return -> legacy \"legacy\"\n- policy redrive.async:queue:legacy" {
				t.Errorf("later:\n%s", got)
			}
			s.untilRetired()
			s.once()
			if report = s.once(); len(s.bindings("legacy"))+len(report.Retiring)+len(report.Steps) > 0 {
				t.Errorf("at last: %+v", report)
			}
			s.take("legacy")
			s.take("legacy")
		})
	}
}

func TestAdoption_LastsWhileAConfigurationNamesTheQueue(t *testing.T) {
	s := newStage(t)
	s.legacy(nil)
	s.once()
	s.spec.Spec.Queues = s.spec.Spec.Queues[:2]
	in := s.input()
	for range 3 {
		in.Published, in.Now = naming("legacy"), in.Now.Add(time.Hour)
		report, err := apply.Once(context.Background(), s.client, in, keep)
		if err != nil {
			t.Fatal(err)
		}
		if len(report.Retiring) != 2 || report.Retiring[0].Since != nil || report.Retiring[1].Since != nil || report.RequeueAfter <= 0 {
			t.Fatalf("retiring %+v", report.Retiring)
		}
		in.State.Retiring = report.Retiring
	}
	if want := []string{`async.return -> legacy "legacy"`}; !slices.Equal(s.bindings("legacy"), want) {
		t.Errorf("bindings %q", s.bindings("legacy"))
	}
}

// A quarantined message that fails without a crash is retried in its work queue. The way back was taken when workers had let go of that for ten minutes.
func TestAdoption_LastsWhileMessagesOfTheQueueAreQuarantined(t *testing.T) {
	s := newStage(t)
	s.legacy(nil)
	s.once()
	s.publish("async.return", "legacy.quarantine", nil)
	s.counted("legacy.quarantine", 1)
	s.spec.Spec.Queues = s.spec.Spec.Queues[:2]
	for range 3 {
		s.once()
		if want := []string{`async.return -> legacy "legacy"`}; !slices.Equal(s.bindings("legacy"), want) {
			t.Fatalf("bindings %q", s.bindings("legacy"))
		}
		s.later(time.Hour)
	}
	s.handle("legacy.quarantine", 1, acknowledge)
	s.counted("legacy.quarantine", 0)
	if report := s.once(); report.RequeueAfter < 9*time.Minute || len(s.bindings("legacy")) != 1 {
		t.Errorf("the last message may be in a lane: %+v", report)
	}
	s.untilRetired()
	if left := s.bindings("legacy"); len(left) > 0 || s.exists("legacy.quarantine") || !s.exists("legacy") {
		t.Errorf("left: %q", left)
	}
}

func TestAdoption_KeepsTheQueueBeyondItsTransport(t *testing.T) {
	t.Parallel()
	for name, force := range map[string]bool{"with DeleteIfEmpty": false, "with Delete": true} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: "plain", Type: new(v1alpha1.QueueClassic)})
			s.legacy(nil)
			s.once()
			t.Log("what the Transport made itself is adopted too")
			s.spec.Spec.Queues[1].Adopt = new(true) // test
			s.spec.Spec.Queues[2] = v1alpha1.Queue{Name: "plain", Adopt: new(true)}
			report := s.once()
			slices.Sort(report.Adopted)
			if want := []string{"queue/legacy", "queue/plain", "queue/test"}; !slices.Equal(report.Adopted, want) ||
				!slices.Equal(report.Created, []string{"exchange/async"}) {
				t.Fatalf("adopted %v, created %v", report.Adopted, report.Created)
			}
			t.Log("and stays when it leaves the spec")
			s.allCounted()
			s.spec.Spec.Queues = slices.Delete(s.spec.Spec.Queues, 1, 2)
			s.once()
			if report = s.untilRetired(); !slices.Contains(report.Adopted, "queue/test") || !s.exists("test") {
				t.Fatalf("adopted %v", report.Adopted)
			}
			t.Log("and when the Transport is deleted")
			s.remove(false, force)
			for !s.remove(true, force).Done {
				s.later(30 * time.Second)
			}
			observed := s.allCounted()
			if len(observed.Queues) != 4 || len(observed.Policies) != 1 || len(observed.Bindings) != 1 { // with the failure queue, to which they dead-letter
				t.Errorf("left are %d queues, policies %v, bindings %v", len(observed.Queues), observed.Policies, observed.Bindings)
			}
			s.take("legacy")
		})
	}
}

func TestPrefix_LetsASecondTransportChangeNothing(t *testing.T) {
	s := newStage(t)
	s.once()
	loser := s.beside("async")
	loser.owner, loser.lanes = "c2/shop/async", slices.Concat(s.lanes, retry.Lanes{9 * time.Second})
	loser.spec.Spec.Queues = append(loser.spec.Spec.Queues, v1alpha1.Queue{Name: "lost"})
	before := s.allCounted()
	loser.writes.Store(0)
	report := loser.once()
	if loser.writes.Load()+int64(len(report.Steps)) > 0 || len(report.Created) > 0 {
		t.Errorf("it wrote %s, created %v", steps(report.Steps), report.Created)
	}
	for _, conflict := range report.Conflicts {
		if !strings.Contains(conflict.String(), "the Transport shop/async of another cluster (c1)") {
			t.Errorf("%s", conflict)
		}
	}
	if len(report.Conflicts) == 0 {
		t.Error("it says nothing of the other")
	}
	loser.remove(false, true)
	if deleted := loser.remove(true, true); !deleted.Done || len(deleted.Steps) > 0 {
		t.Errorf("its deletion: %s", steps(deleted.Steps))
	}
	after := s.allCounted()
	if len(after.Queues) != len(before.Queues) || len(after.Exchanges) != len(before.Exchanges) ||
		len(after.Bindings) != len(before.Bindings) || len(after.Policies) != len(before.Policies) {
		t.Errorf("before %+v\nafter %+v", before, after)
	}
	s.writes.Store(0)
	if s.once(); s.writes.Load() > 0 {
		t.Errorf("the first has %d writes to do", s.writes.Load())
	}
}

// racing lets another Transport make everything right before one of the steps of the first.
type racing struct {
	apply.Port
	before string
	race   func()
}

func (r *racing) Apply(ctx context.Context, step topology.Step) (bool, error) {
	if race := r.race; race != nil && strings.HasPrefix(step.String(), r.before) {
		r.race = nil
		race()
	}
	return r.Port.Apply(ctx, step)
}

func TestOnce_SettlesARaceOfTwoThatMakeTheSame(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"from the beginning": "+ policy", "before the first exchange": "+ exchange async.failed ", "before a queue": "+ queue test ",
		"before the producers' exchange": "+ exchange async ",
	}
	for name, before := range cases {
		for _, otherOwner := range []string{owner, "c2/shop/async"} {
			t.Run(name+" "+otherOwner, func(t *testing.T) {
				s := newStage(t)
				other := s.beside("async")
				other.spec, other.owner = s.spec, otherOwner
				var written []string
				_, err := apply.Once(context.Background(), &racing{Port: s.client, before: before, race: func() {
					if otherOwner == owner {
						other.state.Created = written
					}
					other.once()
				}}, s.input(), func(_ context.Context, created []string) error {
					written = created
					return nil
				})
				var overtaken *apply.OvertakenError
				if err != nil && !errors.As(err, &overtaken) {
					t.Fatal(err)
				}
				// The other has written its status meanwhile, so what this one found is not written any more.
				s.state.Created = written
				if otherOwner == owner {
					report := s.once()
					if len(report.Conflicts)+len(report.Adopted)+len(report.Steps) > 0 || !slices.Equal(report.Created, []string{"exchange/async"}) {
						t.Errorf("%+v", report)
					}
					return
				}
				for range 2 {
					s.once()
					other.once()
				}
				// One keeps it all, whoever made the first exchange, and the other has nothing left there.
				conflicts := [2]int{len(s.once().Conflicts), len(other.once().Conflicts)}
				if (conflicts[0] == 0) == (conflicts[1] == 0) {
					t.Errorf("conflicts of the two: %v", conflicts)
				}
			})
		}
	}
}

// A failure queue that was there before is not ours to delete. What failed stays in it, whatever somebody's policy for all queues says.
func TestAdoption_KeepsThePolicyOfAFullFailureQueue(t *testing.T) {
	for _, how := range []string{"another failure queue", "deleted"} {
		t.Run(how, func(t *testing.T) {
			s := newStage(t)
			if _, err := s.amqp.QueueDeclare("async.failed", true, false, false, false, amqp091.Table{"x-queue-type": "quorum"}); err != nil {
				t.Fatal(err)
			}
			if _, err := s.client.Apply(t.Context(), topology.Step{Action: topology.ActionCreate, Policy: &topology.Policy{
				Name: "housekeeping", Pattern: ".*", ApplyTo: "queues", Definition: topology.Arguments{"max-length": 3},
			}}); err != nil {
				t.Fatal(err)
			}
			s.once()
			for range 10 {
				s.publish("async.failed", "test", nil)
			}
			s.counted("async.failed", 10)
			if how == "deleted" {
				s.untilDrained()
				if report := s.untilBlocked(); !report.Done || !slices.ContainsFunc(report.Left, func(left topology.Finding) bool {
					return left.Object.Name == "async.failed"
				}) {
					t.Errorf("it is not told that the policy is left: %+v", report)
				}
			} else {
				s.spec.Spec.Failure = &v1alpha1.Failure{Queue: new("async.dead")}
				s.once()
				s.once()
			}
			for range 10 {
				s.take("async.failed")
			}
		})
	}
}
