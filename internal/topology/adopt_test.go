package topology_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// adopting makes the queue test of the sample one that is adopted.
func adopting(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Adopt = new(true) }

// legacy puts a classic queue as old clients declare it in the place of the queue test, with a binding of its owner, before
// anything of ours was added to it.
func legacy(change ...func(*topology.QueueState)) func(*simulated) {
	return func(b *simulated) {
		b.queue("test", func(q *topology.QueueState) {
			q.Type, q.Durable, q.Arguments = topology.TypeClassic, true, topology.Arguments{}
			for _, c := range change {
				c(q)
			}
		})
		b.Bindings = slices.DeleteFunc(b.Bindings, func(x topology.Binding) bool { return x.Destination == "test" })
		b.Bindings = append(b.Bindings, topology.Binding{Source: "async", Destination: "test", RoutingKey: "test"})
		delete(b.Policies, "redrive.async:queue:test")
	}
}

func argument(name string, value any) func(*topology.QueueState) {
	return func(q *topology.QueueState) { q.Arguments[name] = value }
}

const (
	bindBack    = `+ binding async.return -> test "test"`
	bindIn      = `+ binding async -> test "test"`
	classicNote = "queue test: a classic queue dead-letters at most once"
	ourPolicy   = `+ policy redrive.async:queue:test  pattern=^test$, priority=100, `
)

