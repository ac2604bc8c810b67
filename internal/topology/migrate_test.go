package topology_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

func TestMigrate_TakesEachStepWhenItIsDue(t *testing.T) {
	const (
		none, equal, other = topology.MatchNone, topology.MatchEqual, topology.MatchOther
		prepare, swap      = v1alpha1.MigrationPrepare, v1alpha1.MigrationDivert
		drain, remake      = v1alpha1.MigrationDrain, v1alpha1.MigrationRecreate
		back, clearing     = v1alpha1.MigrationRestore, v1alpha1.MigrationCleanup
	)
	type passage struct {
		queue                                        topology.QueueMatch
		standin, bridged, away, home, ordered, knows bool
		untold                                       bool
	}
	cases := []struct {
		name string
		last v1alpha1.MigrationStep
		seen passage
		want v1alpha1.MigrationStep
	}{
		{"a queue as it is wanted", "", passage{queue: equal, knows: true}, ""},
		{"a queue that is not there yet", "", passage{knows: true}, ""},
		{"a queue that differs", "", passage{queue: other, knows: true}, prepare},
		{"the stand-in is not bound yet", prepare, passage{queue: other, standin: true, knows: true}, prepare},
		{"a worker does not know the stand-in", prepare, passage{queue: other, standin: true, bridged: true}, prepare},
		{"all know it", prepare, passage{queue: other, standin: true, bridged: true, knows: true}, swap},
		{"workers learn of something else meanwhile", swap, passage{queue: other, standin: true, bridged: true}, swap},
		{"nothing leads into the queue any more", swap, passage{queue: other, standin: true, bridged: true, away: true}, drain},
		{"somebody has bound it again", drain, passage{queue: other, standin: true, bridged: true, knows: true}, swap},
		{"the queue is gone", drain, passage{queue: none, standin: true, bridged: true, away: true, knows: true}, remake},
		{"the queue is there again", remake, passage{queue: equal, standin: true, bridged: true, away: true, knows: true}, back},
		{"all leads into the queue", back, passage{queue: equal, standin: true, bridged: true, home: true, knows: true}, clearing},
		{"the stand-in is gone", clearing, passage{queue: equal, home: true, knows: true}, ""},
		{"the change is taken back before anything moved", prepare, passage{queue: equal, standin: true, bridged: true, home: true}, clearing},
		{"the change is taken back while the queue is drained", drain, passage{queue: equal, standin: true, bridged: true, away: true}, back},
		{"the same where there is an order", drain, passage{queue: equal, standin: true, away: true, ordered: true}, drain},
		{"another change while the stand-in is drained", clearing, passage{queue: other, standin: true, bridged: true, home: true}, swap},
		{"the same where there is an order: first things first", clearing, passage{queue: other, standin: true, home: true, ordered: true}, clearing},
		{"an ordered queue that was just made again", remake, passage{queue: equal, standin: true, away: true, ordered: true}, back},
		{"the stand-in was deleted by hand", drain, passage{queue: other, knows: true}, prepare},
		{"workers know the former name only, and the new queue is there", remake, passage{queue: equal, standin: true, bridged: true, away: true, untold: true}, remake},
		{"both were deleted by hand", drain, passage{knows: true}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			step, reads, remade := topology.Migrate(c.last, topology.MigrationObservation{
				Queue: c.seen.queue, Standin: c.seen.standin, Bridged: c.seen.bridged, Away: c.seen.away, Home: c.seen.home,
				Ordered: c.seen.ordered, Untold: c.seen.untold, Follows: func(compile.Reading) bool { return c.seen.knows },
			})
			if step != c.want {
				t.Errorf("the step is %q, want %q", step, c.want)
			}
			if !c.seen.ordered && reads != compile.ReadsBoth {
				t.Errorf("without an order both are consumed, not %q", reads)
			}
			if remade != (step == remake) {
				t.Errorf("the queue is made: %v", remade)
			}
		})
	}
}

