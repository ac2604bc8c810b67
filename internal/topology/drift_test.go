package topology_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

// warned are the findings on a converged broker that somebody changed, as `Reason object: message`.
func warned(t *testing.T, spec *v1alpha1.Transport, change func(*simulated)) []string {
	t.Helper()
	broker := emptyBroker()
	broker.exchange("shop.events", func(e *topology.ExchangeState) { e.Type = topology.TypeTopic })
	broker.exchange("shop.fanout", func(e *topology.ExchangeState) { e.Type = topology.TypeFanout })
	broker.exchange("shop.headers", func(e *topology.ExchangeState) { e.Type = topology.TypeHeaders })
	objects := desired(t, spec)
	broker.converge(objects)
	change(broker)
	difference := topology.Diff(objects, broker.Observed, []string{createdExchange})
	if !difference.Empty() {
		t.Errorf("reported is also written: %v", lines(topology.Plan(difference)))
	}
	texts := make([]string, len(difference.Warnings))
	for i, finding := range difference.Warnings {
		texts[i] = finding.Reason + " " + finding.String()
	}
	return texts
}

func TestForeignBindings_AreReportedAndNotRemoved(t *testing.T) {
	bind := func(source, destination, key string) topology.Binding {
		return topology.Binding{Source: source, Destination: destination, RoutingKey: key}
	}
	tests := map[string]struct {
		spec     func(*v1alpha1.Transport)
		bindings []topology.Binding
		want     []string
	}{
		"into a work queue, from an exchange of others": {
			bindings: []topology.Binding{bind("shop.events", "test", "order.#")},
			want: []string{`ForeignBinding queue test: it also gets messages of exchange "shop.events" (key "order.#"), which ` +
				"spec.queues[].bindings and bindingKeys do not have"},
		},
		"into a work queue, from the producers' exchange with another key": {
			bindings: []topology.Binding{bind("async", "test", "other")},
			want:     []string{`ForeignBinding queue test: it also gets messages of exchange "async" (key "other")`},
		},
		"into a lane, where messages wait and go somewhere": {
			bindings: []topology.Binding{bind("shop.events", "async.fallback.5s", "k")},
			want: []string{`ForeignBinding queue async.fallback.5s: it also gets messages of exchange "shop.events" (key "k"): they ` +
				"wait here, and then go to the queue that their key names, or else to the failure queue"},
		},
		"into the failure queue": {
			bindings: []topology.Binding{bind("shop.events", "async.failed", "k")},
			want:     []string{`ForeignBinding queue async.failed: it also gets messages of exchange "shop.events" (key "k"): they count as failed`},
		},
		"into a private exchange": {
			bindings: []topology.Binding{{Source: "shop.events", Destination: "async.return", ToExchange: true, RoutingKey: "k"}},
			want:     []string{`ForeignBinding exchange async.return: messages of exchange "shop.events" (key "k") come into this private exchange`},
		},
		"out of a private exchange": {
			bindings: []topology.Binding{bind("async.failed", "audit", ""), bind("async.failed", "copy", "")},
			want:     []string{`ForeignBinding exchange async.failed: this private exchange has a binding of others to "audit" (key ""), "copy" (key "")`},
		},
		"with a mark of somebody else": {
			bindings: []topology.Binding{{
				Source: "shop.events", Destination: "test", RoutingKey: "k", Arguments: topology.Arguments{"redrive-owner": "c1/shop/other"},
			}},
			want: []string{"ForeignBinding queue test: it also gets messages of"},
		},
		"many of them, in few words that do not depend on the broker's order": {
			bindings: []topology.Binding{
				bind("shop.events", "test", "e"), bind("shop.events", "test", "d"), bind("shop.events", "test", "a"),
				bind("shop.events", "test", "c"), bind("shop.events", "test", "b"),
			},
			want: []string{`exchange "shop.events" (key "a"), exchange "shop.events" (key "b"), exchange "shop.events" (key "c") and 2 more`},
		},
		"but not what a client binds beside us, by which the same messages come": {
			bindings: []topology.Binding{bind("async", "test", "test")},
		},
		"but not another key of a fanout exchange, which has no keys": {
			spec: func(t *v1alpha1.Transport) {
				t.Spec.Queues[1].Bindings = []v1alpha1.Binding{{Exchange: "shop.fanout", Keys: []string{""}}}
			},
			bindings: []topology.Binding{bind("shop.fanout", "test", "whatever")},
		},
		"a headers exchange, of which the arguments count": {
			bindings: []topology.Binding{{
				Source: "shop.headers", Destination: "test", Arguments: topology.Arguments{"x-match": "all", "kind": "paid"},
			}},
			want: []string{`ForeignBinding queue test: it also gets messages of exchange "shop.headers"`},
		},
		"but not what leads into the producers' exchange, or between what is not ours": {
			bindings: []topology.Binding{
				{Source: "shop.events", Destination: "async", ToExchange: true, RoutingKey: "#"},
				bind("shop.events", "theirs", "k"),
				bind("async", "theirs", "k"),
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			spec := async()
			if tt.spec != nil {
				tt.spec(spec)
			}
			contains(t, "warnings", warned(t, spec, func(b *simulated) { b.Bindings = append(b.Bindings, tt.bindings...) }), tt.want)
		})
	}
}

