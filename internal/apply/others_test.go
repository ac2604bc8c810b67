package apply_test

import (
	"context"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/topology"
)

// A weaker policy of somebody else, which expires queues that nobody uses, must not come into force while a queue is migrated.
func TestMigration_KeepsThePolicyUntilTheOldQueueIsGone(t *testing.T) {
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

func TestRetirement_UnbindsNoQueueThatAnotherTransportMade(t *testing.T) {
	s := newStage(t)
	other := s.beside("other")
	other.spec.Spec.Queues = []v1alpha1.Queue{{Name: "test", BindingKeys: []string{"test"}}}
	s.once()
	s.allCounted()
	s.spec.Spec.Queues = s.spec.Spec.Queues[:1]
	s.once() // the queue is on its way out, and somebody deletes it
	for _, queue := range []string{"test", "test.quarantine"} {
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

// An application takes over a classic queue, which carries no mark: it deletes it, and declares it as it wants it.
func TestRetirement_LeavesARedeclaredClassicQueueAlone(t *testing.T) {
	ends := map[string]func(s *stage){
		"while it is on its way out": func(s *stage) {
			for range 12 {
				s.once()
				s.allCounted()
				s.later(16 * time.Second)
			}
			if len(s.state.Created) != 1 || len(s.state.Retiring) != 0 {
				t.Errorf("written down as made are %q, on their way out are %v", s.state.Created, s.state.Retiring)
			}
		},
		"when the Transport is deleted": func(s *stage) { s.remove(true, true) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.spec.Spec.Queues = append(s.spec.Spec.Queues,
				v1alpha1.Queue{Name: "plain", Type: new(v1alpha1.QueueClassic), BindingKeys: []string{"plain"}})
			s.once()
			s.allCounted()
			s.spec.Spec.Queues = s.spec.Spec.Queues[:2]
			s.once()
			if len(s.state.Retiring) != 2 {
				t.Fatalf("on their way out are %v", s.state.Retiring)
			}
			if _, err := s.amqp.QueueDelete("plain", false, false, false); err != nil {
				t.Fatal(err)
			}
			if _, err := s.amqp.QueueDeclare("plain", true, false, false, false, nil); err != nil {
				t.Fatal(err)
			}
			if err := s.amqp.QueueBind("plain", "their key", "amq.topic", false, nil); err != nil {
				t.Fatal(err)
			}
			s.publish("amq.topic", "their key", nil)
			s.counted("plain", 1)
			end(s)
			if bindings := s.bindings("plain"); !s.exists("plain") || len(bindings) != 1 {
				t.Fatalf("the queue is there: %v; bindings: %q", s.exists("plain"), bindings)
			}
			s.take("plain")
		})
	}
}

// A Transport was deleted with Retain, and is made anew under its name with another prefix. What stands still dead-letters to the exchanges
// of the former one, of which the failure queue was unbound and deleted, since it was empty.
func TestFailureQueue_StaysWhileQueuesDeadLetterByAFormerPrefix(t *testing.T) {
	s := newStage(t)
	s.spec.Spec.Queues = []v1alpha1.Queue{
		{Name: "plain", Type: new(v1alpha1.QueueClassic), BindingKeys: []string{"plain"}}, {Name: "test", BindingKeys: []string{"test"}}, {Name: "lost"},
	}
	s.once()
	s.state = apply.State{}
	s.spec.Spec.Prefix = new("another")
	s.allCounted()
	s.eventually("the lanes of the former prefix to be gone", func() bool {
		s.once()
		s.allCounted()
		s.later(2 * time.Minute)
		return !s.exists("async.fallback.1s") && !s.exists("async.fallback.3s")
	})
	for range 10 {
		s.once()
		s.allCounted()
		s.later(time.Minute)
	}
	if !s.exists("async.failed") {
		t.Fatal("the failure queue is gone, and queues dead-letter into it")
	}
	publishing := amqp091.Publishing{Body: []byte("it expires"), DeliveryMode: amqp091.Persistent, Expiration: "100"}
	confirmed, err := s.amqp.PublishWithDeferredConfirmWithContext(t.Context(), "", "plain", true, false, publishing)
	if err != nil || !confirmed.Wait() {
		t.Fatalf("publish: %v", err)
	}
	if d := s.take("async.failed"); string(d.Body) != "it expires" {
		t.Errorf("the failure queue has %q, want what expired", d.Body)
	}
}