func TestMigrate_RemakesAnOrderedQueueOnceNoWorkerReadsIt(t *testing.T) {
	for _, c := range []struct {
		last v1alpha1.MigrationStep
		sees compile.Reading
		want bool
	}{
		{v1alpha1.MigrationDrain, compile.ReadsStandin, false}, // that it is to be made is not written down yet
		{v1alpha1.MigrationRecreate, compile.ReadsQueue, false},
		{v1alpha1.MigrationRecreate, compile.ReadsStandin, true},
	} {
		step, reads, remade := topology.Migrate(c.last, topology.MigrationObservation{
			Standin: true, Bridged: true, Away: true, Ordered: true, Follows: func(reads compile.Reading) bool { return reads == c.sees },
		})
		if step != v1alpha1.MigrationRecreate || reads != compile.ReadsStandin || remade != c.want {
			t.Errorf("after %s, where workers consume %q: %s, %q, made %v", c.last, c.sees, step, reads, remade)
		}
	}
}

func TestMigrate_MakesAQueueOfANewNameOnceWorkersKnowIt(t *testing.T) {
	for _, untold := range []bool{true, false} {
		step, _, remade := topology.Migrate("", topology.MigrationObservation{
			Standin: true, Away: true, Untold: untold, Follows: func(compile.Reading) bool { return true },
		})
		if step != v1alpha1.MigrationRecreate || remade == untold {
			t.Errorf("untold %v: %s, made %v", untold, step, remade)
		}
	}
}

// A message that is published between any two writes goes to exactly one of the two queues, also where a client has bound the
// queue by the same way a second time.
func TestMigration_GivesAMessageExactlyOneQueueBetweenWrites(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.exchange("async", func(e *topology.ExchangeState) { e.Policy = "redrive.async:exchange" })
	broker.Bindings = append(broker.Bindings, topology.Binding{Source: "async", Destination: "test", RoutingKey: "test"})
	single := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].SingleActiveConsumer = new(true) }))
	routes := func(exchange, alternate string) (queues []string) {
		for _, source := range []string{exchange, alternate} {
			for _, binding := range broker.Bindings {
				if binding.Source == source && binding.RoutingKey == "test" && !slices.Contains(queues, binding.Destination) {
					queues = append(queues, binding.Destination)
				}
			}
			if len(queues) > 0 {
				break
			}
		}
		return queues
	}
	var last []v1alpha1.Migration
	seen := map[string]bool{}
	for range 12 {
		diff := topology.DiffSince(single, broker.Observed, topology.Past{Created: []string{createdExchange}, Migrations: last})
		for _, step := range topology.Plan(diff) {
			broker.apply(step)
			for exchange, alternate := range map[string]string{"async": "async.alternate", "async.return": "async.return.alternate"} {
				if queues := routes(exchange, alternate); len(queues) != 1 {
					t.Fatalf("after %q a message to %s goes to %v", step, exchange, queues)
				}
			}
		}
		last = nil
		for _, m := range diff.Migrations {
			last = append(last, v1alpha1.Migration{Queue: m.Queue, Step: m.Step})
			seen[string(m.Step)] = true
			if len(m.Doubling) > 0 {
				t.Errorf("nothing is doubled: %v", m.Doubling)
			}
			if m.Drains != "" {
				delete(broker.Queues, m.Drains)
				broker.Bindings = slices.DeleteFunc(broker.Bindings, func(b topology.Binding) bool { return b.Destination == m.Drains })
			}
		}
	}
	if len(seen) != 6 || len(last) != 0 {
		t.Errorf("it took the steps %v, and ends with %v", seen, last)
	}
	if got := broker.Queues["test"]; got.Arguments["x-single-active-consumer"] != true || len(broker.BindingsTo("test")) != 3 {
		t.Errorf("at the end it is %+v, bound by %v", got.Queue, broker.BindingsTo("test"))
	}
}