func TestStalls_NamesAStalledLaneAndItsCause(t *testing.T) {
	stalled := func(b *simulated) {
		b.queue("async.fallback.5s", func(q *topology.QueueState) { q.MessagesDLX = 32 })
	}
	// bounded is a queue that a policy of others bounds and that holds so many ready messages.
	bounded := func(name string, limit int, ready int64, overflow string) func(b *simulated) {
		return func(b *simulated) {
			definition := topology.Arguments{"max-length": limit}
			if overflow != "" {
				definition["overflow"] = overflow
			}
			b.Policies["bound"] = topology.Policy{Name: "bound", Pattern: "^" + name + "$", ApplyTo: "queues", Priority: 5000, Definition: definition}
			b.queue(name, func(q *topology.QueueState) {
				q.Policy, q.EffectiveDefinition, q.Ready = "bound", throughJSON(definition), ready
			})
		}
	}
	tests := map[string]struct {
		changes []func(*simulated)
		// want are the findings of these two reasons; those about the policy itself are tested elsewhere.
		want []string
	}{
		"a few expired messages are normal": {
			changes: []func(*simulated){func(b *simulated) {
				b.queue("async.fallback.5s", func(q *topology.QueueState) { q.MessagesDLX = 31 })
			}},
		},
		"many of them may be on their way": {
			changes: []func(*simulated){stalled},
			want: []string{"LaneStalled queue async.fallback.5s: 32 or more expired messages wait to leave it, and what comes later " +
				"waits behind them: a queue that they return to takes none"},
		},
		"many of them, and a work queue that is full": {
			changes: []func(*simulated){stalled, bounded("test", 100, 100, "reject-publish")},
			want: []string{
				`DestinationFull queue test: it is full and refuses messages, which stops the lanes that lead to it (max-length 100 by the RabbitMQ policy "bound")`,
				"LaneStalled queue async.fallback.5s: 32 or more expired messages wait to leave it, and what comes later waits behind them: queue test is full",
			},
		},
		"a full queue is told of before a lane stalls, also the failure queue": {
			changes: []func(*simulated){bounded("async.failed", 10, 12, "reject-publish-dlx")},
			want:    []string{"DestinationFull queue async.failed: it is full"},
		},
		"a work queue refuses by its own argument where a policy only bounds it": {
			changes: []func(*simulated){bounded("test", 100, 100, "")},
			want:    []string{"DestinationFull queue test: it is full"},
		},
		"a queue that drops its oldest refuses nothing": {
			changes: []func(*simulated){bounded("test", 100, 100, "drop-head")},
		},
		"a queue that is not full yet refuses nothing": {
			changes: []func(*simulated){bounded("test", 100, 99, "reject-publish")},
		},
		"a limit that is an argument of the queue, as an adopted one may have": {
			changes: []func(*simulated){func(b *simulated) {
				b.queue("test", func(q *topology.QueueState) { q.Arguments["x-max-length"], q.Ready = 3, 4 })
			}},
			want: []string{"DestinationFull queue test: it is full and refuses messages, which stops the lanes that lead to it (its argument x-max-length is 3)"},
		},
		"a limit of an operator policy": {
			changes: []func(*simulated){func(b *simulated) {
				b.queue("test", func(q *topology.QueueState) {
					q.Policy, q.Ready = "redrive.async:queue:test", 50
					q.EffectiveDefinition = topology.Arguments{"delivery-limit": 20, "max-length": 50}
				})
			}},
			want: []string{"(max-length 50 by an operator policy)"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			broker := emptyBroker()
			broker.converge(desired(t, async()))
			for _, change := range tt.changes {
				change(broker)
			}
			difference := topology.Diff(desired(t, async()), broker.Observed, []string{createdExchange})
			var got []string
			for _, finding := range difference.Warnings {
				if finding.Reason == v1alpha1.ReasonLaneStalled || finding.Reason == v1alpha1.ReasonDestinationFull {
					got = append(got, finding.Reason+" "+finding.String())
				}
				alone := finding.Reason == v1alpha1.ReasonLaneStalled && len(got) == 1
				if finding.Passing != alone {
					t.Errorf("passing is %v: %s", finding.Passing, finding)
				}
			}
			contains(t, "warnings", got, tt.want)
		})
	}
}

