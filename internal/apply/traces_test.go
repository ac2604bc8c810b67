package apply_test

import (
	"context"
	"slices"
	"testing"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
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

func TestATraceIsFollowedThoughAListLacksABindingOfTheBridge(t *testing.T) {
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
				return b.Source == "async.standin" && b.RoutingKey == "test"
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
func TestATraceIsFollowedByWhoRemembersNothing(t *testing.T) {
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

func TestWhatAnApplicationBindsWhileItsQueueBeginsToDrainStays(t *testing.T) {
	s := newStage(t)
	f := s.settled(false, "test")
	s.queue("test").Type = new(v1alpha1.QueueClassic)
	bound := false
	port := &crooked{Port: s.client}
	port.observed = func(observed topology.Observed) topology.Observed {
		_, stands := observed.Queues["test.standin"]
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