func TestAdoption_TakesAQueueAsItIs(t *testing.T) {
	quorum := func(q *topology.QueueState) { q.Type = topology.TypeQuorum }
	checkDiff(t, []diffCase{
		{
			name: "without a dead-letter exchange it gets ours by policy", spec: adopting, broker: legacy(),
			want: expectation{
				adopted: []string{"queue/test"}, warnings: []string{classicNote},
				plan: []string{ourPolicy + "dead-letter-exchange=async.failed", bindBack, bindIn},
			},
		},
		{
			name: "a quorum queue dead-letters at least once, and gets no delivery limit that it did not have",
			spec: adopting, broker: legacy(quorum),
			want: expectation{
				adopted: []string{"queue/test"},
				plan: []string{
					ourPolicy + "dead-letter-exchange=async.failed, dead-letter-strategy=at-least-once, overflow=reject-publish", bindBack, bindIn,
				},
			},
		},
		{
			name: "a quorum queue with a bound goes on dropping and does not begin to refuse",
			spec: adopting, broker: legacy(quorum, argument("x-max-length", 10)),
			want: expectation{
				adopted: []string{"queue/test"}, plan: []string{ourPolicy + "dead-letter-exchange=async.failed", bindBack, bindIn},
				warnings: []string{"queue test: its argument x-max-length is 10: over that its oldest messages are dead-lettered"},
			},
		},
		{
			name: "limits are set, beside our dead-letter exchange",
			spec: func(tr *v1alpha1.Transport) {
				adopting(tr)
				tr.Spec.Queues[1].Limits = &v1alpha1.Limits{DropOldestAfter: new(int64(9))}
			},
			broker: legacy(quorum),
			want: expectation{
				adopted: []string{"queue/test"},
				plan:    []string{ourPolicy + "dead-letter-exchange=async.failed, max-length=9, overflow=drop-head", bindBack, bindIn},
			},
		},
		{
			name: "its own dead-letter exchange stays and is reported",
			spec: adopting, broker: func(b *simulated) {
				legacy(quorum, argument("x-dead-letter-exchange", "old.dlx"))(b)
				b.exchange("old.dlx", func(e *topology.ExchangeState) { e.Type = "direct" })
			},
			want: expectation{
				adopted: []string{"queue/test"}, plan: []string{bindBack, bindIn},
				warnings: []string{`queue test: its dead-letter exchange is "old.dlx": what expires in it`},
			},
		},
		{
			name: "its own dead-letter exchange that does not exist is a loss", spec: adopting,
			broker: legacy(quorum, argument("x-dead-letter-exchange", "gone")),
			want: expectation{
				adopted: []string{"queue/test"}, plan: []string{bindBack, bindIn},
				warnings: []string{`queue test: its dead-letter exchange "gone" does not exist: what expires in it, is rejected, or cannot be ` +
					`published again by a worker is lost: make it`},
			},
		},
		{
			name: "a policy of others is not displaced", spec: adopting,
			broker: func(b *simulated) {
				legacy(quorum)(b)
				b.Policies["ha"] = topology.Policy{Name: "ha", Pattern: "^test$", ApplyTo: "queues", Definition: topology.Arguments{"queue-leader-locator": "balanced"}}
			},
			want: expectation{
				adopted: []string{"queue/test"}, plan: []string{bindBack, bindIn},
				warnings: []string{`queue test: it has no dead-letter exchange, and the RabbitMQ policy "ha", which Redrive does not displace, ` +
					`gives it none: what expires in it, is rejected, or cannot be published again by a worker is lost: add dead-letter-exchange: ` +
					`async.failed to that policy`},
			},
		},
		{
			name: "a policy of others that comes later does not take the way out away", spec: adopting,
			broker: func(b *simulated) {
				legacy(quorum)(b)
				b.converge(desired(t, async(adopting)))
				b.Policies["ha"] = topology.Policy{Name: "ha", Pattern: "^test$", ApplyTo: "queues", Definition: topology.Arguments{"queue-leader-locator": "balanced"}}
			},
			want: expectation{
				adopted:  []string{"queue/test"},
				warnings: []string{`the RabbitMQ policy "ha" does not apply to it, because "redrive.async:queue:test" does`},
			},
		},
		{
			name: "a policy of others that dead-letters and comes later takes the place of ours", spec: adopting,
			broker: func(b *simulated) {
				legacy(quorum)(b)
				b.converge(desired(t, async(adopting)))
				b.Policies["dlx"] = topology.Policy{Name: "dlx", Pattern: "^test$", ApplyTo: "queues", Definition: topology.Arguments{"dead-letter-exchange": "async.failed"}}
			},
			want: expectation{adopted: []string{"queue/test"}, plan: []string{"- policy redrive.async:queue:test"}},
		},
		{
			name: "a policy of others that dead-letters is reported as what it is", spec: adopting,
			broker: func(b *simulated) {
				legacy(quorum)(b)
				b.exchange("old.dlx", func(e *topology.ExchangeState) { e.Type = "direct" })
				b.Policies["dlx"] = topology.Policy{Name: "dlx", Pattern: "^test$", ApplyTo: "queues", Definition: topology.Arguments{"dead-letter-exchange": "old.dlx"}}
			},
			want: expectation{
				adopted: []string{"queue/test"}, plan: []string{bindBack, bindIn},
				warnings: []string{`queue test: its dead-letter exchange is "old.dlx"`},
			},
		},
		{
			name: "what may delete it is reported", spec: adopting,
			broker: legacy(quorum, argument("x-dead-letter-exchange", "async.failed"), argument("x-expires", 60000),
				func(q *topology.QueueState) { q.Durable = false }),
			want: expectation{
				adopted: []string{"queue/test"}, plan: []string{bindBack, bindIn},
				warnings: []string{"it is not durable", "its argument x-expires is 60000"},
			},
		},
		{
			name: "a bound that refuses is reported: it stops lanes", spec: adopting,
			broker: legacy(quorum, argument("x-dead-letter-exchange", "async.failed"), argument("x-max-length-bytes", 10), argument("x-overflow", "reject-publish")),
			want: expectation{
				adopted: []string{"queue/test"}, plan: []string{bindBack, bindIn},
				warnings: []string{"its argument x-max-length-bytes is 10, and it refuses what is over: a full queue stops the lanes"},
			},
		},
		{
			name: "bindings of others into it are its owner's matter", spec: adopting,
			broker: func(b *simulated) {
				legacy(quorum, argument("x-dead-letter-exchange", "async.failed"))(b)
				b.Bindings = append(b.Bindings, topology.Binding{Source: "events", Destination: "test", RoutingKey: "order.#"})
			},
			want: expectation{adopted: []string{"queue/test"}, plan: []string{bindBack, bindIn}},
		},
		{
			name: "one that does not exist is not made, nothing is bound to it, and the rest works", spec: adopting,
			broker: func(b *simulated) {
				legacy()(b)
				delete(b.Queues, "test")
			},
			want: expectation{
				problems: []string{"queue test: there is no queue to adopt"},
				withheld: []string{"async.return -> test: queue test does not exist", "async -> test: queue test does not exist"},
			},
		},
		{
			name: "one that does not exist keeps no way but those by its own keys", spec: adopting,
			broker: func(b *simulated) {
				legacy()(b)
				delete(b.Queues, "test")
				for _, key := range []string{"test", "former"} {
					b.Bindings = append(b.Bindings, topology.Binding{
						Source: "async", Destination: "lost", RoutingKey: key, Arguments: topology.Arguments{topology.OwnerArgument: owner},
					})
				}
			},
			want: expectation{
				plan:     []string{`- binding async -> lost "former"`},
				problems: []string{"queue test: there is no queue to adopt"},
				withheld: []string{"async.return -> test: queue test does not exist", "async -> test: queue test does not exist"},
			},
		},
		{
			name: "its policy waits for it while it is away", spec: adopting,
			broker: func(b *simulated) { delete(b.Queues, "test") },
			want:   expectation{problems: []string{"queue test: there is no queue to adopt"}},
		},
		{
			name: "one that we made is not ours any more, and keeps its policy", spec: adopting,
			want: expectation{adopted: []string{"queue/test"}},
		},
		{
			name: "one that goes with its last consumer is a conflict: a worker leaves it for each new prefetch", spec: adopting,
			broker: legacy(quorum, func(q *topology.QueueState) { q.AutoDelete = true }),
			want: expectation{
				conflicts: []string{`queue "test": auto-delete is true, wanted is false; RabbitMQ deletes it with its messages when its last consumer leaves`},
				withheld:  []string{"async.return -> test: queue test is in conflict", "async -> test: queue test is in conflict"},
			},
		},
		{
			name: "a stream is a conflict", spec: adopting, broker: legacy(func(q *topology.QueueState) { q.Type = "stream" }),
			want: expectation{
				conflicts: []string{`queue "test": type is stream, wanted is quorum or classic; workers cannot consume it`},
				withheld:  []string{"async.return -> test: queue test is in conflict", "async -> test: queue test is in conflict"},
			},
		},
		{
			name: "an exclusive queue is a conflict", spec: adopting, broker: legacy(func(q *topology.QueueState) { q.Exclusive = true }),
			want: expectation{
				conflicts: []string{`queue "test": exclusive is true, wanted is false; only the connection that declared it`},
				withheld:  []string{"async.return -> test: queue test is in conflict", "async -> test: queue test is in conflict"},
			},
		},
	})
}