func TestWarnings_GivesARemedyForEveryHarmfulPolicy(t *testing.T) {
	policy := func(pattern, applyTo string, priority int, definition topology.Arguments) func(*simulated) {
		return func(b *simulated) {
			b.Policies["theirs"] = topology.Policy{Name: "theirs", Pattern: pattern, ApplyTo: applyTo, Priority: priority, Definition: definition}
		}
	}
	tests := map[string]struct {
		change func(*simulated)
		want   []string
	}{
		"one that shortens lanes": {
			change: policy("fallback.5s", "queues", 5000, topology.Arguments{"message-ttl": 9}),
			want: []string{
				"PolicyOverridden queue async.fallback.5s: the RabbitMQ policy \"theirs\" (priority 5000) applies instead of",
				"sets message-ttl: retries come back too early: narrow its pattern, or give it a priority below 1000",
			},
		},
		"one that stops applying": {
			change: policy("^test$", "queues", 1, topology.Arguments{"message-ttl": 9}),
			want:   []string{"PolicyOverridden queue test: the RabbitMQ policy \"theirs\" does not apply to it"},
		},
		"an operator policy": {
			change: func(b *simulated) {
				b.queue("async.failed", func(q *topology.QueueState) {
					q.Policy = "redrive.async:failure:async.failed"
					q.EffectiveDefinition = topology.Arguments{"delivery-limit": 1<<31 - 1, "message-ttl": 1000}
				})
			},
			want: []string{"ConflictingBrokerPolicy queue async.failed: an operator policy sets message-ttl: failed messages are dropped when they are that old: " +
				"narrow its pattern (rabbitmqctl list_operator_policies shows it)"},
		},
		"an alternate exchange": {
			change: policy(`^async\.fallback$`, "exchanges", 0, topology.Arguments{"alternate-exchange": "void"}),
			want:   []string{`ConflictingBrokerPolicy exchange async.fallback: the RabbitMQ policy "theirs" gives it an alternate exchange`},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := warned(t, async(), tt.change)
			contains(t, "warnings", got, tt.want)
			for _, text := range got {
				if !strings.Contains(text, "narrow its pattern") {
					t.Errorf("%q does not say what to do", text)
				}
			}
		})
	}
}

func TestFingerprint_TellsWhetherTheSameIsWanted(t *testing.T) {
	plain := topology.Fingerprint(desired(t, async()), nil)
	foreign := async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues[1].Bindings = []v1alpha1.Binding{{Exchange: "shop.events", Keys: []string{"order.#"}}}
	})
	withheld := func(source string) []topology.Withheld {
		var withheld []topology.Withheld
		for _, binding := range desired(t, foreign).Bindings {
			if binding.Source == source {
				withheld = append(withheld, topology.Withheld{Binding: binding})
			}
		}
		if len(withheld) == 0 {
			t.Fatalf("no binding of %s", source)
		}
		return withheld
	}
	if again := topology.Fingerprint(desired(t, async()), nil); again != plain {
		t.Error("the same objects have two fingerprints")
	}
	if topology.Fingerprint(desired(t, foreign), nil) == plain {
		t.Error("another binding leaves the fingerprint")
	}
	if topology.Fingerprint(desired(t, foreign), withheld("shop.events")) != plain {
		t.Error("a binding to an exchange that is not there counts as wanted")
	}
	if topology.Fingerprint(desired(t, async()), withheld("async.return")) != plain {
		t.Error("a binding that waits for an object of ours does not count as wanted")
	}
	more, err := topology.Desired(async(), compile.Needs{Lanes: retry.Lanes{time.Second}}, owner)
	if err != nil {
		t.Fatal(err)
	}
	if topology.Fingerprint(more, nil) == plain {
		t.Error("fewer lanes leave the fingerprint")
	}
}

func TestRepairs_HasOnlyWhatIsMadeOrChangedAgain(t *testing.T) {
	queue, policy, binding := &topology.Queue{Name: "q"}, &topology.Policy{Name: "p"}, &topology.Binding{Source: "s", Destination: "d"}
	repairs, others := topology.Repairs([]topology.Step{
		{Action: topology.ActionCreate, Queue: queue},
		{Action: topology.ActionDelete, Binding: binding},
		{Action: topology.ActionUpdate, Policy: policy},
		{Action: topology.ActionDelete, Queue: queue},
	})
	if got := fmt.Sprint(lines(repairs)); got != fmt.Sprint([]string{"+ queue q", "~ policy p"}) {
		t.Errorf("repairs %s", got)
	}
	if !slices.Equal(lines(others), []string{`- binding s -> d ""`, "- queue q"}) {
		t.Errorf("others %v", lines(others))
	}
}
