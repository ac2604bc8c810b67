package apply_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

// A lane that has left the spec has no binding by which a list could be seen to lack it. One list that did had the way back into a queue that leaves, by a former
// name, and into an adopted queue deleted at once: the retries of that lane failed with retries left.
func TestLeaving_KeepsTheWayBackWhereOneListLacksALaneThatLeaves(t *testing.T) {
	for _, lie := range []bool{false, true} {
		t.Run(map[bool]string{false: "honest", true: "one list lacks the lane"}[lie], func(t *testing.T) {
			play(t, func(s *scene) {
				s.needs.Lanes = retry.Lanes{24 * time.Hour}
				s.looks(3)
				s.b.enqueue(s.b.queues["async.fallback.24h"], simulatedMessage{id: 7, key: "test"})
				// The policy has shorter delays now, and the queue leaves the spec.
				s.needs.Lanes = retry.Lanes{time.Minute}
				s.spec.Spec.Queues = []v1alpha1.Queue{other()}
				s.workers = working("other")
				s.looks(150) // 25 minutes
				if lie {
					s.unlisted = "async.fallback.24h"
				}
				s.looks(1)
				s.unlisted = ""
				s.looks(24 * 360)
				if q := s.b.queues["test"]; q == nil || !slices.Contains(s.holds("test"), 7) {
					t.Errorf("queue test there: %v, and the failure queue has %v", q != nil, s.holds("async.failed"))
				}
			})
		})
	}
}

func TestFormer_KeepsTheWayWhereOneListLacksALaneThatLeaves(t *testing.T) {
	for _, lie := range []bool{false, true} {
		t.Run(map[bool]string{false: "honest", true: "one list lacks the lane"}[lie], func(t *testing.T) {
			play(t, func(s *scene) {
				s.needs.Lanes = retry.Lanes{24 * time.Hour}
				s.looks(3)
				s.b.enqueue(s.b.queues["async.fallback.24h"], simulatedMessage{id: 7, key: "test"})
				s.renamed()
				s.looks(60)
				s.workers = working("orders", "other")
				s.spec.Spec.Queues[0].PreviousNames = nil
				s.needs.Lanes = retry.Lanes{time.Minute}
				s.looks(150)
				if lie {
					s.unlisted = "async.fallback.24h"
				}
				s.looks(1)
				s.unlisted = ""
				s.looks(24 * 360)
				if !slices.Contains(s.holds("orders"), 7) {
					t.Errorf("orders holds %v, and the failure queue has %v", s.holds("orders"), s.holds("async.failed"))
				}
			})
		})
	}
}

func TestAdopted_KeepsTheWayBackWhereOneListLacksALaneThatLeaves(t *testing.T) {
	for _, lie := range []bool{false, true} {
		t.Run(map[bool]string{false: "honest", true: "one list lacks the lane"}[lie], func(t *testing.T) {
			play(t, func(s *scene) {
				s.needs.Lanes = retry.Lanes{24 * time.Hour}
				_, _ = s.b.declareQueue(quorumOf("theirs"))
				s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: "theirs", Adopt: new(true), BindingKeys: []string{"theirs"}})
				s.workers = working("test", "other", "theirs")
				s.looks(3)
				s.b.enqueue(s.b.queues["async.fallback.24h"], simulatedMessage{id: 7, key: "theirs"})
				s.needs.Lanes = retry.Lanes{time.Minute}
				s.spec.Spec.Queues = s.spec.Spec.Queues[:2]
				s.workers = working("test", "other")
				s.looks(150)
				if lie {
					s.unlisted = "async.fallback.24h"
				}
				s.looks(1)
				s.unlisted = ""
				s.looks(24 * 360)
				if !slices.Contains(s.holds("theirs"), 7) {
					t.Errorf("theirs holds %v, and the failure queue has %v", s.holds("theirs"), s.holds("async.failed"))
				}
			})
		})
	}
}