// A stand-in has the limits of its work queue from before the first message comes into it until it is gone, and no other queue has
// them for its sake.
func TestMigration_GivesTheStandInTheLimitsOfItsQueue(t *testing.T) {
	for name, c := range map[string]struct {
		before, after func(q *v1alpha1.Queue)
		want          topology.Arguments
	}{
		"all limits, Quorum to Classic": {
			before: func(q *v1alpha1.Queue) {
				q.Limits = &v1alpha1.Limits{MessageTTL: v1alpha1.NewDuration(time.Hour), DropOldestAfter: new(int64(1000))}
			},
			after: func(q *v1alpha1.Queue) { q.Type = new(v1alpha1.QueueClassic) },
			want:  topology.Arguments{"message-ttl": "3600000", "max-length": "1000", "overflow": "drop-head", "delivery-limit": "20"},
		},
		"a time to live, single active consumer on": {
			before: func(q *v1alpha1.Queue) { q.Limits = &v1alpha1.Limits{MessageTTL: v1alpha1.NewDuration(time.Minute)} },
			after:  func(q *v1alpha1.Queue) { q.SingleActiveConsumer = new(true) },
			want:   topology.Arguments{"message-ttl": "60000", "delivery-limit": "20"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			transport := async(func(tr *v1alpha1.Transport) { c.before(&tr.Spec.Queues[1]) })
			broker := emptyBroker()
			broker.converge(desired(t, transport))
			broker.exchange("async", func(e *topology.ExchangeState) { e.Policy = "redrive.async:exchange" })
			c.after(&transport.Spec.Queues[1])
			var last []v1alpha1.Migration
			seen := map[v1alpha1.MigrationStep]bool{}
			for range 12 {
				diff := topology.DiffSince(desired(t, transport), broker.Observed, topology.Past{Created: []string{createdExchange}, Migrations: last})
				for _, step := range topology.Plan(diff) {
					broker.apply(step)
					if len(broker.BindingsTo("test.migrating")) > 0 {
						broker.checkLimits(t, step.String(), c.want)
					}
				}
				last = nil
				for _, m := range diff.Migrations {
					last, seen[m.Step] = append(last, v1alpha1.Migration{Queue: m.Queue, Step: m.Step}), true
					broker.checkLimits(t, string(m.Step), c.want)
					broker.remove(m.Drains)
				}
			}
			if len(seen) != 6 || len(last) != 0 {
				t.Errorf("it took the steps %v, and ends with %v", seen, last)
			}
			if _, left := broker.Policies["redrive.async:queue:test.migrating"]; left {
				t.Error("the policy is left")
			}
		})
	}
}

// checkLimits holds the stand-in to a policy of its own and to what that has.
func (s *simulated) checkLimits(t *testing.T, when string, want topology.Arguments) {
	t.Helper()
	got := s.Policies["redrive.async:queue:test.migrating"]
	if limits := texts(got.Definition); !maps.Equal(limits, texts(want)) || got.ApplyTo != "queues" {
		t.Fatalf("after %q the stand-in has %v on %s, want %v", when, limits, got.ApplyTo, want)
	}
	for _, name := range []string{"test.migrating", "test", "test.quarantine", "test-standin", "test.standins", "latest.migrating", "test.migrating.quarantine"} {
		if matched, err := regexp.MatchString(got.Pattern, name); err != nil || matched != (name == "test.migrating") {
			t.Fatalf("after %q the policy for %q is on %s: %v, %v", when, got.Pattern, name, matched, err)
		}
	}
}

// texts of arguments, since a number comes back from the broker as another kind of one.
func texts(arguments topology.Arguments) map[string]string {
	all := map[string]string{}
	for name, value := range arguments {
		all[name] = fmt.Sprint(value)
	}
	return all
}

// remove takes a queue away, as workers and the engine do in the end.
func (s *simulated) remove(queue string) {
	delete(s.Queues, queue)
	s.Bindings = slices.DeleteFunc(s.Bindings, func(b topology.Binding) bool { return b.Destination == queue })
}

func TestMigration_ConflictsWithAStandInOfOthers(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.Queues["test.migrating"] = topology.QueueState{Queue: topology.Queue{Name: "test.migrating", Type: "quorum", Durable: true}}
	single := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].SingleActiveConsumer = new(true) }))
	diff := topology.Diff(single, broker.Observed, []string{createdExchange})
	if len(diff.Migrations) > 0 || len(diff.Conflicts) == 0 || !strings.Contains(diff.Conflicts[0].String(), "test.migrating") {
		t.Errorf("migrations %v, conflicts %v", diff.Migrations, diff.Conflicts)
	}
}

