package topology_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

func TestDelayedRetryWarnings_TellsWhatBreaksOrderOrStopsAQueue(t *testing.T) {
	const queuePolicy = "redrive.async:queue:test"
	limited := func(tr *v1alpha1.Transport) {
		tr.Spec.Queues[1].Limits = &v1alpha1.Limits{DropOldestAfter: new(int64(100))}
	}
	delayed := topology.Arguments{"delayed-retry-type": "all", "delayed-retry-min": 2000}
	byOperator := func(queue string, definition topology.Arguments) func(*simulated) {
		return func(b *simulated) {
			b.queue(queue, func(q *topology.QueueState) { q.OperatorPolicy, q.EffectiveDefinition = "slow", definition })
		}
	}
	byPolicy := func(priority int, definition topology.Arguments) func(*simulated) {
		return func(b *simulated) {
			b.Policies["theirs"] = topology.Policy{Name: "theirs", Pattern: "^test", ApplyTo: "queues", Priority: priority, Definition: definition}
		}
	}
	byArgument := func(arguments topology.Arguments) func(*simulated) {
		return func(b *simulated) {
			b.queue("test", func(q *topology.QueueState) {
				maps.Copy(q.Arguments, arguments)
			})
		}
	}
	const order, hangs = "breaks the Strict order; workers do not consume the queue", "the queue stops for good"
	cases := map[string]struct {
		change func(*v1alpha1.Transport)
		broker func(*simulated)
		// warning says what is told of the queue; nothing about order or length limits where it is empty.
		queue   string
		warning []string
		held    bool
	}{
		"an operator policy, on a Strict queue": {
			strict(""), byOperator("test", delayed), "test", []string{`the operator policy "slow" sets delayed-retry-type to all`, order, "list_operator_policies"}, true,
		},
		"a stronger policy of others, on a Strict queue": {
			strict(""), byPolicy(200, delayed), "test", []string{`the RabbitMQ policy "theirs" sets delayed-retry-type to all`, order, "narrow its pattern"}, true,
		},
		"a weaker policy of others":            {strict(""), byPolicy(50, delayed), "test", nil, false},
		"a policy that has just been replaced": {strict(""), replaced(delayed), "test", nil, false},
		"an operator policy that disables it":  {strict(""), byOperator("test", topology.Arguments{"delayed-retry-type": "disabled"}), "test", nil, false},
		"an argument, on a Strict queue": {
			strict(""), byArgument(topology.Arguments{"x-delayed-retry-type": "failed"}), "test",
			[]string{"its declaration sets x-delayed-retry-type to failed", order, "delete it"},
			true,
		},
		"an operator policy, on a queue without an order": {nil, byOperator("test", delayed), "test", nil, false},
		"with dropOldestAfter of the Transport": {
			limited, byOperator("test", topology.Arguments{"delayed-retry-type": "returned", "max-length": 100, "overflow": "drop-head"}), "test",
			[]string{
				`the operator policy "slow" sets delayed-retry-type to returned, and the RabbitMQ policy "` + queuePolicy +
					`" sets max-length to 100 with overflow drop-head`, hangs,
			},
			false,
		},
		"before the limit is in force": {limited, byOperator("test", delayed), "test", []string{hangs}, false},
		"with dropOldestAfter of the failure queue": {
			func(tr *v1alpha1.Transport) { tr.Spec.Failure = &v1alpha1.Failure{DropOldestAfter: new(int64(100))} },
			byOperator("async.failed", delayed), "async.failed",
			[]string{hangs},
			false,
		},
		"both as arguments of an adopted queue": {
			adopting, byArgument(topology.Arguments{"x-queue-type": "quorum", "x-delayed-retry-type": "all", "x-max-length-bytes": 1000, "x-overflow": "drop-head"}),
			"test",
			[]string{"its declaration sets x-delayed-retry-type to all, and its declaration sets x-max-length-bytes to 1000", hangs},
			false,
		},
		"a limit that refuses what is over": {
			nil, byOperator("test", topology.Arguments{"delayed-retry-type": "all", "max-length": 5, "overflow": "reject-publish"}), "test", nil, false,
		},
		"a classic queue, to which the policy is not applied": {
			func(tr *v1alpha1.Transport) { limited(tr); tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic) },
			byOperator("test", delayed), "test", nil, false,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			change := c.change
			if change == nil {
				change = func(*v1alpha1.Transport) {}
			}
			wanted, broker := deliveries(t, 50, change), emptyBroker()
			if name == "both as arguments of an adopted queue" {
				broker.Queues["test"] = topology.QueueState{Queue: topology.Queue{
					Name: "test", Type: topology.TypeQuorum, Durable: true, Arguments: topology.Arguments{"x-dead-letter-exchange": "theirs"},
				}}
			}
			broker.converge(wanted, "exchange/async", "queue/test")
			c.broker(broker)
			difference := topology.Diff(wanted, broker.Observed, []string{"exchange/async", "queue/test"})
			var told []string
			for _, warning := range difference.Warnings {
				text := warning.String()
				if strings.Contains(text, order) || strings.Contains(text, hangs) {
					told = append(told, text)
				}
			}
			whole := strings.Join(told, "\n")
			for _, part := range c.warning {
				if !strings.Contains(whole, part) || !strings.Contains(whole, "queue "+c.queue+": ") {
					t.Errorf("want %q of queue %s, got %q", part, c.queue, whole)
				}
			}
			if len(c.warning) == 0 && len(told) > 0 {
				t.Errorf("want nothing told, got %q", whole)
			}
			if held := slices.Contains(difference.Disordered, "test"); held != c.held {
				t.Errorf("want it held: %t, got %v", c.held, difference.Disordered)
			}
		})
	}
}

