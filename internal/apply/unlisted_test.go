package apply_test

import (
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
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

// Where the failure queue was refused, one half of a swap was done, look after look: whoever bound a queue by that key got all messages alone.
func TestMigration_RemovesNoWayWhoseSuccessorIsSkipped(t *testing.T) {
	for _, step := range []v1alpha1.MigrationStep{v1alpha1.MigrationPrepare, v1alpha1.MigrationRecreate} {
		t.Run(string(step), func(t *testing.T) {
			play(t, func(s *scene) {
				s.looks(3)
				if step == v1alpha1.MigrationPrepare {
					s.fill("test", 5)
				}
				s.spec.Spec.Queues[0].Type = new(v1alpha1.QueueClassic)
				s.workers.Queues[0].Standin = "test.migrating"
				for range 60 {
					if len(s.state.Migrations) > 0 && s.state.Migrations[0].Step == step {
						break
					}
					s.looks(1)
				}
				// The failure queue gets another name, whose creation RabbitMQ refuses.
				s.refused = "bad"
				s.spec.Spec.Failure = &v1alpha1.Failure{Queue: new("bad")}
				s.looks(12)
				if to := s.b.route("async", simulatedMessage{key: "test"}); len(to) == 0 || isFailure(to[0]) {
					t.Errorf("before the application binds: %v", to)
				}
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
					t.Errorf("%d of 60 messages, in ten minutes, came to the application's queue only", lost)
				}
			})
		})
	}
}

func quorumOf(name string) topology.Queue {
	return topology.Queue{Name: name, Type: topology.TypeQuorum, Durable: true, Arguments: topology.Arguments{"x-queue-type": "quorum"}}
}