func TestAdoption_RefusesAQueueThatAnotherTransportUses(t *testing.T) {
	const other = "c1/shop/zebra"
	others := func(b *simulated) {
		b.exchange("zebra.return", func(e *topology.ExchangeState) { e.Arguments["redrive-owner"] = other })
		b.exchange("zebra.failed", func(e *topology.ExchangeState) { e.Arguments["redrive-owner"] = other })
	}
	wayBack := func(b *simulated, source, owner string) {
		b.Bindings = append(b.Bindings, topology.Binding{
			Source: source, Destination: "test", RoutingKey: "test", Arguments: topology.Arguments{"redrive-owner": owner},
		})
	}
	withheld := []string{"async.return -> test: queue test is in conflict", "async -> test: queue test is in conflict"}
	quorum := func(q *topology.QueueState) { q.Type = topology.TypeQuorum }
	checkDiff(t, []diffCase{
		{
			name: "that it has made, by its mark", spec: adopting,
			broker: func(b *simulated) {
				others(b)
				legacy(quorum, argument("redrive-owner", other))(b)
			},
			want: expectation{conflicts: []string{`queue "test": redrive-owner is c1/shop/zebra, wanted is c1/shop/async; it is owned by the ` +
				`Transport shop/zebra: choose another name`}, withheld: withheld},
		},
		{
			name: "that it has made since we wrote a policy for it, which would shorten its messages' lives", spec: func(tr *v1alpha1.Transport) {
				adopting(tr)
				tr.Spec.Queues[1].Limits = &v1alpha1.Limits{MessageTTL: v1alpha1.NewDuration(time.Second)}
			},
			broker: func(b *simulated) {
				others(b)
				legacy(quorum, argument("redrive-owner", other))(b)
				b.Policies["redrive.async:queue:test"] = topology.Policy{
					Name: "redrive.async:queue:test", Pattern: "^test$", ApplyTo: "queues", Priority: 100, Definition: topology.Arguments{"message-ttl": 1000},
				}
			},
			want: expectation{
				conflicts: []string{"it is owned by the Transport shop/zebra"}, plan: []string{"- policy redrive.async:queue:test"}, withheld: withheld,
			},
		},
		{
			name: "that it has made without a mark, by its dead-letter exchange", spec: adopting,
			broker: func(b *simulated) {
				others(b)
				legacy(argument("x-dead-letter-exchange", "zebra.failed"))(b)
			},
			want: expectation{conflicts: []string{`queue "test": redrive-owner of its dead-letter exchange zebra.failed is c1/shop/zebra, wanted is ` +
				`c1/shop/async; it is owned by the Transport shop/zebra`}, withheld: withheld},
		},
		{
			name: "that it has made without a mark, where we would make one",
			broker: func(b *simulated) {
				others(b)
				legacy(argument("x-dead-letter-exchange", "zebra.failed"))(b)
			},
			spec: func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic) },
			want: expectation{conflicts: []string{`queue "test": x-dead-letter-exchange is zebra.failed, wanted is async.failed; the Transport ` +
				`shop/zebra seems to use it (by the redrive-owner of its dead-letter exchange zebra.failed): choose another name`}, withheld: withheld},
		},
		{
			name: "that it has adopted, by its way back", spec: adopting,
			broker: func(b *simulated) {
				others(b)
				legacy(quorum)(b)
				wayBack(b, "zebra.return", other)
			},
			want: expectation{conflicts: []string{`queue "test": redrive-owner of the binding zebra.return -> test "test" is c1/shop/zebra, wanted is ` +
				`c1/shop/async; the Transport shop/zebra consumes it: name it in one Transport only; if that one is gone for good, remove the ` +
				`binding zebra.return -> test "test"`}, withheld: withheld},
		},
		{
			name: "that both adopted at the same time stays with the first by name", spec: adopting,
			broker: func(b *simulated) {
				others(b)
				legacy(quorum, argument("x-dead-letter-exchange", "async.failed"))(b)
				wayBack(b, "zebra.return", other)
				wayBack(b, "async.return", owner)
			},
			want: expectation{adopted: []string{"queue/test"}, plan: []string{bindIn}},
		},
		{
			name: "that both adopted at the same time is left to the first by name, and our bindings go", spec: adopting,
			broker: func(b *simulated) {
				legacy(quorum, argument("x-dead-letter-exchange", "async.failed"))(b)
				b.exchange("ant.return", func(e *topology.ExchangeState) { e.Arguments["redrive-owner"] = "c1/shop/ant" })
				wayBack(b, "ant.return", "c1/shop/ant")
				wayBack(b, "async.return", owner)
			},
			want: expectation{
				conflicts: []string{"the Transport shop/ant consumes it"}, plan: []string{`- binding async.return -> test "test"`}, withheld: withheld[1:],
			},
		},
	})
}