// One half of a swap was done, look after look, while RabbitMQ refused the other one or another object: whoever bound a queue by that key got all
// messages alone.
func TestMigration_LeavesNoSwapHalfDone(t *testing.T) {
	makesQueue := func(name string) func(topology.Step) bool {
		return func(step topology.Step) bool { return step.Queue != nil && step.Queue.Name == name }
	}
	makesWay := func(source, to string) func(topology.Step) bool {
		return func(step topology.Step) bool {
			into := step.Action == topology.ActionCreate && step.Binding != nil && step.Binding.Destination == to
			return into && (source == "" || step.Binding.Source == source)
		}
	}
	tests := map[string]struct {
		step    v1alpha1.MigrationStep
		change  func(*v1alpha1.TransportSpec)
		refuses func(topology.Step) bool
		goesOn  bool
	}{
		"a failure queue, while diverting": {
			v1alpha1.MigrationPrepare, func(spec *v1alpha1.TransportSpec) { spec.Failure = &v1alpha1.Failure{Queue: new("bad")} }, makesQueue("bad"), false,
		},
		"a failure queue, while restoring": {
			v1alpha1.MigrationRecreate, func(spec *v1alpha1.TransportSpec) { spec.Failure = &v1alpha1.Failure{Queue: new("bad")} }, makesQueue("bad"), false,
		},
		"the way into the stand-in":   {v1alpha1.MigrationPrepare, nil, makesWay("async", "test.migrating"), false},
		"the way back into the queue": {v1alpha1.MigrationRecreate, nil, makesWay("async", "test"), false},
		"all ways into the stand-in":  {v1alpha1.MigrationPrepare, nil, makesWay("", "test.migrating"), false},
		"all ways into the queue":     {v1alpha1.MigrationRecreate, nil, makesWay("", "test"), false},
		"the return of another queue": {
			v1alpha1.MigrationPrepare, func(spec *v1alpha1.TransportSpec) {
				spec.Queues = append(spec.Queues, v1alpha1.Queue{Name: "more", BindingKeys: []string{"more"}})
			},
			makesWay("async.return", "more"), true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				s.looks(3)
				if tt.step == v1alpha1.MigrationPrepare {
					s.fill("test", 5)
				}
				s.migratesTo(tt.step)
				s.refuses = tt.refuses
				if tt.change != nil {
					tt.change(&s.spec.Spec)
				}
				s.looks(12)
				if to := s.b.route("async", simulatedMessage{key: "test"}); len(to) == 0 || isFailure(to[0]) {
					t.Errorf("before the application binds: %v", to)
				}
				s.sharesItsKey()
				if to := s.b.route("async", simulatedMessage{key: "more"}); slices.Contains(to, "more") {
					t.Error("a queue gets messages that has no way back from the lanes")
				}
				if stands := slices.ContainsFunc(s.state.Migrations, func(m v1alpha1.Migration) bool {
					return m.Step == v1alpha1.MigrationDivert || m.Step == v1alpha1.MigrationRestore
				}); stands == tt.goesOn {
					t.Errorf("the migration is at %+v", s.state.Migrations)
				}
			})
		})
	}
}

// migratesTo has the queue test migrated, up to a step.
func (s *scene) migratesTo(step v1alpha1.MigrationStep) {
	s.t.Helper()
	s.spec.Spec.Queues[0].Type = new(v1alpha1.QueueClassic)
	s.workers.Queues[0].Standin = "test.migrating"
	for range 60 {
		if len(s.state.Migrations) > 0 && s.state.Migrations[0].Step == step {
			return
		}
		s.looks(1)
	}
	s.t.Fatalf("it comes to no %s: %+v", step, s.state.Migrations)
}

// sharesItsKey has an application bind a queue of its own by the key of the queue test, which is to get the messages all the same.
func (s *scene) sharesItsKey() {
	s.t.Helper()
	_, _ = s.b.declareQueue(quorumOf("audit"))
	_ = s.b.bind(topology.Binding{Source: "async", Destination: "audit", RoutingKey: "test"})
	lost := 0
	for range 60 {
		if to := s.b.route("async", simulatedMessage{key: "test"}); !slices.Contains(to, "test") && !slices.Contains(to, "test.migrating") {
			lost++
		}
		s.looks(1)
	}
	if lost > 1 {
		s.t.Errorf("%d of 60 messages, in ten minutes, came to the application's queue only", lost)
	}
}

// killedAt is an operator that is killed before a step.
type killedAt struct {
	apply.Port

	at func(topology.Step) bool
}

func (k killedAt) Apply(ctx context.Context, step topology.Step) (bool, error) {
	if k.at(step) {
		return false, context.Canceled
	}
	return k.Port.Apply(ctx, step)
}

func TestMigration_LeavesNoSwapHalfDoneThatAKilledOperatorHasBegun(t *testing.T) {
	play(t, func(s *scene) {
		s.looks(3)
		s.fill("test", 5)
		s.migratesTo(v1alpha1.MigrationPrepare)
		at := func(step topology.Step) bool {
			return step.Action == topology.ActionCreate && step.Binding != nil && step.Binding.Destination == "test.migrating" && step.Binding.Source == "async"
		}
		for range 10 {
			if err := s.look(killedAt{s, at}); errors.Is(err, context.Canceled) {
				break
			}
			s.pass(10 * time.Second)
		}
		s.refuses = at
		s.looks(6)
		s.sharesItsKey()
	})
}

func quorumOf(name string) topology.Queue {
	return topology.Queue{Name: name, Type: topology.TypeQuorum, Durable: true, Arguments: topology.Arguments{"x-queue-type": "quorum"}}
}
