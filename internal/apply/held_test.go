package apply_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

// refusing is a broker that makes nothing of a name.
type refusing struct {
	*broker.Client

	queue string
}

func (p refusing) Apply(ctx context.Context, step topology.Step) (bool, error) {
	if step.Queue != nil && step.Queue.Name == p.queue {
		return false, broker.ErrForbidden
	}
	return p.Client.Apply(ctx, step)
}

// What is not wanted any more is the only way for messages as long as what is to take its place cannot be there.
func TestOnce_KeepsAWayUntilItsReplacementIsThere(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		change func(*v1alpha1.TransportSpec)
		// exchange and key that messages are published with, and the queue in which they arrive until the new one is there.
		exchange, key, arrives string
	}{
		"of a queue that has another name": {
			func(spec *v1alpha1.TransportSpec) { spec.Queues[1].Name = "new" }, "async", "test", "test",
		},
		"of a key that another queue gets": {
			func(spec *v1alpha1.TransportSpec) {
				spec.Queues[1].BindingKeys = []string{"else"}
				spec.Queues = append(spec.Queues, v1alpha1.Queue{Name: "new", BindingKeys: []string{"test"}})
			},
			"async", "test", "test",
		},
		"of failed messages": {
			func(spec *v1alpha1.TransportSpec) { spec.Failure = &v1alpha1.Failure{Queue: new("new")} }, "async.failed", "", "async.failed",
		},
		"of what no binding matches": {
			func(spec *v1alpha1.TransportSpec) {
				spec.Queues = append(spec.Queues, v1alpha1.Queue{Name: "new", BindingKeys: []string{"new"}})
				spec.Exchange.UnroutedTo = new("new")
			},
			"async", "nobody's", "lost",
		},
		"of an adopted queue": {
			func(spec *v1alpha1.TransportSpec) {
				spec.Queues[2] = v1alpha1.Queue{Name: "new", BindingKeys: []string{"theirs"}}
			},
			"async", "theirs", "theirs",
		},
	}
	hindrances := map[string]func(*stage) (port apply.Port, end func()){
		"because a queue is in conflict": func(s *stage) (apply.Port, func()) {
			s.declare("new", amqp091.Table{"x-max-length": 5})
			return s.client, func() {
				if _, err := s.amqp.QueueDelete("new", false, false, false); err != nil {
					s.t.Fatal(err)
				}
			}
		},
		"because the broker refuses the queue": func(s *stage) (apply.Port, func()) { return refusing{s.client, "new"}, func() {} },
	}
	for name, c := range cases {
		for why, hinder := range hindrances {
			t.Run(name+" "+why, func(t *testing.T) {
				s := newStage(t)
				s.declare("theirs", amqp091.Table{"x-queue-type": "quorum"})
				s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: "theirs", Adopt: new(true), BindingKeys: []string{"theirs"}})
				s.once()
				port, end := hinder(s)
				c.change(&s.spec.Spec)
				for range 4 {
					s.onceOn(port)
					s.publish(c.exchange, c.key, nil)
					s.take(c.arrives)
					s.later(time.Hour)
				}
				end()
				s.once()
				s.publish(c.exchange, c.key, nil)
				s.take("new")
				if left := s.snapshot().BindingsTo(c.arrives); strings.Contains(bindingTexts(left), c.exchange+" "+c.key) {
					t.Errorf("the old way is still there: %s", bindingTexts(left))
				}
			})
		}
	}
}

// declare makes a queue as somebody else.
func (s *stage) declare(name string, arguments amqp091.Table) {
	s.t.Helper()
	if _, err := s.amqp.QueueDeclare(name, true, false, false, false, arguments); err != nil {
		s.t.Fatal(err)
	}
}

func bindingTexts(bindings []topology.Binding) string {
	texts := make([]string, len(bindings))
	for i, b := range bindings {
		texts[i] = b.Source + " " + b.RoutingKey
	}
	return strings.Join(texts, ", ")
}
