package faults

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// What is in the queue goes with it, by the hand of whoever deletes it; what waits in the lanes does not.
func TestWorker_LosesOnlyTheMessagesInADeletedQueue(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		const deletions, batch = 2, 20
		var open atomic.Bool
		s := newScene(t, testbroker.Shared(t), plan{
			policy: testtransport.Explicit(3*time.Second, 3*time.Second),
			answer: func(c call) int {
				if c.attempt == 1 && !open.Load() {
					return http.StatusBadGateway
				}
				return http.StatusOK
			},
		})
		var deleted []int
		for range deletions {
			open.Store(false)
			s.publish(batch)
			s.await(atOnceWithin, "all in a lane", func() bool { return s.Waiting() == batch })
			open.Store(true)
			first := s.publish(batch)
			if _, err := s.Channel().QueueDelete(testtransport.Queue, false, false, false); err != nil {
				t.Fatal(err)
			}
			for id := first; id < s.published; id++ {
				deleted = append(deleted, id)
			}
			// Those in the lane find their queue missing when their time is up, and go to the failure queue.
			s.await(atOnceWithin, "the lane to be empty", func() bool { return s.Waiting() == 0 })
			s.Restore()
			first = s.publish(batch)
			s.worksAgain(func() bool { return s.partner.called(first) > 0 })
			s.hasEnded(atOnceWithin, first)
		}
		s.settle(bounds{faults: deletions, duplicates: deletions * prefetch, deleted: deleted})
	})
}

// What is in the lane goes with it, by the hand of whoever deletes it; later retries take the next larger lane.
func TestWorker_LosesOnlyTheMessagesInADeletedLane(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		const deletions, batch = 2, 20
		s := newScene(t, testbroker.Shared(t), plan{policy: testtransport.Explicit(3*time.Second, 4*time.Second), answer: failsFirst})
		lane := s.Lanes()[0]
		var deleted []int
		for range deletions {
			first := s.publish(batch)
			s.await(atOnceWithin, "all in the lane", func() bool { return s.Ready(lane) == batch })
			for id := first; id < s.published; id++ {
				deleted = append(deleted, id)
			}
			if _, err := s.Channel().QueueDelete(lane, false, false, false); err != nil {
				t.Fatal(err)
			}
			first = s.publish(batch)
			s.worksAgain(func() bool { return s.partner.called(first) > 1 })
			s.hasEnded(atOnceWithin, first)
			if ended := len(s.ends()); ended != s.published-len(deleted) {
				t.Errorf("%d messages ended, want all %d but the %d that were deleted", ended, s.published, len(deleted))
			}
			s.Restore()
		}
		s.settle(bounds{faults: deletions, deleted: deleted})
	})
}

func TestWorker_HoldsMessagesWhileTheFailureExchangeIsMissing(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		const deletions, batch = 3, 50
		policy := testtransport.Explicit()
		policy.Strategies = []v1alpha1.Strategy{{Name: "rejected", When: "true", Action: v1alpha1.ActionFail}}
		s := newScene(t, testbroker.Shared(t), plan{policy: policy, answer: failure})
		refused := point{fromBroker, channelClose}
		for range deletions {
			if err := s.Channel().ExchangeDelete("async.failed", false, false); err != nil {
				t.Fatal(err)
			}
			before := s.wire.count(refused)
			first := s.publish(batch)
			s.await(worksWithin, "the broker to refuse it", func() bool { return s.wire.count(refused) >= before+2 })
			if ended := len(s.ends()); ended != first {
				t.Errorf("%d messages ended, want the %d before", ended, first)
			}
			s.Restore()
			s.worksAgain(func() bool { return len(s.ends()) > first })
			s.hasEnded(atOnceWithin, first)
		}
		s.settle(bounds{faults: deletions, duplicates: 0})
	})
}
