package apply_test

import (
	"context"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/topology"
)

// found is a broker as somebody has set it up.
type found struct {
	lines []string
	// tick is how often, in milliseconds, the leader of a quorum queue counts, where it is not as delivered.
	tick int
	// vhost is what is done to a vhost before anything stands there.
	vhost func(t *testing.T, b *testbroker.Broker, vhost string)
}

func brokersAsFound() map[string]found {
	set := func(lines ...string) found { return found{lines: append(lines, testbroker.AsDelivered)} }
	policy := func(definition map[string]any) found {
		f := set()
		f.vhost = func(t *testing.T, b *testbroker.Broker, vhost string) {
			b.SetPolicy(t, vhost, "theirs", "^(test|async)", "queues", 5000, definition)
		}
		return f
	}
	return map[string]found{
		"as delivered":          set(),
		"statistics off":        set("management.disable_stats = true"),
		"queue totals only":     set("management.disable_stats = true", "management.enable_queue_totals = true"),
		"no metrics collector":  set("management_agent.disable_metrics_collector = true"),
		"no rates":              set("management.rates_mode = none"),
		"statistics each 30 s":  {lines: []string{"collect_statistics_interval = 30000"}},
		"counts each minute":    {lines: []string{testbroker.AsDelivered}, tick: 60_000},
		"a log of all requests": set("management.http_log_dir = /tmp"),
		"their delivery limit":  policy(map[string]any{"delivery-limit": 5}),
		"their length limit":    policy(map[string]any{"max-length": 100_000}),
		"their time to live":    policy(map[string]any{"message-ttl": 3_600_000}),
		"another default type": {lines: []string{testbroker.AsDelivered}, vhost: func(t *testing.T, b *testbroker.Broker, vhost string) {
			b.SetDefaultQueueType(t, vhost, "quorum")
		}},
		"an operator's policy": {lines: []string{testbroker.AsDelivered}, vhost: func(t *testing.T, b *testbroker.Broker, vhost string) {
			b.SetOperatorPolicy(t, vhost, "theirs", "^(test|async)", "queues", map[string]any{"max-length": 100_000})
		}},
	}
}

// removal is what takes a queue with messages out of a Transport.
type removal struct {
	change func(s *stage)
	// parked is true where the messages wait in a lane.
	parked bool
	// deletes is true where the whole Transport goes.
	deletes bool
}

func removals() map[string]removal {
	return map[string]removal{
		"the queue leaves the spec": {change: func(s *stage) { s.spec.Spec.Queues = s.spec.Spec.Queues[:1] }},
		"it gets another type":      {change: func(s *stage) { s.queue("test").Type = new(v1alpha1.QueueClassic) }},
		"it gets another name": {change: func(s *stage) {
			queue := s.queue("test")
			queue.Name, queue.PreviousNames = "orders", []string{"test"}
		}},
		"a lane goes":              {change: func(s *stage) { s.lanes = s.lanes[:1] }, parked: true},
		"the Transport is deleted": {change: func(*stage) {}, deletes: true},
	}
}

// progress of one run.
type progress struct {
	// done is true where nothing is left to do, told where it says why it cannot go on.
	done, told bool
}

func (s *stage) changing() (progress, error) {
	report, err := s.look()
	return progress{
		done: len(report.Steps)+len(report.Retiring)+len(report.Migrations)+len(report.Failures) == 0,
		told: len(report.Blocked)+len(report.Warnings)+len(report.Problems)+len(report.Conflicts)+len(report.Failures) > 0,
	}, err
}

func (s *stage) deleting() (progress, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	report, err := apply.Delete(ctx, s.client, apply.DeleteInput{
		Owner: s.owner, Prefix: "async", State: s.state, WorkersGone: s.workersGone, Waits: s.waits, Now: time.Now(),
	})
	if err == nil {
		s.state.Created, s.state.Retiring = report.Created, report.Retiring
		s.workersGone = s.workersGone || report.Drained
	}
	return progress{done: report.Done, told: len(report.Blocked)+len(report.Uncounted)+len(report.Failures) > 0}, err
}