// replaced is a broker that still shows what a weaker policy of others did, before ours took its place.
func replaced(definition topology.Arguments) func(*simulated) {
	return func(b *simulated) {
		b.Policies["theirs"] = topology.Policy{Name: "theirs", Pattern: "^test", ApplyTo: "queues", Priority: 50, Definition: definition}
		b.queue("test", func(q *topology.QueueState) { q.Policy, q.EffectiveDefinition = "theirs", definition })
	}
}

// A Strict queue that is on hold was consumed as soon as it got another name: first the hold was noted for a name that no configuration has, and then for none.
func TestDisordered_HoldsARenamedQueueToItsEnd(t *testing.T) {
	queue := func(name string, former ...string) func(*v1alpha1.Transport) {
		return func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1] = v1alpha1.Queue{
				Name: name, PreviousNames: former, BindingKeys: []string{"test"}, Ordering: &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict},
			}
		}
	}
	broker := emptyBroker()
	broker.converge(desired(t, async(queue("test"))))
	broker.queue("test", func(q *topology.QueueState) {
		q.OperatorPolicy, q.EffectiveDefinition = "slow", topology.Arguments{"delayed-retry-type": "all"}
	})
	past, steps := topology.Past{Created: []string{createdExchange}}, map[v1alpha1.MigrationStep]bool{}
	for range 8 {
		diff := topology.DiffSince(desired(t, async(queue("orders", "test"))), broker.Observed, past)
		for _, step := range topology.Plan(diff) {
			broker.apply(step)
		}
		past.Migrations = nil
		for _, m := range diff.Migrations {
			steps[m.Step] = true
			past.Migrations = append(past.Migrations, v1alpha1.Migration{Queue: m.Queue, Standin: m.Standin, Step: m.Step})
			if !slices.Contains(diff.Disordered, "test") {
				t.Errorf("in step %s, the order of queue test is taken for kept", m.Step)
			}
		}
	}
	if !steps[v1alpha1.MigrationCleanup] || len(steps) < 2 {
		t.Errorf("the steps are %v, and test is never emptied", steps)
	}
}
