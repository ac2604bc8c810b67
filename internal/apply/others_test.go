package apply_test

import (
	"context"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/topology"
)

// A weaker policy of somebody else, which expires queues that nobody uses, must not come into force while a queue is exchanged.
func TestAQueueThatIsExchangedKeepsItsPolicyUntilItIsGone(t *testing.T) {
	s := newStage(t)
	testbroker.Shared(t).SetPolicy(t, s.config.VHost, "theirs", ".*", "queues", 0, map[string]any{"expires": 3_600_000})
	s.once()
	s.allCounted()
	s.publish("async", "test", nil)
	s.counted("test", 1)
	own := s.snapshot().Queues["test"].Policy
	s.queue("test").Type = new(v1alpha1.QueueClassic)
	s.eventually("the exchange to wait for the queue", func() bool {
		report, err := s.onceBy(s.client)
		if policy := s.snapshot().Queues["test"].Policy; policy != own {
			t.Fatalf("the policy of the queue is %q, and was %q", policy, own)
		}
		return err == nil && len(report.Migrations) == 1 && report.Migrations[0].Step == v1alpha1.MigrationDrain
	})
	s.take("test")
	s.eventually("the exchange to end, and the policy to go", func() bool {
		s.later(30 * time.Second)
		report := s.once()
		_, left := s.snapshot().Policies["redrive.async:queue:test"]
		return len(report.Migrations)+len(report.Retiring) == 0 && !left
	})
}

// snapshotOf answers with what was observed before, as a snapshot that several Transports share.
type snapshotOf struct {
	apply.Port

	observed topology.Observed
}

func (s snapshotOf) Observe(context.Context) (topology.Observed, error) { return s.observed, nil }

func TestAQueueThatAnotherTransportHasMadeSinceIsNotUnbound(t *testing.T) {
	s := newStage(t)
	other := s.beside("other")
	other.spec.Spec.Queues = []v1alpha1.Queue{{Name: "test", BindingKeys: []string{"test"}}}
	s.once()
	s.allCounted()
	s.spec.Spec.Queues = s.spec.Spec.Queues[:1]
	s.once() // the queue is on its way out, and somebody deletes it
	for _, queue := range []string{"test", "test.suspect"} {
		if _, err := s.amqp.QueueDelete(queue, false, false, false); err != nil {
			t.Fatal(err)
		}
	}
	s.state.Retiring = []v1alpha1.Retirement{{Queue: "test", Since: topology.Stamp(s.now)}}
	before := s.snapshot()
	if _, is := before.Queues["test"]; is {
		t.Fatal("it is still there")
	}
	for range 2 {
		other.once()
	}
	bound := len(s.snapshot().BindingsTo("test"))
	s.onceOn(snapshotOf{s.client, before})
	if now := len(s.snapshot().BindingsTo("test")); bound == 0 || now != bound {
		t.Errorf("%d of %d bindings of the other Transport are left", now, bound)
	}
}