const (
	// longEnough is longer than the operator waits before it deletes a queue that it takes for empty.
	longEnough = 75 * time.Second
	// endsWithin bounds a deletion of many stages, each with its waits, on a machine that is busy.
	endsWithin = 15 * time.Minute
)

func TestRemoval_LosesNothingOnBrokersAsTheyAreFound(t *testing.T) {
	testbroker.OfTarget(t, "test-settings")
	for name, f := range brokersAsFound() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := testbroker.Private(t, f.lines...)
			if f.tick > 0 {
				b.SetEnvironment(t, "quorum_tick_interval", f.tick)
			}
			for what, r := range removals() {
				t.Run(what, func(t *testing.T) {
					t.Parallel()
					s := newStageOn(t, b)
					if f.vhost != nil {
						f.vhost(t, b, s.config.VHost)
					}
					s.removed(r, func(bool) {})
				})
			}
		})
	}
}

// removed sees that what takes a queue away takes none of its messages with it. The broker lies from lie(true) to lie(false).
func (s *stage) removed(r removal, lie func(bool)) {
	s.t.Helper()
	s.waits, s.waits.Grace = topology.DefaultWaits(), 0
	exchange, key, headers, run := "async", "test", amqp091.Table(nil), s.changing
	if r.parked {
		s.lanes = retry.Lanes{time.Second, time.Hour}
		exchange, headers = "async.fallback", amqp091.Table{message.HeaderLane: "1h"}
	}
	if r.deletes {
		run = s.deleting
	}
	s.eventually("the objects", func() bool {
		p, err := s.changing()
		return err == nil && p.done
	})
	s.countedOnce()
	for range twenty {
		s.publish(exchange, key, headers)
	}
	r.change(s)
	lie(true)
	s.goesOn(run, func() { lie(false) })
}

// countedOnce waits until RabbitMQ says that the queues are empty, which is soon no longer true. Where it does not count it says nothing.
func (s *stage) countedOnce() {
	s.t.Helper()
	for began := time.Now(); time.Since(began) < longEnough; time.Sleep(time.Second) {
		observed, err := s.client.Observe(s.t.Context())
		if err == nil && observed.Queues["test"].Empty() {
			return
		}
	}
}

// goesOn sees that a change loses no message while nobody takes them, and that afterwards it ends or says why not.
func (s *stage) goesOn(run func() (progress, error), honest func()) {
	s.t.Helper()
	told := false
	keepsOn := func(during time.Duration, until func(progress) bool) bool {
		for began := time.Now(); time.Since(began) < during; time.Sleep(time.Second) {
			p, err := run()
			if err == nil && until(p) {
				return true
			}
			told = p.told || err != nil
		}
		return false
	}
	keepsOn(longEnough, func(progress) bool { return false })
	honest()
	s.eventually("all messages to be there", func() bool { return s.total() == twenty })
	for name := range s.snapshot().Queues { // as workers do
		if _, err := s.channel().QueuePurge(name, false); err != nil {
			s.t.Fatal(err)
		}
	}
	taken := time.Now()
	ends := func(p progress) bool { return p.done || p.told && time.Since(taken) > longEnough }
	if !keepsOn(endsWithin, ends) && !told {
		s.t.Errorf("it neither ends nor says why not: %+v, %+v", s.state.Retiring, s.state.Migrations)
	}
}

// total is the number of messages in all queues of the vhost.
func (s *stage) total() int {
	s.t.Helper()
	sum := 0
	for name := range s.snapshot().Queues {
		queue, err := s.channel().QueueDeclarePassive(name, true, false, false, false, nil)
		if err != nil {
			return -1 // it has gone since
		}
		sum += queue.Messages
	}
	return sum
}
