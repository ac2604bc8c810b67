package topology_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// created is what the sample Transport makes without an owner mark.
const createdExchange = "exchange/async"

// expectation is what a Difference holds.
type expectation struct {
	plan      []string // lines; exact
	conflicts []string // substrings, one for each
	warnings  []string
	problems  []string
	withheld  []string
	adopted   []string
}

// diffCase is a converged broker that somebody changed, or a spec that changed.
type diffCase struct {
	name   string
	spec   func(*v1alpha1.Transport)
	broker func(*simulated)
	want   expectation
}

func TestDiff_FindsWhatDiffers(t *testing.T) {
	checkDiff(t, []diffCase{
		{name: "nothing differs", want: expectation{}},
		{
			name: "numbers of any width and default arguments are equal",
			broker: func(b *simulated) {
				b.queue("async.fallback.5s", func(q *topology.QueueState) { q.Arguments["x-message-ttl"] = float64(5000) })
				b.queue("async.failed", func(q *topology.QueueState) {
					q.Arguments["x-overflow"] = "drop-head"
					q.Arguments["x-single-active-consumer"] = false
					q.Arguments["x-quorum-initial-group-size"] = int32(3)
					delete(q.Arguments, "x-queue-type")
				})
			},
		},
		{
			name: "what is gone is made again",
			broker: func(b *simulated) {
				delete(b.Queues, "async.fallback.5s")
				b.Bindings = slices.DeleteFunc(b.Bindings, func(x topology.Binding) bool { return x.Destination == "async.fallback.5s" })
				delete(b.Policies, "redrive.async:lanes")
			},
			want: expectation{plan: []string{
				`+ policy redrive.async:lanes  pattern=^async\.fallback\.[0-9]+[a-z]+(\.high)?$, priority=1000, overflow=reject-publish`,
				"+ queue async.fallback.5s  x-dead-letter-exchange=async.return, x-dead-letter-strategy=at-least-once, " +
					"x-message-ttl=5000, x-overflow=reject-publish, x-queue-type=quorum",
				"+ binding async.fallback -> async.fallback.5s redrive-lane=5s",
			}},
		},
		{
			name: "a policy that somebody changed is written again, by field",
			broker: func(b *simulated) {
				policy := b.Policies["redrive.async:queue:test"]
				policy.Priority = 3
				policy.Definition = topology.Arguments{"message-ttl": 1000}
				b.Policies[policy.Name] = policy
			},
			want: expectation{plan: []string{
				"~ policy redrive.async:queue:test  priority: 3 -> 100, delivery-limit: none -> 20, message-ttl: 1000 -> none",
			}},
		},
		{
			name: "a key that the spec drops is unbound, a producer's own equal binding stays",
			spec: func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].BindingKeys = []string{"new"} },
			broker: func(b *simulated) {
				b.Bindings = append(b.Bindings, topology.Binding{Source: "async", Destination: "test", RoutingKey: "test"})
			},
			want: expectation{
				plan:     []string{`+ binding async -> test "new"`, `- binding async -> test "test"`},
				warnings: []string{`queue test: it also gets messages of exchange "async" (key "test")`},
			},
		},
		{
			name: "a queue with other arguments is a conflict: nothing is led into it, and no policy set on it",
			broker: func(b *simulated) {
				b.queue("test", func(q *topology.QueueState) {
					q.Arguments = topology.Arguments{"x-queue-type": "quorum", "x-dead-letter-exchange": "dlx", "x-max-length": 10}
				})
				b.Bindings = slices.DeleteFunc(b.Bindings, func(x topology.Binding) bool { return x.Destination == "test" })
				delete(b.Policies, "redrive.async:queue:test")
			},
			want: expectation{
				conflicts: []string{`queue "test": x-max-length is 10, wanted is none, x-overflow is drop-head, wanted is ` +
					`reject-publish, x-dead-letter-exchange is dlx, wanted is async.failed, x-dead-letter-strategy is ` +
					`at-most-once, wanted is at-least-once; a queue cannot change it in place`},
				withheld: []string{"async.return -> test: queue test is in conflict", "async -> test: queue test is in conflict"},
			},
		},
		{
			name: "a queue of another type is one conflict",
			broker: func(b *simulated) {
				b.queue("test", func(q *topology.QueueState) { q.Type, q.Arguments = "classic", nil })
			},
			want: expectation{conflicts: []string{`queue "test": type is classic, wanted is quorum; `}},
		},
		{
			name: "a failure exchange in conflict holds back everything that leads in",
			broker: func(b *simulated) {
				b.exchange("async.failed", func(e *topology.ExchangeState) { e.Type = "topic" })
				b.Bindings = nil
			},
			want: expectation{
				plan: []string{
					"+ binding async.fallback -> async.fallback.1s redrive-lane=1s",
					"+ binding async.fallback -> async.fallback.5s redrive-lane=5s",
					`+ binding async.return -> lost.quarantine "lost.quarantine"`,
					`+ binding async.return -> test.quarantine "test.quarantine"`,
					`+ binding async.return -> lost "lost"`,
					`+ binding async.return -> test "test"`,
				},
				conflicts: []string{`exchange "async.failed": type is topic, wanted is fanout`},
				withheld: []string{
					"async.failed -> async.failed: exchange async.failed is in conflict",
					"async.unrouted -> lost: an exchange or queue that failed messages need is in conflict",
					"async -> lost: an exchange or queue that failed", "async -> test: an exchange or queue that failed",
				},
			},
		},
		{
			name: "a prefix that another Transport uses is a conflict, and its policies are left alone",
			broker: func(b *simulated) {
				for _, name := range []string{"async.failed", "async.return", "async.return.alternate", "async.fallback"} {
					b.exchange(name, func(e *topology.ExchangeState) { e.Arguments["redrive-owner"] = "c1/blog/async" })
				}
				b.Policies = map[string]topology.Policy{}
				b.Bindings = nil
			},
			want: expectation{
				conflicts: []string{"it is owned by the Transport blog/async", "blog/async", "blog/async", "blog/async"},
				withheld: []string{
					"async.failed -> async.failed", "async.fallback -> async.fallback.1s", "async.fallback -> async.fallback.5s",
					"async.return -> lost.quarantine", "async.return -> test.quarantine", "async.return -> lost", "async.return -> test", "async.unrouted -> lost", "async -> lost", "async -> test",
				},
			},
		},
		{
			name: "the owner of another cluster is named in full",
			broker: func(b *simulated) {
				b.queue("test", func(q *topology.QueueState) { q.Arguments["redrive-owner"] = "c2/shop/async" })
			},
			want: expectation{
				conflicts: []string{"it is owned by the Transport shop/async of another cluster (c2)"},
				// Where two made everything at the same time, the loser's bindings and policy are there too.
				plan: []string{`- binding async -> test "test"`, `- binding async.return -> test "test"`, "- policy redrive.async:queue:test"},
			},
		},
		{
			name: "what existed without the mark is adopted",
			broker: func(b *simulated) {
				b.queue("test", func(q *topology.QueueState) { delete(q.Arguments, "redrive-owner") })
			},
			want: expectation{adopted: []string{"queue/test"}},
		},
		{
			name: "an exchange of others that is missing holds back its bindings only",
			spec: func(tr *v1alpha1.Transport) {
				tr.Spec.Queues[1].BindingKeys = []string{"test", "more"}
				tr.Spec.Queues[1].Bindings = []v1alpha1.Binding{{Exchange: "events", Keys: []string{"a", "b"}}}
			},
			want: expectation{
				plan:     []string{`+ binding async -> test "more"`},
				problems: []string{"exchange events: it does not exist"},
				withheld: []string{"events -> test: it does not exist", "events -> test: it does not exist"},
			},
		},
		{
			name: "a headers exchange of others cannot be bound to by keys",
			spec: func(tr *v1alpha1.Transport) {
				tr.Spec.Queues[1].Bindings = []v1alpha1.Binding{{Exchange: "amq.headers", Keys: []string{"a"}}}
			},
			broker: func(b *simulated) { b.exchange("amq.headers", func(e *topology.ExchangeState) { e.Type = "headers" }) },
			want: expectation{
				problems: []string{"exchange amq.headers: it is a headers exchange"},
				withheld: []string{"amq.headers -> test: it is a headers exchange"},
			},
		},
	})
}