// theirs is a change of a queue that somebody else has made.
func theirs(change func(*topology.QueueState)) func(*topology.QueueState) {
	return func(q *topology.QueueState) {
		delete(q.Arguments, topology.OwnerArgument)
		change(q)
	}
}

func TestConflict_NamesObjectArgumentValuesAndRemedy(t *testing.T) {
	cases := map[string]struct {
		broker func(*simulated)
		want   string
	}{
		"a work queue of another type": {
			func(b *simulated) { b.queue("test", theirs(func(q *topology.QueueState) { q.Type = "classic" })) },
			`queue "test": type is classic, wanted is quorum; a queue cannot change it in place: set adopt: true to use the queue unchanged, ` +
				`or choose another name and let this one run empty, or delete it once it is empty`,
		},
		"a work queue that is not durable": {
			func(b *simulated) { b.queue("test", theirs(func(q *topology.QueueState) { q.Durable = false })) },
			`queue "test": durable is false, wanted is true; `,
		},
		"a work queue without a dead-letter exchange": {
			func(b *simulated) {
				b.queue("test", theirs(func(q *topology.QueueState) { delete(q.Arguments, "x-dead-letter-exchange") }))
			},
			`queue "test": x-dead-letter-exchange is none, wanted is async.failed; `,
		},
		"a work queue with a length limit": {
			func(b *simulated) { b.queue("test", theirs(argument("x-max-length", 10))) },
			`queue "test": x-max-length is 10, wanted is none; `,
		},
		"a lane with another TTL": {
			func(b *simulated) { b.queue("async.fallback.5s", argument("x-message-ttl", 60000)) },
			`queue "async.fallback.5s": x-message-ttl is 60000, wanted is 5000; a queue cannot change it in place: set spec.prefix to another value`,
		},
		"a failure queue with a TTL": {
			func(b *simulated) { b.queue("async.failed", argument("x-message-ttl", 60000)) },
			`queue "async.failed": x-message-ttl is 60000, wanted is none; a queue cannot change it in place: set spec.failure.queue to another name`,
		},
		"a direct exchange in the place of the fallback exchange": {
			func(b *simulated) {
				b.exchange("async.fallback", func(e *topology.ExchangeState) { e.Type, e.Arguments = "direct", nil })
			},
			`exchange "async.fallback": type is direct, wanted is headers; an exchange cannot change it in place: set spec.prefix to another value`,
		},
		"a producers' exchange of another type": {
			func(b *simulated) { b.exchange("async", func(e *topology.ExchangeState) { e.Type = "topic" }) },
			`exchange "async": type is topic, wanted is direct; an exchange cannot change it in place: delete the exchange once it is unused, or choose another name`,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			broker := emptyBroker()
			broker.converge(desired(t, async()))
			c.broker(broker)
			got := topology.Diff(desired(t, async()), broker.Observed, []string{createdExchange})
			if len(got.Conflicts) != 1 || !strings.HasPrefix(got.Conflicts[0].String(), c.want) {
				t.Errorf("want %q, got %v", c.want, got.Conflicts)
			}
		})
	}
}