// Between any two writes a message has exactly one queue also where the queue is renamed, by its keys and by both names.
func TestRename_GivesAMessageExactlyOneQueueBetweenWrites(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.exchange("async", func(e *topology.ExchangeState) { e.Policy = "redrive.async:exchange" })
	renamed := desired(t, async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues[1].Name, tr.Spec.Queues[1].PreviousNames = "orders", []string{"test"}
	}))
	routes := func(sources []string, key string) (queues []string) {
		for _, source := range sources {
			for _, binding := range broker.Bindings {
				if binding.Source == source && binding.RoutingKey == key {
					queues = append(queues, binding.Destination)
				}
			}
			if len(queues) > 0 {
				break
			}
		}
		return queues
	}
	var last []v1alpha1.Migration
	var steps []v1alpha1.MigrationStep
	for range 12 {
		diff := topology.DiffSince(renamed, broker.Observed, topology.Past{Created: []string{createdExchange}, Migrations: last})
		for _, step := range topology.Plan(diff) {
			broker.apply(step)
			ways := []string{"async.return", "async.return.alternate"}
			for what, queues := range map[string][]string{
				"a new message": routes([]string{"async", "async.alternate"}, "test"), "a retry by the old name": routes(ways, "test"),
				"a quarantined message by the old name": routes(ways, "test.quarantine"),
			} {
				if len(queues) != 1 {
					t.Fatalf("after %q %s goes to %v", step, what, queues)
				}
			}
		}
		last = nil
		for _, m := range diff.Migrations {
			last, steps = append(last, v1alpha1.Migration{Queue: m.Queue, Step: m.Step}), append(steps, m.Step)
			if !m.Renames || m.Standin != "test" || len(m.Doubling) > 0 {
				t.Errorf("the exchange is %+v", m)
			}
			if m.Drains != "" {
				delete(broker.Queues, m.Drains)
				broker.Bindings = slices.DeleteFunc(broker.Bindings, func(b topology.Binding) bool { return b.Destination == m.Drains })
			}
		}
	}
	want := []v1alpha1.MigrationStep{v1alpha1.MigrationRecreate, v1alpha1.MigrationRestore, v1alpha1.MigrationCleanup}
	if !slices.Equal(slices.Compact(steps), want) || len(last) != 0 {
		t.Errorf("it took the steps %v, and ends with %v", steps, last)
	}
	if back := routes([]string{"async.return", "async.return.alternate"}, "test"); !slices.Equal(back, []string{"orders"}) {
		t.Errorf("at the end a retry by the old name goes to %v", back)
	}
}

// A former key that led into the queue for the sake of another one, which is to be adopted and does not exist, held the renaming in Restore for good:
// producers wrote to the one queue, and the workers of an order read the other.
func TestRename_EndsBesideAMissingQueueToAdopt(t *testing.T) {
	for _, kind := range []v1alpha1.ExchangeType{v1alpha1.ExchangeDirect, v1alpha1.ExchangeTopic} {
		spec := func(name string, keys ...string) topology.Objects {
			return desired(t, async(func(tr *v1alpha1.Transport) {
				tr.Spec.Exchange.Type = kind
				queue := &tr.Spec.Queues[1]
				if queue.BindingKeys = keys; name != queue.Name {
					queue.Name, queue.PreviousNames = name, []string{queue.Name}
				}
				tr.Spec.Queues = append(tr.Spec.Queues, v1alpha1.Queue{Name: "legacy", Adopt: new(true), BindingKeys: []string{"old"}})
			}))
		}
		broker := emptyBroker()
		broker.converge(spec("test", "test", "old"))
		renamed := spec("orders", "test")
		var last []v1alpha1.Migration
		for range 15 {
			diff := topology.DiffSince(renamed, broker.Observed, topology.Past{Created: []string{createdExchange}, Migrations: last})
			for _, step := range topology.Plan(diff) {
				broker.apply(step)
			}
			last = nil
			for _, m := range diff.Migrations {
				last = append(last, v1alpha1.Migration{Queue: m.Queue, Step: m.Step})
				if m.Drains != "" {
					broker.remove(m.Drains)
				}
			}
		}
		if len(last) > 0 {
			t.Errorf("%s: it ends with %+v", kind, last)
		}
		if ways := broker.BindingsTo("orders"); !slices.ContainsFunc(ways, func(b topology.Binding) bool { return b.Source == "async" && b.RoutingKey == "old" }) {
			t.Errorf("%s: what is meant for the queue to adopt goes nowhere: %v", kind, ways)
		}
	}
}