func TestWarnings_TellsOfWhatDoesHarm(t *testing.T) {
	checkDiff(t, []diffCase{
		{
			name: "a binding of somebody else on a private exchange is a warning",
			broker: func(b *simulated) {
				b.Bindings = append(b.Bindings, topology.Binding{Source: "async.failed", Destination: "audit"})
			},
			want: expectation{warnings: []string{`exchange async.failed: this private exchange has a binding of others to "audit"`}},
		},
		{
			name: "a user's policy that stops applying is named",
			broker: func(b *simulated) {
				b.Policies["ttl"] = topology.Policy{
					Name: "ttl", Pattern: "^te", ApplyTo: "queues", Priority: 5,
					Definition: topology.Arguments{"message-ttl": 9},
				}
			},
			want: expectation{warnings: []string{
				`queue test: the RabbitMQ policy "ttl" does not apply to it, because "redrive.async:queue:test" does: its settings (message-ttl=9)`,
			}},
		},
		{
			name: "a user's policy that wins over lanes and breaks them is named",
			broker: func(b *simulated) {
				b.Policies["all"] = topology.Policy{
					Name: "all", Pattern: `fallback\.5s`, ApplyTo: "all", Priority: 5000,
					Definition: topology.Arguments{"message-ttl": 9},
				}
			},
			want: expectation{warnings: []string{
				`queue async.fallback.5s: the RabbitMQ policy "all" (priority 5000) applies instead of "redrive.async:lanes"`,
				`queue async.fallback.5s: the RabbitMQ policy "all" sets message-ttl: retries come back too early`,
			}},
		},
		{
			name: "a pattern that only the broker understands counts where the broker says that it applies",
			broker: func(b *simulated) {
				b.Policies["odd"] = topology.Policy{
					Name: "odd", Pattern: `^(?!x)fail`, ApplyTo: "queues", Priority: 2000,
					Definition: topology.Arguments{"max-length": 9},
				}
				b.queue("async.failed", func(q *topology.QueueState) { q.Policy = "odd" })
			},
			want: expectation{warnings: []string{
				`queue async.failed: the RabbitMQ policy "odd" (priority 2000) applies instead`,
				`queue async.failed: the RabbitMQ policy "odd" bounds its length: the oldest failed messages are dropped`,
			}},
		},
		{
			name: "an operator policy that bounds a work queue would stop the lanes",
			broker: func(b *simulated) {
				b.queue("test", func(q *topology.QueueState) {
					q.Policy = "redrive.async:queue:test"
					q.EffectiveDefinition = topology.Arguments{"delivery-limit": 20, "max-length": 100}
				})
			},
			want: expectation{warnings: []string{"queue test: an operator policy bounds its length and refuses what is over"}},
		},
		{
			name: "a policy that has just been replaced is no news, whatever the broker's late figures say",
			broker: func(b *simulated) {
				b.queue("async.fallback.5s", func(q *topology.QueueState) {
					q.Policy = "gone"
					q.EffectiveDefinition = topology.Arguments{"message-ttl": 1}
				})
			},
		},
		{
			name: "a lane that stalls",
			broker: func(b *simulated) {
				b.queue("async.fallback.5s", func(q *topology.QueueState) { q.MessagesDLX = 50 })
			},
			want: expectation{warnings: []string{"queue async.fallback.5s: 32 or more expired messages wait to leave it"}},
		},
		{
			name: "an alternate exchange as argument of the producers' exchange wins over ours",
			broker: func(b *simulated) {
				b.exchange("async", func(e *topology.ExchangeState) { e.Arguments["alternate-exchange"] = "theirs" })
			},
			want: expectation{
				warnings: []string{"exchange async: its argument alternate-exchange=theirs wins"},
				adopted:  []string{"exchange/async"}, // we make it without arguments
			},
		},
		{
			name: "a policy that gives the fallback exchange an alternate exchange hides unroutable retries",
			broker: func(b *simulated) {
				b.Policies["ae"] = topology.Policy{
					Name: "ae", Pattern: `^async\.fallback$`, ApplyTo: "exchanges",
					Definition: topology.Arguments{"alternate-exchange": "void"},
				}
			},
			want: expectation{warnings: []string{`exchange async.fallback: the RabbitMQ policy "ae" gives it an alternate exchange`}},
		},
	})
}