func TestDiff_MakesNothingUnderATakenPrefix(t *testing.T) {
	broker := emptyBroker()
	theirs, err := topology.Desired(async(), compile.Needs{Lanes: lanes()[:1]}, "c1/blog/async")
	if err != nil {
		t.Fatal(err)
	}
	broker.converge(theirs)
	ours := desired(t, async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues = append(tr.Spec.Queues, v1alpha1.Queue{Name: "more", Type: new(v1alpha1.QueueClassic), BindingKeys: []string{"more"}})
	}))
	got := topology.Diff(ours, broker.Observed, nil)
	if plan := topology.Plan(got); len(plan) > 0 || len(got.Unmarked) > 0 || len(got.Conflicts) == 0 {
		t.Errorf("plan %q, to be written down %v, %d conflicts", lines(plan), got.Unmarked, len(got.Conflicts))
	}
	if left := topology.BelongingsOf(owner, "async", broker.Observed, nil); !left.Empty() {
		t.Errorf("its deletion would take %+v", left)
	}
}

// sharing is another Transport of the exchange.
func sharing(t *testing.T, unrouted *string) topology.Objects {
	t.Helper()
	transport := async(func(tr *v1alpha1.Transport) {
		tr.Name, tr.Spec.Prefix, tr.Spec.Exchange.UnroutedTo = "second", new("second"), unrouted
		tr.Spec.Queues = []v1alpha1.Queue{{Name: "second", BindingKeys: []string{"second"}}}
	})
	objects, err := topology.Desired(transport, compile.Needs{}, "c1/shop/second")
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// exchangePolicies are the names of the policies by which Transports lead unroutable messages away.
func (s *simulated) exchangePolicies() (names []string) {
	for name := range s.Policies {
		if strings.HasSuffix(name, ":exchange") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// unroutableTo is the queue that unroutable messages come into.
func (s *simulated) unroutableTo() (queue string) {
	var applied topology.Policy
	for _, name := range s.exchangePolicies() {
		if policy := s.Policies[name]; policy.Priority > applied.Priority {
			applied = policy
		}
	}
	alternate, _ := applied.Definition["alternate-exchange"].(string)
	for _, binding := range s.Bindings {
		if binding.Source == strings.Replace(alternate, ".alternate", ".unrouted", 1) {
			queue = binding.Destination
		}
	}
	return queue
}

func TestUnroutedTo_BelongsToOneTransportOfASharedExchange(t *testing.T) {
	second := func(unrouted *string) topology.Objects { return sharing(t, unrouted) }
	policies := (*simulated).exchangePolicies
	first := desired(t, async())

	t.Run("the second has no use for it", func(t *testing.T) {
		broker := emptyBroker()
		broker.converge(first)
		if got := broker.converge(second(nil)); len(got.Warnings) > 0 || !slices.Equal(policies(broker), []string{"redrive.async:exchange"}) {
			t.Errorf("%v, warnings %v", policies(broker), got.Warnings)
		}
	})
	t.Run("the second wants it too and is told", func(t *testing.T) {
		broker := emptyBroker()
		broker.converge(first)
		got := broker.converge(second(new("second")))
		contains(t, "warnings", got.Warnings, []string{`exchange async: another Transport routes its unroutable messages already, by the RabbitMQ policy "redrive.async:exchange"`})
		for range 2 {
			if again := broker.converge(first); len(got.Warnings) != 1 || len(again.Warnings) > 0 {
				t.Errorf("warnings of the second %v, of the first %v", got.Warnings, again.Warnings)
			}
			got = broker.converge(second(new("second")))
		}
		if to := broker.unroutableTo(); to != "lost" {
			t.Errorf("unroutable messages go to %q", to)
		}
	})
	t.Run("the second has it while the first does not know yet", func(t *testing.T) {
		broker := emptyBroker()
		broker.converge(desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Exchange.UnroutedTo = nil })))
		broker.converge(second(new("second")))
		if to := broker.unroutableTo(); to != "second" {
			t.Errorf("unroutable messages go to %q", to)
		}
	})
	t.Run("the first had no use for it", func(t *testing.T) {
		broker := emptyBroker()
		none := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Exchange.UnroutedTo = nil }))
		broker.converge(none)
		broker.converge(second(new("second")))
		broker.converge(none)
		if !slices.Equal(policies(broker), []string{"redrive.second:exchange"}) {
			t.Errorf("%v", policies(broker))
		}
	})
	t.Run("neither has a use for it, and both came at the same time", func(t *testing.T) {
		broker := emptyBroker()
		none := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Exchange.UnroutedTo = nil }))
		for range 3 {
			differences := []topology.Difference{topology.Diff(none, broker.Observed, nil), topology.Diff(second(nil), broker.Observed, nil)}
			for _, difference := range differences {
				for _, step := range topology.Plan(difference) {
					broker.apply(step)
				}
			}
		}
		if !slices.Equal(policies(broker), []string{"redrive.async:exchange"}) {
			t.Errorf("%v", policies(broker))
		}
	})
	t.Run("both came at the same time", func(t *testing.T) {
		broker := emptyBroker()
		differences := []topology.Difference{
			topology.Diff(first, broker.Observed, nil), topology.Diff(second(new("second")), broker.Observed, nil),
		}
		for _, difference := range differences {
			for _, step := range topology.Plan(difference) {
				broker.apply(step)
			}
		}
		for range 2 {
			broker.converge(second(new("second")))
			broker.converge(first)
		}
		if to := broker.unroutableTo(); to != "lost" {
			t.Errorf("unroutable messages go to %q", to)
		}
	})
	t.Run("a policy of the user's goes on where unroutedTo is left out", func(t *testing.T) {
		broker := emptyBroker()
		broker.exchange("async", func(e *topology.ExchangeState) { e.Type, e.Durable = "direct", true })
		broker.Policies["ae"] = topology.Policy{Name: "ae", Pattern: "^async$", ApplyTo: "exchanges", Definition: topology.Arguments{"alternate-exchange": "mine"}}
		got := broker.converge(desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Exchange.UnroutedTo = nil })))
		if len(policies(broker)) > 0 || len(got.Warnings) > 0 {
			t.Errorf("%v, warnings %v", policies(broker), got.Warnings)
		}
	})
}

