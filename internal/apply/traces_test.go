package apply_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

// crooked is a broker of which something goes wrong.
type crooked struct {
	apply.Port

	observed func(topology.Observed) topology.Observed
	before   func(topology.Step) error
}

func (c *crooked) Observe(ctx context.Context) (topology.Observed, error) {
	observed, err := c.Port.Observe(ctx)
	if err == nil && c.observed != nil {
		observed = c.observed(observed)
	}
	return observed, err
}

func (c *crooked) Apply(ctx context.Context, step topology.Step) (bool, error) {
	if c.before != nil {
		if err := c.before(step); err != nil {
			return false, err
		}
	}
	return c.Port.Apply(ctx, step)
}

// killedInASwap is a broker whose operator is killed once, when a binding of the application has left the one queue and is not at the other.
func (s *stage) killedInASwap() (port *crooked, killed *bool) {
	killed = new(bool)
	return &crooked{Port: s.client, before: func(step topology.Step) error {
		way := step.Binding
		if *killed || way == nil || step.Action != topology.ActionCreate || way.Source != "async" || way.RoutingKey != "theirs" {
			return nil
		}
		*killed = true
		return errKilled
	}}, killed
}

func TestTrace_IsFollowedThoughAListLacksABridgeBinding(t *testing.T) {
	s := newStage(t)
	f := s.settled(false, "test")
	s.bindByAnApplication("test")
	s.queue("test").Type = new(v1alpha1.QueueClassic)
	port, killed := s.killedInASwap()
	lied := false
	port.observed = func(observed topology.Observed) topology.Observed {
		if *killed && !lied {
			lied = true
			observed.Bindings = slices.DeleteFunc(slices.Clone(observed.Bindings), func(b topology.Binding) bool {
				return b.Source == "async.alternate" && b.RoutingKey == "test"
			})
		}
		return observed
	}
	f.migrating(port, []string{"test"}, nil)
	if !lied {
		t.Fatal("nothing was left out")
	}
	s.isBoundByTheApplication("test")
	f.check("test")
}

// `redrive run` keeps its status in memory only, and a Transport may be restored from a backup without one.
func TestTrace_IsFollowedWithoutAStatus(t *testing.T) {
	s := newStage(t)
	f := s.settled(false, "test")
	s.bindByAnApplication("test")
	s.queue("test").Type = new(v1alpha1.QueueClassic)
	port, killed := s.killedInASwap()
	forgotten := false
	f.migrating(port, []string{"test"}, func(apply.Report) {
		if *killed && !forgotten {
			forgotten, s.state = true, apply.State{}
		}
	})
	if !forgotten {
		t.Fatal("it was not killed")
	}
	s.isBoundByTheApplication("test")
	f.check("test")
}

func TestMigration_KeepsWhatAnApplicationBindsAsTheDrainBegins(t *testing.T) {
	s := newStage(t)
	f := s.settled(false, "test")
	s.queue("test").Type = new(v1alpha1.QueueClassic)
	bound := false
	port := &crooked{Port: s.client}
	port.observed = func(observed topology.Observed) topology.Observed {
		_, stands := observed.Queues["test.migrating"]
		_, there := observed.Queues["test"]
		if stands && there && !bound && len(observed.BindingsTo("test")) == 0 {
			bound = true
			for _, key := range []string{"test", "theirs"} {
				if err := s.amqp.QueueBind("test", key, "async", false, amqp091.Table{"note": "kept"}); err != nil {
					t.Error(err)
				}
			}
		}
		return observed
	}
	f.migrating(port, []string{"test"}, nil)
	if !bound {
		t.Fatal("the application has not bound its queue")
	}
	s.isBoundByTheApplication("test")
	f.check("test")
}