func checkDiff(t *testing.T, cases []diffCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			broker := emptyBroker()
			broker.converge(desired(t, async()))
			if c.broker != nil {
				c.broker(broker)
			}
			spec := async()
			if c.spec != nil {
				c.spec(spec)
			}
			got := topology.Diff(desired(t, spec), broker.Observed, []string{createdExchange})
			if lines := lines(topology.Plan(got)); !slices.Equal(lines, c.want.plan) {
				t.Errorf("plan:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(c.want.plan, "\n"))
			}
			contains(t, "conflicts", got.Conflicts, c.want.conflicts)
			contains(t, "warnings", got.Warnings, c.want.warnings)
			contains(t, "problems", got.Problems, c.want.problems)
			contains(t, "adopted", got.Adopted, c.want.adopted)
			var withheld []string
			for _, w := range got.Withheld {
				withheld = append(withheld, w.Binding.Source+" -> "+w.Binding.Destination+": "+w.Reason)
			}
			contains(t, "withheld", withheld, c.want.withheld)
		})
	}
}

// contains compares a list with what each of its items must hold.
func contains[T any](t *testing.T, what string, got []T, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: want %d, got %v", what, len(want), got)
		return
	}
	for i := range want {
		if text := fmt.Sprint(got[i]); !strings.Contains(text, want[i]) {
			t.Errorf("%s: want %q in %q", what, want[i], text)
		}
	}
}