func TestUnroutedTo_MovesToAnotherTransportWithoutAStepThatDrops(t *testing.T) {
	first := desired(t, async())
	none := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Exchange.UnroutedTo = nil }))
	broker := emptyBroker()
	broker.converge(first)
	broker.converge(sharing(t, nil))
	for _, next := range []topology.Objects{sharing(t, new("second")), none, sharing(t, new("second")), none} {
		for _, step := range topology.Plan(topology.Diff(next, broker.Observed, nil)) {
			if broker.apply(step); broker.unroutableTo() == "" {
				t.Errorf("dropped after %s", step)
			}
		}
	}
	if to := broker.unroutableTo(); to != "second" || !slices.Equal(broker.exchangePolicies(), []string{"redrive.second:exchange"}) {
		t.Errorf("unroutable messages go to %q, policies %v", to, broker.exchangePolicies())
	}
}

func TestDisown_TakesAQueueFromTheBelongings(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	observed := broker.Disown(owner, []string{"queue/test", "queue/nowhere", "exchange/async.failed"})
	got := topology.BelongingsOf(owner, "async", observed, []string{createdExchange})
	if len(got.Work) != 1 || got.Work[0].Name != "lost" || len(got.Exchanges) != 6 || got.Leaves != "test" {
		t.Errorf("work queues %v, exchanges %v, and %q dead-letters to the last one", got.Work, got.Exchanges, got.Leaves)
	}
	contains(t, "released", got.Released, []string{"redrive.async:queue:test"})
	var back []string
	for _, binding := range got.Bindings {
		back = append(back, binding.Name())
	}
	contains(t, "bindings", back, []string{`async.return -> test "test"`})
	if broker.Queues["test"].Arguments.Owner() != owner {
		t.Error("the snapshot itself has changed")
	}
}