// What a binding by the presence of a header says cannot be read by HTTP, so nobody but the application can make it again.
func TestMigration_WaitsForAnApplicationToBindWhatHTTPCannotShow(t *testing.T) {
	s := newStage(t)
	s.stand()
	present := amqp091.Table{"x-match": "all", "tenant": nil}
	bind := func(queue string) {
		t.Helper()
		if err := s.amqp.QueueBind(queue, "", "events", false, present); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.amqp.ExchangeDeclare("events", amqp091.ExchangeHeaders, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	bind("test")
	f := newFlow(s, false, "test")
	f.begin()
	s.queue("test").Type = new(v1alpha1.QueueClassic)
	told := map[string]bool{}
	f.migrating(s.client, []string{"test"}, func(report apply.Report) {
		for _, problem := range report.Problems {
			for _, next := range []string{"test.migrating", "test"} {
				if strings.HasPrefix(problem.Message, "queue "+next+" is to get") && !told[next] {
					told[next] = true
					bind(next)
				}
			}
		}
	})
	if !told["test.migrating"] || !told["test"] {
		t.Errorf("it was told of %v", told)
	}
	returns := s.amqp.NotifyReturn(make(chan amqp091.Return, 1))
	confirmation, err := s.amqp.PublishWithDeferredConfirm("events", "", true, false, amqp091.Publishing{
		MessageId: "1", Headers: amqp091.Table{"tenant": "acme"},
	})
	if err != nil {
		t.Fatal(err)
	}
	confirmation.Wait()
	if len(returns) > 0 {
		t.Error("the message is unroutable")
	}
}

// errRefused is the answer of a broker that refuses a write.
var errRefused = errors.Join(errors.New("refused (400)"), broker.ErrRefused)

// The operator of the version before had one policy for all failure queues.
func TestFailureQueue_KeepsItsFormerPolicyWhereTheNewIsRefused(t *testing.T) {
	s := newStage(t)
	s.once()
	legacy := topology.Policy{
		Name: "redrive.async:failure", Pattern: `^async\.failed$`, ApplyTo: "queues", Priority: 1000, Definition: topology.Arguments{"delivery-limit": 2147483647},
	}
	now := s.snapshot().Policies["redrive.async:failure:async.failed"]
	for _, step := range []topology.Step{{Action: topology.ActionCreate, Policy: &legacy}, {Action: topology.ActionDelete, Policy: &now}} {
		if _, err := s.client.Apply(t.Context(), step); err != nil {
			t.Fatal(err)
		}
	}
	refuses := &crooked{Port: s.client, before: func(step topology.Step) error {
		if step.Policy != nil && step.Action == topology.ActionCreate {
			return errRefused
		}
		return nil
	}}
	if _, err := s.onceBy(refuses); err != nil {
		t.Fatal(err)
	}
	if _, stands := s.snapshot().Policies[legacy.Name]; !stands {
		t.Fatal("no policy keeps others from the failure queue")
	}
	s.once()
	s.once()
	policies := s.snapshot().Policies
	if _, stands := policies[legacy.Name]; stands || policies[now.Name].Name == "" {
		t.Errorf("the policies are %v", slices.Sorted(maps.Keys(policies)))
	}
}

// The clock of the operator's machine was a day ahead when a deletion had no answer, and is right again.
func TestDoubts_EndsADeletionWrittenDownTomorrowWithItsRequest(t *testing.T) {
	s := newStage(t)
	s.once()
	s.state.Deletions = []v1alpha1.Deletion{{Object: "queue/test", Written: metav1.NewTime(s.now.Add(24 * time.Hour))}}
	if err := s.client.DeleteQueue(t.Context(), "test", false, false); err != nil {
		t.Fatal(err)
	}
	if s.once(); s.exists("test") {
		t.Fatal("the queue is made while the request may still be carried out")
	}
	s.later(s.waits.Request + time.Second)
	if s.once(); !s.exists("test") {
		t.Error("the queue is not made, though the request lives no more")
	}
}

func TestDeletion_LeavesAnExchangeThatOthersLeadInto(t *testing.T) {
	s := newStage(t)
	s.once()
	if err := s.amqp.ExchangeDeclare("events", amqp091.ExchangeFanout, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.amqp.ExchangeBind("async", "", "events", false, nil); err != nil {
		t.Fatal(err)
	}
	s.untilDrained()
	report := s.untilBlocked()
	if !report.Done || !slices.ContainsFunc(report.Left, func(left topology.Finding) bool { return left.Object.Name == "async" }) {
		t.Errorf("it is not told that the exchange is left: %+v", report)
	}
	if !slices.ContainsFunc(s.snapshot().Bindings, func(b topology.Binding) bool { return b.Source == "events" }) {
		t.Error("the application's binding is gone")
	}
}