// What waits in a lane by a former name comes back to a queue also where the spec changes again before the renaming has ended, and where the way by that
// name must not be made yet.
func TestRename_KeepsAWayForRetriesWhenTheSpecChangesAgain(t *testing.T) {
	renamed := func(change func(q *v1alpha1.Queue)) topology.Objects {
		return desired(t, async(func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1].Name, tr.Spec.Queues[1].PreviousNames = "orders", []string{"test"}
			change(&tr.Spec.Queues[1])
		}))
	}
	before := renamed(func(*v1alpha1.Queue) {})
	for name, c := range map[string]struct {
		change func(q *v1alpha1.Queue)
		// doubtful is what a request may still delete; empty for nothing.
		doubtful string
	}{
		"another type":             {change: func(q *v1alpha1.Queue) { q.Type = new(v1alpha1.QueueClassic) }},
		"a single active consumer": {change: func(q *v1alpha1.Queue) { q.SingleActiveConsumer = new(true) }},
		"a third name":             {change: func(q *v1alpha1.Queue) { q.Name, q.PreviousNames = "bills", []string{"orders", "test"} }},
		"a third name, the oldest first": {
			change: func(q *v1alpha1.Queue) { q.Name, q.PreviousNames = "bills", []string{"test", "orders"} },
		},
		"the former name":    {change: func(q *v1alpha1.Queue) { q.Name, q.PreviousNames = "test", []string{"orders"} }},
		"none, and it waits": {change: func(*v1alpha1.Queue) {}, doubtful: `binding/async.return.alternate -> orders "test"`},
	} {
		for looks := range 5 {
			t.Run(fmt.Sprintf("%s after %d looks", name, looks), func(t *testing.T) {
				r := newRenaming(t)
				r.doubtful = c.doubtful
				r.look(t, before, looks)
				r.doubtful = ""
				r.look(t, renamed(c.change), 20)
			})
		}
	}
}

// renaming is a broker whose queue "test" is renamed.
type renaming struct {
	*simulated

	last []v1alpha1.Migration
	// doubtful is what a request may still delete; empty for nothing.
	doubtful string
	// known are the names of all queues that have been there.
	known map[string]bool
}

func newRenaming(t *testing.T) *renaming {
	t.Helper()
	r := &renaming{simulated: emptyBroker(), known: map[string]bool{}}
	r.converge(desired(t, async()))
	r.exchange("async", func(e *topology.ExchangeState) { e.Policy = "redrive.async:exchange" })
	return r
}

// look does all that is to be done at some looks. After each write a retry by each name of a queue that is there has a way.
func (r *renaming) look(t *testing.T, wanted topology.Objects, times int) {
	t.Helper()
	for range times {
		past := topology.Past{Created: []string{createdExchange}, Migrations: r.last, Doubtful: map[string]time.Time{}}
		if r.doubtful != "" {
			past.Doubtful[r.doubtful] = time.Now()
		}
		for _, name := range []string{"test", "orders", "bills"} {
			_, exists := r.Queues[name]
			r.known[name] = r.known[name] || exists
		}
		diff := topology.DiffSince(wanted, r.Observed, past)
		for _, step := range topology.Plan(diff) {
			r.apply(step)
			for name, known := range r.known {
				if known && !r.comesBack(name) {
					t.Fatalf("after %q a retry by the name %s fails", step, name)
				}
			}
		}
		r.last = nil
		for _, m := range diff.Migrations {
			r.last = append(r.last, v1alpha1.Migration{Queue: m.Queue, Step: m.Step})
			if m.Drains != "" {
				delete(r.Queues, m.Drains)
				r.Bindings = slices.DeleteFunc(r.Bindings, func(b topology.Binding) bool { return b.Destination == m.Drains })
			}
		}
	}
}

// comesBack is true for a name by which messages come back from the lanes to some queue.
func (r *renaming) comesBack(name string) bool {
	return slices.ContainsFunc(r.Bindings, func(b topology.Binding) bool {
		return b.RoutingKey == name && (b.Source == "async.return" || b.Source == "async.return.alternate")
	})
}