// RabbitMQ applies no policy to a queue whose type does not know one of its keys. One of others that was taken to give an adopted queue a way out, or to be
// displaced by ours, left it without any: what expired in it was dropped.
func TestAdoption_IgnoresPoliciesThatRabbitMQDoesNotApply(t *testing.T) {
	for _, kind := range []string{topology.TypeClassic, topology.TypeQuorum} {
		for key, unknownTo := range map[string]string{
			"delivery-limit": topology.TypeClassic, "dead-letter-strategy": topology.TypeClassic, "queue-mode": topology.TypeQuorum, "ha-mode": topology.TypeQuorum,
		} {
			broker := emptyBroker()
			broker.queue("test", func(q *topology.QueueState) {
				q.Type, q.Durable, q.Arguments = kind, true, topology.Arguments{"x-queue-type": kind}
			})
			broker.Policies["theirs"] = topology.Policy{
				Name: "theirs", Pattern: "^", ApplyTo: "queues", Priority: 1, Definition: topology.Arguments{"dead-letter-exchange": "theirs", key: 1},
			}
			adopts := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Adopt = new(true) }))
			diff := topology.Diff(adopts, broker.Observed, nil)
			leads := slices.ContainsFunc(diff.Missing.Policies, func(p topology.Policy) bool {
				return p.Name == "redrive.async:queue:test" && p.Definition["dead-letter-exchange"] == "async.failed"
			})
			if leads != (kind == unknownTo) {
				t.Errorf("a %s queue beside a policy with %s has a way out by ours: %t", kind, key, leads)
			}
		}
	}
}