func TestDiff_ReportsWhatIsNoLongerWantedAsExtra(t *testing.T) {
	broker := emptyBroker()
	full := desired(t, async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues = append(tr.Spec.Queues,
			v1alpha1.Queue{Name: "old", BindingKeys: []string{"old"}},
			v1alpha1.Queue{Name: "plain", Type: new(v1alpha1.QueueClassic), Limits: &v1alpha1.Limits{DropOldestAfter: new(int64(1))}},
			v1alpha1.Queue{Name: "theirs", Type: new(v1alpha1.QueueClassic), BindingKeys: []string{"theirs"}, Limits: &v1alpha1.Limits{DropOldestAfter: new(int64(1))}},
		)
	}))
	broker.converge(full)
	broker.apply(topology.Step{Action: topology.ActionCreate, Queue: &topology.Queue{
		Name: "async.fallback.2s", Type: "quorum",
		Arguments: topology.Arguments{"x-message-ttl": 2000, "x-dead-letter-exchange": "async.return", "redrive-owner": owner},
	}})
	got := topology.Diff(desired(t, async()), broker.Observed, []string{createdExchange, "queue/plain"})
	var queues []string
	for _, queue := range got.ExtraQueues {
		queues = append(queues, queue.Name+" "+string(topology.RoleOf(queue.Queue)))
	}
	contains(t, "queues", queues, []string{
		"async.fallback.2s lane", "old work", "old.quarantine quarantine", "plain work", "plain.quarantine quarantine", "theirs.quarantine quarantine",
	})
	// The bindings and policies of what is ours stay until it is deleted. What was adopted gets no more messages by us, and
	// is let go when no worker consumes it any more.
	want := []string{`- binding async -> theirs "theirs"`}
	if plan := lines(topology.Plan(got)); !slices.Equal(plan, want) {
		t.Errorf("want %q, got %q", want, plan)
	}
	want = []string{`- binding async.return -> theirs "theirs"`, "- policy redrive.async:queue:theirs"}
	if len(got.Released) != 1 || got.Released[0].Queue != "theirs" || !slices.Equal(lines(got.Released[0].Steps), want) {
		t.Errorf("let go: want %q, got %+v", want, got.Released)
	}
}

