package worker_test

import (
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// silence is a rig whose messages do what their type says: "fail" fails, "soon" is retried in the lane of 1 s, "late" in that of
// 4 s, and succeeds then.
type silence struct {
	*rig

	partner   *partner
	node      *testbroker.Broker
	succeeded atomic.Int64
}

func newSilence(t *testing.T) *silence {
	t.Helper()
	t.Parallel()
	s := &silence{node: testbroker.Private(t)}
	s.partner = newPartner(t, func(r *http.Request, attempt int) int {
		kind := r.Header.Get("Redrive-Type")
		switch {
		case kind == "fail":
			return 422
		case kind == "soon" && attempt == 1:
			return 502
		case kind == "late" && attempt == 1:
			return 429
		}
		s.succeeded.Add(1)
		return 200
	})
	policy := testtransport.Explicit(time.Second)
	policy.Strategies = []v1alpha1.Strategy{
		{Name: "rejected", When: "error.status == 422", Action: v1alpha1.ActionFail},
		{Name: "throttled", When: "error.status == 429", Action: v1alpha1.ActionRetry, Backoff: testtransport.Explicit(4 * time.Second).Backoff},
	}
	s.rig = newRigOn(t, s.node, s.partner, policy, func(tr *v1alpha1.Transport) {
		tr.Spec.Workers[0].Timeout = v1alpha1.NewDuration(time.Minute)
	})
	// A channel that has never used a queue is refused at once where that has no leader.
	s.send("soon", 1)
	s.send("late", 1)
	s.await(2)
	return s
}

func (s *silence) send(kind string, n int) {
	s.t.Helper()
	s.publish(slices.Repeat([]amqp091.Publishing{{Type: kind}}, n)...)
}

func (s *silence) await(succeeded int64) {
	s.t.Helper()
	testtransport.Eventually(s.t, "successes", func() bool { return s.succeeded.Load() >= succeeded })
}

func (s *silence) awaitTroubles(subjects ...string) {
	s.t.Helper()
	testtransport.Eventually(s.t, "what the worker says of itself", func() bool {
		return slices.EqualFunc(s.worker.Status().Troubles, subjects, func(told compile.Trouble, want string) bool {
			return told.Reason == "PublishFailing" && told.Subject == want
		})
	})
}

func TestLane_ThatDoesNotConfirmHoldsUpNoOtherMessage(t *testing.T) {
	s := newSilence(t)
	s.node.StopMember(t, s.target.VHost, "async.fallback.4s")
	const held = 60 // more than the prefetch
	s.send("late", held)
	s.send("fail", 100)
	s.send("soon", 20)
	s.send("", 100)
	s.await(2 + 20 + 100)
	testtransport.Eventually(t, "all that fail", func() bool { return s.Ready("async.failed") == 100 })
	if err := s.worker.Ready(); err != nil {
		t.Errorf("not ready, for one lane: %v", err)
	}
	s.awaitTroubles("async.fallback 4s")
	s.node.StartMember(t, s.target.VHost, "async.fallback.4s")
	s.await(2 + 20 + 100 + held)
	s.awaitTroubles()
	s.empty()
	if got := s.succeeded.Load(); got != 2+20+100+held {
		t.Errorf("%d successes, want %d", got, 2+20+100+held)
	}
}

func TestDetour_TakesTheNextLargerLaneWhereOneDoesNotConfirm(t *testing.T) {
	testtransport.Long(t)
	s := newSilence(t)
	s.node.StopMember(t, s.target.VHost, "async.fallback.1s")
	const first, second = 30, 20
	s.send("soon", first)
	s.await(2 + first)
	began := time.Now()
	s.send("soon", second) // the lane is known to be silent
	s.await(2 + first + second)
	if took := time.Since(began); took < 4*time.Second {
		t.Errorf("retried after %s: not by the larger lane", took)
	}
	s.node.StartMember(t, s.target.VHost, "async.fallback.1s")
	s.awaitTroubles()
	s.empty()
	s.stop()
	if got := s.succeeded.Load(); got > 2+2*first+second {
		t.Errorf("%d successes of %d messages, want one more at most for each of the %d that were in flight", got, 2+first+second, first)
	}
}

func TestDrain_LeavesOnlyWhatASilentLaneHolds(t *testing.T) {
	testtransport.Long(t)
	s := newSilence(t)
	s.node.StopMember(t, s.target.VHost, "async.fallback.4s")
	const held = 3
	s.send("late", held)
	s.send("fail", 50)
	testtransport.Eventually(t, "all that fail", func() bool { return s.Ready("async.failed") == 50 })
	began := time.Now()
	s.stop()
	if took := time.Since(began); took > 45*time.Second { // a handler may take a minute
		t.Errorf("the end took %s", took)
	}
	testtransport.Eventually(t, "what was held in its queue again", func() bool { return s.Ready(testtransport.Queue) == held })
}