func TestRename_TellsOfAFormerQueueThatItDoesNotTakeOver(t *testing.T) {
	simulated := emptyBroker()
	old := async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic) })
	before := desired(t, old)
	simulated.converge(before)
	renamed := desired(t, async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues[1].Name, tr.Spec.Queues[1].PreviousNames = "renamed", []string{before.QueuesOf(topology.RoleWork)[1]}
	}))
	told := func(created ...string) (all string) {
		for _, warning := range topology.Diff(renamed, simulated.Observed, created).Warnings {
			all += warning.String() + "\n"
		}
		return all
	}
	former := before.QueuesOf(topology.RoleWork)[1]
	want := "queue " + former + ": previousNames of queue renamed names it, but Redrive does not take it over"
	if got := told(); !strings.Contains(got, want) {
		t.Errorf("nobody knows whose it is: %s", got)
	}
	if got := told("queue/" + former); strings.Contains(got, want) {
		t.Errorf("it is taken over: %s", got)
	}
}

// Classic queues carry no mark: a process that has just begun, or a status that is lost, does not know that it made them.
func TestDiff_TellsOfAClassicQueueThatLooksLikeOursAndNobodyReads(t *testing.T) {
	broker := emptyBroker()
	before := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic) }))
	broker.converge(before)
	left := before.QueuesOf(topology.RoleWork)[1]
	after := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues = tr.Spec.Queues[:1]; tr.Spec.Exchange.UnroutedTo = nil }))
	for name, tt := range map[string]struct {
		messages, consumers int64
		created             []string
		told                bool
	}{
		"with messages":               {messages: 3, told: true},
		"empty":                       {},
		"with messages and consumers": {messages: 3, consumers: 1},
		"that is known to be ours":    {messages: 3, created: []string{"queue/" + left}},
	} {
		state := broker.Queues[left]
		state.Messages, state.Consumers = &tt.messages, tt.consumers
		broker.Queues[left] = state
		told := slices.ContainsFunc(topology.Diff(after, broker.Observed, tt.created).Warnings, func(f topology.Finding) bool {
			return f.Object.Name == left && f.Unread
		})
		if told != tt.told {
			t.Errorf("%s: told %t", name, told)
		}
	}
}

// It gives its messages to the queue that it stands in for. Where that has left the spec, its own workers empty it.
func TestRename_TakesNothingFromAStandInOfAnotherQueue(t *testing.T) {
	for what, change := range map[string]func(*v1alpha1.Transport){
		"of a queue of the spec": func(*v1alpha1.Transport) {},
		"of one that has left the spec": func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[0].Name, tr.Spec.Exchange.UnroutedTo = "found", new("found")
		},
	} {
		broker := emptyBroker()
		broker.converge(desired(t, async()))
		classic := async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[0].Type = new(v1alpha1.QueueClassic) })
		past := topology.Past{Created: []string{createdExchange}}
		for _, step := range topology.Plan(topology.DiffSince(desired(t, classic), broker.Observed, past)) {
			broker.apply(step)
		}
		if _, there := broker.Queues["lost.migrating"]; !there {
			t.Fatal("nothing stands in")
		}
		change(classic)
		objects := desired(t, classic)
		for i := range objects.Queues {
			if objects.Queues[i].Name == "test" {
				objects.Queues[i].PreviousNames = []string{"lost.migrating"}
			}
		}
		for _, m := range topology.DiffSince(objects, broker.Observed, past).Migrations {
			if m.Queue == "test" {
				t.Errorf("%s: it takes over from it: %+v", what, m)
			}
		}
	}
}

func TestDesired_RefusesAPreviousNameOfAnotherQueue(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.Transport){
		`spec.queues[1].previousNames[0]: "lost" is the name of spec.queues[0]`: func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1].PreviousNames = []string{"lost"}
		},
		`spec.queues[1].previousNames[0]: "old" is also in spec.queues[0].previousNames`: func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[0].PreviousNames, tr.Spec.Queues[1].PreviousNames = []string{"old"}, []string{"old"}
		},
		`spec.queues[1].previousNames[0]: "lost.migrating" would stand in for spec.queues[0] while that is migrated: take it out, or rename that queue`: func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1].PreviousNames = []string{"lost.migrating"}
		},
		`spec.queues[1].previousNames[0]: "lost.quarantine" is the quarantine queue of spec.queues[0]: take it out, or rename that queue`: func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1].PreviousNames = []string{"lost.quarantine"}
		},
	} {
		_, err := topology.Desired(async(change), compile.Needs{}, owner)
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %s", err, name)
		}
	}
}
