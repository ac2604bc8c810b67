package apply_test

import (
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/retry"
)

const anHour = "async.fallback.1h"

// renamed has the scene's queue be called orders, and its workers follow.
func (s *scene) renamed() {
	s.spec.Spec.Queues = []v1alpha1.Queue{{Name: "orders", PreviousNames: []string{"test"}, BindingKeys: []string{"test"}}, other()}
	s.workers = working("orders", "other")
	s.workers.Queues[0].Standin = "test"
}

// parks has a worker put a message into the lane of an hour.
func (s *scene) parks(id int, key string) {
	s.b.enqueue(s.b.queues[anHour], simulatedMessage{id: id, key: key})
}

// holds are the IDs of the messages in a queue.
func (s *scene) holds(queue string) (ids []int) {
	for _, message := range s.b.queues[queue].ready {
		ids = append(ids, message.id)
	}
	return ids
}

// A renaming that was taken back led retries of the new name to the failure queue from the first look on, also those that workers had yet to park.
func TestFormer_ARenamingThatIsTakenBackLosesNoRetryOfTheNewName(t *testing.T) {
	play(t, func(s *scene) {
		s.needs.Lanes = retry.Lanes{time.Hour}
		s.looks(3)
		s.fill("test", 5)
		spec, workers := s.spec.Spec.Queues, s.workers
		s.renamed()
		s.workers = workers // they have yet to follow
		s.looks(3)
		s.parks(101, "orders")
		s.spec.Spec.Queues = spec
		s.looks(2)
		s.parks(102, "orders") // of a worker that has not read of it yet
		s.looks(2 * 360)
		if here, failed := s.holds("test"), s.holds("async.failed"); !slices.Contains(here, 101) || !slices.Contains(here, 102) || len(failed) > 0 {
			t.Errorf("the queue holds %v, and the failure queue %v", here, failed)
		}
		if to := s.comesTo("orders"); len(to) != 1 || !isFailure(to[0]) || s.b.queues["orders"] != nil || !slices.Equal(s.comesTo("test"), []string{"test"}) {
			t.Errorf("in the end a retry of the new name goes to %v, of %+v", to, s.state.Retiring)
		}
	})
}

// Whoever took a name out of previousNames too early sent what waited in lanes to the failure queue.
func TestFormer_ANameThatLeavesPreviousNamesLosesNoRetry(t *testing.T) {
	play(t, func(s *scene) {
		s.needs.Lanes = retry.Lanes{time.Hour}
		s.looks(3)
		s.parks(101, "test")
		s.renamed()
		s.looks(60)
		s.workers = working("orders", "other")
		s.spec.Spec.Queues[0].PreviousNames = nil
		s.looks(60)
		s.state.Memory, s.state.Stamps = apply.Memory{}, nil // the operator ends
		s.looks(4 * 60)
		if here := s.holds("orders"); !slices.Equal(here, []int{101}) {
			t.Errorf("the queue holds %v, and the failure queue %v", here, s.holds("async.failed"))
		}
		s.looks(60)
		if to := s.comesTo("test"); len(to) != 1 || !isFailure(to[0]) {
			t.Errorf("in the end a retry goes to %v", to)
		}
	})
}

// A name that another queue gets leads to that one alone, at once.
func TestFormer_ANameThatAnotherQueueGetsLeadsThere(t *testing.T) {
	play(t, func(s *scene) {
		s.needs.Lanes = retry.Lanes{time.Hour}
		s.looks(3)
		s.renamed()
		s.looks(60)
		s.parks(101, "test")
		s.workers = working("orders", "other")
		s.spec.Spec.Queues[0].PreviousNames = nil
		s.looks(2)
		if to := s.comesTo("test"); !slices.Equal(to, []string{"orders"}) {
			t.Errorf("before, a retry goes to %v", to)
		}
		s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: "test", BindingKeys: []string{"new"}})
		s.looks(2)
		if to := s.comesTo("test"); !slices.Equal(to, []string{"test"}) {
			t.Errorf("a retry goes to %v", to)
		}
	})
}

