package apply_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/topology"
)

// threeNodes is a Transport that stands on a cluster. The operator and everybody else asks the first node; the second leads "test".
type threeNodes struct {
	*stage

	cluster           *testbroker.Cluster
	asked, lead, idle *testbroker.Broker
	vhost             string
}

// inCluster is such a Transport in a vhost of its own, on a cluster that several tests may share one after the other.
func inCluster(t *testing.T, c *testbroker.Cluster) *threeNodes {
	t.Helper()
	s := newStageOn(t, c.Nodes[0])
	on := &threeNodes{stage: s, cluster: c, asked: c.Nodes[0], lead: c.Nodes[1], idle: c.Nodes[2], vhost: s.config.VHost}
	s.waits = topology.DefaultWaits()
	s.eventually("the objects", func() bool {
		_, err := on.look()
		return err == nil && len(s.snapshot().BindingsTo("test")) > 0
	})
	on.moveLeader(on.lead)
	return on
}

func (on *threeNodes) moveLeader(to *testbroker.Broker) {
	on.t.Helper()
	on.cluster.MoveLeader(on.t, on.vhost, to, "test")
}

// look runs the engine once, at the time that it is, and keeps the state. What a node that dies or stands still refuses is done by a later run.
func (s *stage) look() (apply.Report, error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	s.now = time.Now()
	report, err := apply.Once(ctx, s.client, s.input(), func(_ context.Context, created []string) error {
		s.state.Created = created
		return nil
	})
	if _, young := errors.AsType[*apply.TooYoungError](err); err != nil && !young {
		return report, err
	}
	s.state.Keep(&report)
	if len(report.Steps) > 0 {
		s.t.Logf("it has done\n%s", steps(report.Steps))
	}
	for _, failure := range report.Failures {
		s.t.Logf("%s: %v", failure.Step, failure.Err)
	}
	return report, err
}

// looks goes on for a while.
func (on *threeNodes) looks(during time.Duration) {
	on.t.Helper()
	for until := time.Now().Add(during); time.Now().Before(until); time.Sleep(time.Second) {
		if _, err := on.look(); err != nil {
			on.t.Log(err)
		}
	}
}

// fill publishes messages that nobody takes.
func (on *threeNodes) fill(messages int) {
	on.t.Helper()
	for range messages {
		on.publish("", "test", nil)
	}
}

// leave lets the queue leave the spec, and waits until nothing of some sources leads there any more.
func (on *threeNodes) leave(sources ...string) {
	on.t.Helper()
	on.spec.Spec.Queues = slices.DeleteFunc(on.spec.Spec.Queues, func(q v1alpha1.Queue) bool { return q.Name == "test" })
	on.eventually("the queue to be unbound", func() bool {
		leads := func(b topology.Binding) bool { return slices.Contains(sources, b.Source) }
		_, err := on.look()
		return err == nil && on.retiring("test").Unbound != nil && !slices.ContainsFunc(on.snapshot().BindingsTo("test"), leads)
	})
}

func (on *threeNodes) kill(nodes ...*testbroker.Broker) {
	on.t.Helper()
	for _, node := range nodes {
		if err := node.Kill(on.t.Context()); err != nil {
			on.t.Fatal(err)
		}
	}
}

func (on *threeNodes) resume(nodes ...*testbroker.Broker) {
	on.t.Helper()
	if err := on.cluster.Resume(on.t.Context(), nodes...); err != nil {
		on.t.Fatal(err)
	}
}

// stillHolds waits for the number of messages in the queue: while it has no leader RabbitMQ counts none.
func (on *threeNodes) stillHolds(messages int) {
	on.t.Helper()
	on.eventually("the messages to be there", func() bool {
		state, err := on.channel().QueueDeclarePassive("test", true, false, false, false, nil)
		if amqpErr, is := errors.AsType[*amqp091.Error](err); is && amqpErr.Code == amqp091.NotFound {
			on.t.Fatal("the queue is gone")
		}
		return err == nil && state.Messages == messages
	})
}

const twenty = 20

// Each node but the leader's says that the queue is empty.
func TestThreeNodes_KeepAQueueThatOnlyItsLeaderKnowsToBeFull(t *testing.T) {
	c := testbroker.PrivateCluster(t, 3, "management.disable_stats = true", "management.enable_queue_totals = true")
	on := inCluster(t, c)
	on.fill(twenty)
	begun := on.state
	on.leave("async") // the way back from the lanes stays until the queue is counted
	for range 6 {
		on.later(time.Minute)
		on.once()
	}
	on.stillHolds(twenty)

	on.state = begun
	for _, workersGone := range []bool{false, true} {
		for range 6 {
			on.later(time.Minute)
			if report := on.remove(workersGone, false); !workersGone && report.Drained || report.Done {
				t.Fatalf("it goes on over a full queue: %+v", report)
			}
		}
	}
	on.stillHolds(twenty)
}

// The lead of an empty queue moves on, messages come, and then a node that led it is all that is left of it, or all that has a figure.
func TestThreeNodes_KeepAQueueThatAFormerLeaderCallsEmpty(t *testing.T) {
	c := testbroker.PrivateCluster(t, 3, testbroker.AsDelivered)
	for name, dead := range map[string]func(on *threeNodes) []*testbroker.Broker{
		"the leader is killed":   func(on *threeNodes) []*testbroker.Broker { return []*testbroker.Broker{on.lead} },
		"the majority is killed": func(on *threeNodes) []*testbroker.Broker { return []*testbroker.Broker{on.idle, on.lead} },
	} {
		t.Run(name, func(t *testing.T) {
			on := inCluster(t, c)
			on.moveLeader(on.asked)
			on.counted("test", 0)
			on.leave("async", "async.return")
			on.moveLeader(on.lead)
			on.fill(twenty)
			on.kill(dead(on)...)
			on.looks(45 * time.Second) // longer than both waits
			on.resume(dead(on)...)
			on.stillHolds(twenty)
		})
	}
}