func TestDiff_NamesUnmarkedObjectsBeforeTheyAreMade(t *testing.T) {
	objects := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic) }))
	got := topology.Diff(objects, emptyBroker().Observed, nil)
	contains(t, "unmarked", got.Unmarked, []string{createdExchange, "queue/test"})
}

func TestBelongingsOf_NeedsNoSpec(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues = append(tr.Spec.Queues, v1alpha1.Queue{Name: "theirs", Type: new(v1alpha1.QueueClassic), BindingKeys: []string{"k"}})
	})))
	broker.Bindings = append(broker.Bindings,
		topology.Binding{Source: "events", Destination: "test", RoutingKey: "by hand"},
		topology.Binding{Source: "events", Destination: "theirs", RoutingKey: "by hand"},
	)
	broker.exchange("blog.failed", func(e *topology.ExchangeState) { e.Arguments["redrive-owner"] = "c1/shop/blog" })

	leaves := topology.BelongingsOf(owner, "async", broker.Observed, []string{createdExchange})
	if leaves.Leaves != "theirs" || len(leaves.Failure) > 0 || slices.Contains(leaves.Exchanges, "async.failed") {
		t.Errorf("a queue that is not its own dead-letters to the failure exchange, and the Transport may delete that: %+v", leaves)
	}
	delete(broker.Queues["theirs"].Arguments, "x-dead-letter-exchange")

	got := topology.BelongingsOf(owner, "async", broker.Observed, []string{createdExchange})
	names := func(queues []topology.QueueState) (names []string) {
		for _, queue := range queues {
			names = append(names, queue.Name)
		}
		return names
	}
	contains(t, "lanes", names(got.Lanes), []string{"async.fallback.1s", "async.fallback.5s"})
	contains(t, "work", names(got.Work), []string{"lost", "test"})
	contains(t, "quarantine", names(got.Quarantine), []string{"lost.quarantine", "test.quarantine", "theirs.quarantine"})
	contains(t, "failure", names(got.Failure), []string{"async.failed"})
	var inlets []string
	for _, binding := range got.Inlets {
		inlets = append(inlets, binding.Name())
	}
	contains(t, "inlets", inlets, []string{
		`async.unrouted -> lost ""`, `async -> lost "lost"`, `async -> test "test"`, `async -> theirs "k"`, `events -> test "by hand"`,
	})
	contains(t, "bindings", got.Bindings, []string{"theirs"})
	contains(t, "exchanges", got.Exchanges, []string{
		"async", "async.alternate", "async.unrouted", "async.fallback", "async.return", "async.return.alternate", "async.failed",
	})
	contains(t, "inlet policies", got.InletPolicies, []string{"redrive.async:exchange"})
	contains(t, "policies", got.Policies, []string{
		"failure", "lanes", "queue:lost", "queue:lost.quarantine", "queue:test", "queue:test.quarantine", "queue:theirs.quarantine",
	})

	adopted := topology.BelongingsOf(owner, "async", broker.Observed, nil)
	if slices.Contains(adopted.Exchanges, "async") {
		t.Error("the producers' exchange is not ours unless we wrote down that we made it")
	}
	if none := topology.BelongingsOf("c1/shop/nobody", "nobody", broker.Observed, nil); !none.Empty() {
		t.Error("another owner owns nothing here")
	}
}