// A renaming that was asked for again soon after it was taken back led retries of the time in between to the failure queue.
func TestFormer_ARenamingThatIsAskedForAgainLosesNoRetry(t *testing.T) {
	for _, done := range []int{2, 3, 5, 8} {
		for _, back := range []int{1, 2, 3, 5, 8, 70} {
			play(t, func(s *scene) {
				s.needs.Lanes = retry.Lanes{time.Hour}
				s.looks(3)
				s.fill("test", 5)
				spec := s.spec.Spec.Queues
				for range 2 {
					s.renamed()
					s.workers = working("test", "other") // they have yet to follow
					s.looks(done)
					s.parks(101, "orders")
					s.spec.Spec.Queues = spec
					for range back {
						s.looks(1)
						if to := s.comesTo("orders"); len(to) != 1 || isFailure(to[0]) {
							t.Errorf("after %d looks it was taken back, and then a retry goes to %v", done, to)
						}
					}
				}
			})
		}
	}
}

// migrates has the operator look until a queue is migrated, which is to take a few minutes.
func (s *scene) migrates() {
	s.t.Helper()
	for range 60 {
		if s.looks(1); len(s.state.Migrations) == 0 {
			return
		}
	}
	s.t.Errorf("it does not end: %+v", s.state.Migrations)
}

// Ways by names that no queue has held a migration up: a queue with an order stood still until the longest delay of the lanes had passed.
func TestFormer_AMigrationWaitsForNoRetryByAFormerName(t *testing.T) {
	const aDay = "async.fallback.24h"
	renamed := func(s *scene) {
		s.renamed()
		s.looks(60)
		s.workers = working("orders", "other")
		s.b.enqueue(s.b.queues[aDay], simulatedMessage{id: 7, key: "test"})
	}
	for name, tc := range map[string]struct {
		before, change func(s *scene)
		queue          string
	}{
		"a name leaves previousNames": {renamed, func(s *scene) { s.spec.Spec.Queues[0].PreviousNames = nil }, "orders"},
		"the queue is renamed again": {renamed, func(s *scene) {
			s.spec.Spec.Queues[0].Name, s.spec.Spec.Queues[0].PreviousNames = "sales", []string{"orders"}
			s.workers = working("sales", "other")
		}, "sales"},
		"a renaming is taken back": {func(s *scene) {
			workers := s.workers
			s.renamed()
			s.workers = workers
			s.looks(2)
			s.b.enqueue(s.b.queues[aDay], simulatedMessage{id: 7, key: "orders"})
		}, func(s *scene) {
			s.spec.Spec.Queues[0].Name, s.spec.Spec.Queues[0].PreviousNames = "test", nil
		}, "test"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				s.needs.Lanes = retry.Lanes{24 * time.Hour}
				s.looks(3)
				tc.before(s)
				tc.change(s)
				s.spec.Spec.Queues[0].SingleActiveConsumer = new(true)
				s.looks(2)
				s.migrates()
				s.looks(24 * 360)
				if here := s.holds(tc.queue); !slices.Contains(here, 7) {
					t.Errorf("the queue holds %v, and the failure queue %v", here, s.holds("async.failed"))
				}
			})
		})
	}
}

// The retries of messages that were quarantined by a name which was taken back went to the failure queue once the wait for the lanes was over.
func TestFormer_StaysWhileMessagesAreQuarantinedByItsName(t *testing.T) {
	play(t, func(s *scene) {
		s.needs.Lanes = retry.Lanes{time.Hour}
		s.looks(3)
		s.fill("test", 5)
		spec, workers := s.spec.Spec.Queues, s.workers
		s.renamed()
		renamed := s.workers
		s.workers = workers
		s.looks(3)
		s.workers = renamed
		s.b.enqueue(s.b.queues["orders.quarantine"], simulatedMessage{id: 201, key: "orders.quarantine"})
		s.spec.Spec.Queues = spec
		for i := range 150 {
			s.looks(1)
			s.workers = workers.WithLeaving(s.workers, s.report.Leaving)
			if to := s.comesTo("orders"); isFailure(to[0]) {
				t.Fatalf("after %d looks a retry goes to %v, with %d messages in orders.quarantine", i, to, s.b.queues["orders.quarantine"].depth())
			}
		}
		s.b.queues["orders.quarantine"].ready = nil
		s.looks(1000)
		if to := s.comesTo("orders"); !isFailure(to[0]) {
			t.Errorf("without quarantined messages the way stays: a retry goes to %v", to)
		}
	})
}
