package topology_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// A step that is written down is one of the migration that it was written for: taken for that of a new one, whose queue differs and whose stand-in is
// empty, Cleanup would delete the stand-in, again and again, while workers leave the queue alone for the order's sake.
func TestMigration_MakesNoStandInByTheStepOfAnEarlierOne(t *testing.T) {
	for name, earlier := range map[string]v1alpha1.Migration{
		"a renaming":                 {Queue: "test", Standin: "before", Step: v1alpha1.MigrationCleanup},
		"one to other arguments":     {Queue: "test", Standin: "test.migrating", Step: v1alpha1.MigrationCleanup},
		"one whose stand-in is gone": {Queue: "test", Standin: "test.migrating", Step: v1alpha1.MigrationDrain},
	} {
		broker := emptyBroker()
		broker.converge(desired(t, async()))
		single := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].SingleActiveConsumer = new(true) }))
		past := topology.Past{Created: []string{createdExchange}, Migrations: []v1alpha1.Migration{earlier}}
		first := topology.DiffSince(single, broker.Observed, past)
		if len(first.Missing.Queues) > 0 || len(first.Conflicts) > 0 || len(first.Migrations) != 1 {
			t.Fatalf("%s: at first it makes %v, in conflict are %v", name, first.Missing.Queues, first.Conflicts)
		}
		if m := first.Migrations[0]; m.Step != v1alpha1.MigrationPrepare || m.Reads != compile.ReadsQueue {
			t.Errorf("%s: it goes on with %s, and workers read %q", name, m.Step, m.Reads)
		}
		past.Migrations[0].Step, past.Migrations[0].Standin = first.Migrations[0].Step, first.Migrations[0].Standin
		if next := topology.DiffSince(single, broker.Observed, past); len(next.Missing.Queues) != 1 || next.Missing.Queues[0].Name != "test.migrating" {
			t.Errorf("%s: once that is written down it makes %v", name, next.Missing.Queues)
		}
	}
}

// Workers of a Strict queue give what fails back to it, and to the queue of a previous name too, which may be none that was made for that.
func TestRename_GivesTheOldQueueTheDeliveryLimitOfTheNew(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	renamed := func(strict bool) topology.Objects {
		return desired(t, async(func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1] = v1alpha1.Queue{Name: "orders", PreviousNames: []string{"test"}, BindingKeys: []string{"test"}}
			if strict {
				tr.Spec.Queues[1].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
			}
		}))
	}
	past := topology.Past{Created: []string{createdExchange}}
	look := func(want topology.Objects) v1alpha1.MigrationStep {
		diff := topology.DiffSince(want, broker.Observed, past)
		for _, step := range topology.Plan(diff) {
			broker.apply(step)
		}
		past.Migrations = written(diff)
		return past.Migrations[0].Step
	}
	for look(renamed(false)) != v1alpha1.MigrationCleanup {
		continue
	}
	limit := func() any { return broker.Policies["redrive.async:queue:test"].Definition["delivery-limit"] }
	if before := limit(); fmt.Sprint(before) != "20" {
		t.Fatalf("the limit before is %v", before)
	}
	if step := look(renamed(true)); step != v1alpha1.MigrationCleanup || fmt.Sprint(limit()) == "20" {
		t.Errorf("in %s the limit stays %v", step, limit())
	}
}

// The list of exchanges of a node that has just started may lack one. What leads to the stand-in stays all the same: it may be the only way.
func TestMigration_KeepsTheBridgeWhereAListLacksTheExchange(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	single := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].SingleActiveConsumer = new(true) }))
	past := topology.Past{
		Created:    []string{createdExchange},
		Migrations: []v1alpha1.Migration{{Queue: "test", Standin: "test.migrating", Step: v1alpha1.MigrationPrepare}},
	}
	for _, step := range topology.Plan(topology.DiffSince(single, broker.Observed, past)) {
		broker.apply(step)
	}
	delete(broker.Exchanges, "async")
	if gone := topology.DiffSince(single, broker.Observed, past).ExtraBindings; len(gone) > 0 {
		t.Errorf("it takes away %v", gone)
	}
}

// A binding that is there is no way for what comes in five minutes, while a request that had no answer may still delete it.
func TestRename_KeepsAWayWhoseReplacementIsDoubtful(t *testing.T) {
	renamed := desired(t, async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues[1].Name, tr.Spec.Queues[1].PreviousNames = "orders", []string{"test"}
	}))
	r := newRenaming(t)
	r.look(t, renamed, 2)
	mark := topology.Arguments{topology.OwnerArgument: renamed.Owner}
	next := topology.Binding{Source: "async.return.alternate", Destination: "orders", RoutingKey: "test", Arguments: mark}
	own := topology.Binding{Source: "async.return", Destination: "test", RoutingKey: "test", Arguments: mark}
	for _, binding := range []topology.Binding{next, own} {
		if !r.comesBack("test") {
			t.Fatal("a retry by the former name fails")
		}
		if !slices.ContainsFunc(r.Bindings, func(b topology.Binding) bool { return b.Name() == binding.Name() }) {
			r.Bindings = append(r.Bindings, binding)
		}
	}
	removes := func(doubtful map[string]time.Time) bool {
		past := topology.Past{Created: []string{createdExchange}, Migrations: r.last, Doubtful: doubtful}
		plan := topology.Plan(topology.DiffSince(renamed, r.Observed, past))
		return slices.ContainsFunc(plan, func(step topology.Step) bool {
			return step.Action == topology.ActionDelete && step.Binding != nil && step.Binding.Name() == own.Name()
		})
	}
	if !removes(nil) {
		t.Fatal("the way by the former name is not removed, so that the test says nothing")
	}
	if removes(map[string]time.Time{"binding/" + next.Name(): time.Now()}) {
		t.Error("the way by the former name is removed, and a request may still delete the one that takes its place")
	}
}

// Where a renaming is taken back before workers have emptied the queue of the former name, that one has the older messages.
func TestRename_ReadsTheOlderQueueFirstWhenTakenBack(t *testing.T) {
	strict := func(name string, previous ...string) topology.Objects {
		return desired(t, async(func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1] = v1alpha1.Queue{
				Name: name, PreviousNames: previous, BindingKeys: []string{"test"}, Ordering: &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict},
			}
		}))
	}
	for _, turn := range []v1alpha1.MigrationStep{v1alpha1.MigrationRestore, v1alpha1.MigrationCleanup} {
		broker := emptyBroker()
		broker.converge(strict("test"))
		past := topology.Past{Created: []string{createdExchange}}
		look := func(want topology.Objects) topology.Migration {
			diff := topology.DiffSince(want, broker.Observed, past)
			for _, step := range topology.Plan(diff) {
				broker.apply(step)
			}
			past.Migrations = written(diff)
			return diff.Migrations[0]
		}
		for look(strict("orders", "test")).Step != turn {
			continue
		}
		for range 3 {
			if m := look(strict("test", "orders")); m.Reads != compile.ReadsQueue {
				t.Errorf("taken back in %s it is in %s, and workers read %q", turn, m.Step, m.Reads)
			}
			for _, binding := range broker.BindingsTo("test") {
				if binding.Source == "async" {
					t.Errorf("taken back in %s new messages come into the queue by %s, before those of the other one are handled", turn, binding.Name())
				}
			}
		}
		if last := look(strict("test", "orders")); last.Drains != "test" {
			t.Errorf("taken back in %s it is in %s at last, and drains %q", turn, last.Step, last.Drains)
		}
	}
}

// The spec may change after a queue of another name was created and before the ways are led into it: that is no conflict, which would keep workers
// from learning of it.
func TestRename_HasNoConflictBeforeTheNewQueueTakesOver(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	renamed := func(single bool) topology.Objects {
		return desired(t, async(func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1] = v1alpha1.Queue{Name: "orders", PreviousNames: []string{"test"}, BindingKeys: []string{"test"}}
			if single {
				tr.Spec.Queues[1].SingleActiveConsumer = new(true)
			}
		}))
	}
	past := topology.Past{
		Created:    []string{createdExchange},
		Migrations: []v1alpha1.Migration{{Queue: "orders", Standin: "test", Step: v1alpha1.MigrationRecreate}},
		Consumed:   []string{"test"},
		Held:       map[string]bool{"test": true},
	}
	for _, queue := range renamed(false).Queues {
		if queue.Name == "orders" {
			broker.apply(topology.Step{Action: topology.ActionCreate, Queue: &queue})
		}
	}
	diff := topology.DiffSince(renamed(true), broker.Observed, past)
	if len(diff.Conflicts) > 0 || len(diff.Migrations) != 1 || diff.Migrations[0].Step != v1alpha1.MigrationRecreate {
		t.Errorf("in conflict are %v, and it migrates %+v", diff.Conflicts, diff.Migrations)
	}
}

// A renaming leads retries by the new name into the queue of the former one until the new one is there. Where the spec gives the new name to a queue
// that has no previous name by then, they come back to that one alone.
func TestDiff_LeadsNoRetriesOfAnotherNameToALeavingQueue(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	orders := func(previous ...string) topology.Objects {
		return desired(t, async(func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1] = v1alpha1.Queue{Name: "orders", PreviousNames: previous, BindingKeys: []string{"test"}}
		}))
	}
	past := topology.Past{Created: []string{createdExchange}, Consumed: []string{"test"}}
	look := func(want topology.Objects) {
		diff := topology.DiffSince(want, broker.Observed, past)
		for _, step := range topology.Plan(diff) {
			broker.apply(step)
		}
		past.Migrations = written(diff)
	}
	look(orders("test"))
	look(orders())
	var queues []string
	for _, binding := range broker.Bindings {
		if binding.Source == "async.return" && binding.RoutingKey == "orders" {
			queues = append(queues, binding.Destination)
		}
	}
	if !slices.Equal(queues, []string{"orders"}) {
		t.Errorf("retries by the name orders come back to %v", queues)
	}
	if own := broker.BindingsTo("test"); !slices.ContainsFunc(own, func(b topology.Binding) bool { return b.RoutingKey == "test" }) {
		t.Errorf("retries of the queue itself have no way back: %v", own)
	}
}

// Workers read of a change later than it is made: until then they give messages back to a queue as to one in Strict order, also to one that was adopted
// before it became that.
func TestDeliveryLimit_StaysForAQueueAdoptedOnItsWayToStrict(t *testing.T) {
	strict, adopted := &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}, new(true)
	for name, c := range map[string]struct{ ordered, then v1alpha1.Queue }{
		"beside its stand-in": {
			v1alpha1.Queue{Name: "test", Ordering: strict}, v1alpha1.Queue{Name: "test", Adopt: adopted},
		},
		"beside the queue to which it was renamed": {
			v1alpha1.Queue{Name: "orders", PreviousNames: []string{"test"}, Ordering: strict},
			v1alpha1.Queue{Name: "test", PreviousNames: []string{"orders"}, Adopt: adopted},
		},
	} {
		broker := emptyBroker()
		broker.converge(desired(t, async()))
		past := topology.Past{Created: []string{createdExchange}}
		look := func(queue v1alpha1.Queue) {
			queue.BindingKeys = []string{"test"}
			diff := topology.DiffSince(desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1] = queue })), broker.Observed, past)
			for _, step := range topology.Plan(diff) {
				broker.apply(step)
			}
			past.Migrations = written(diff)
		}
		limit := func() string {
			return fmt.Sprint(broker.Policies["redrive.async:queue:test"].Definition["delivery-limit"])
		}
		for range 2 {
			look(c.ordered)
		}
		before := limit()
		if before == "20" {
			t.Fatalf("%s: the limit of the order is %s", name, before)
		}
		for range 2 {
			if look(c.then); limit() != before {
				t.Errorf("%s: the limit is lowered from %s to %s", name, before, limit())
			}
		}
	}
}

// The same where the order is given up before the queue that was to have it is made: nothing has a single active consumer yet.
func TestDeliveryLimit_StaysWhenARenameGivesItsOrderUp(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	past := topology.Past{
		Created: []string{createdExchange}, Consumed: []string{"test"}, Follows: func(string, compile.Reading) bool { return false },
	}
	look := func(ordering *v1alpha1.Ordering) string {
		renamed := desired(t, async(func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1] = v1alpha1.Queue{Name: "orders", PreviousNames: []string{"test"}, BindingKeys: []string{"test"}, Ordering: ordering}
		}))
		diff := topology.DiffSince(renamed, broker.Observed, past)
		for _, step := range topology.Plan(diff) {
			broker.apply(step)
		}
		past.Migrations = []v1alpha1.Migration{{Queue: "orders", Standin: "test", Step: diff.Migrations[0].Step}}
		return fmt.Sprint(broker.Policies["redrive.async:queue:test"].Definition["delivery-limit"])
	}
	ordered := look(&v1alpha1.Ordering{Type: v1alpha1.OrderingStrict})
	if _, made := broker.Queues["orders"]; made || ordered == "20" {
		t.Fatalf("the new queue is there: %t, and the limit is %s", made, ordered)
	}
	if limit := look(nil); limit != ordered {
		t.Errorf("the limit is lowered from %s to %s", ordered, limit)
	}
}

// A request that had no answer may unbind the queue for minutes. What an application has bound is led back to it only then: nobody binds it again.
func TestDoubtful_DelaysTheReturnOfAnApplicationsBinding(t *testing.T) {
	spec := func(change func(*v1alpha1.Queue)) topology.Objects {
		return desired(t, async(func(tr *v1alpha1.Transport) { change(&tr.Spec.Queues[1]) }))
	}
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.exchange("async", func(e *topology.ExchangeState) { e.Policy = "redrive.async:exchange" })
	theirs := topology.Binding{Source: "async", Destination: "test", RoutingKey: "theirs"}
	broker.Bindings = append(broker.Bindings, theirs)
	past := topology.Past{Created: []string{createdExchange}}
	look := func(wanted topology.Objects) topology.Difference {
		diff := topology.DiffSince(wanted, broker.Observed, past)
		for _, step := range topology.Plan(diff) {
			broker.apply(step)
		}
		past.Migrations = written(diff)
		return diff
	}
	leads := func(queue string) (to []string) {
		for _, binding := range broker.BindingsTo(queue) {
			if binding.Source == "async" {
				to = append(to, binding.RoutingKey)
			}
		}
		slices.Sort(to)
		return to
	}
	for range 4 {
		look(spec(func(q *v1alpha1.Queue) { q.Type = new(v1alpha1.QueueClassic) }))
	}
	if got := leads("test.migrating"); !slices.Equal(got, []string{"test", "theirs"}) || len(leads("test")) > 0 {
		t.Fatalf("into the stand-in lead %q, and into the queue %q", got, leads("test"))
	}
	adopted := spec(func(q *v1alpha1.Queue) { q.Adopt = new(true) })
	past.Doubtful = map[string]time.Time{"binding/" + theirs.Name(): time.Now()}
	diff := look(adopted)
	if got := leads("test.migrating"); !slices.Equal(got, []string{"theirs"}) || !slices.Equal(leads("test"), []string{"test"}) {
		t.Errorf("while a request may unbind it, into the stand-in lead %q, and into the queue %q", got, leads("test"))
	}
	if !diff.Awaited || len(diff.Problems) != 1 {
		t.Errorf("it tells of nothing that it waits for: %v", diff.Problems)
	}
	past.Doubtful = nil
	look(adopted)
	if got := leads("test"); !slices.Equal(got, []string{"test", "theirs"}) || len(leads("test.migrating")) > 0 {
		t.Errorf("in the end, into the queue lead %q, and into the stand-in %q", got, leads("test.migrating"))
	}
}

// A binding of the bridge that a request may still delete carries nothing over: what comes between the removal of a way and the creation of the next would
// be unroutable, for as long as an operator that is killed in between does not come back.
func TestDoubtful_SwapsNoWayOverABridgeThatMayBeDeleted(t *testing.T) {
	classic := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic) }))
	for _, bridge := range []string{`async.alternate -> test.migrating "test"`, `async.return.alternate -> test.migrating "test"`} {
		broker := emptyBroker()
		broker.converge(desired(t, async()))
		broker.exchange("async", func(e *topology.ExchangeState) { e.Policy = "redrive.async:exchange" })
		past := topology.Past{Created: []string{createdExchange}}
		first := topology.DiffSince(classic, broker.Observed, past)
		for _, step := range topology.Plan(first) {
			broker.apply(step)
		}
		past.Migrations = []v1alpha1.Migration{{Queue: "test", Standin: "test.migrating", Step: first.Migrations[0].Step}}
		swaps := func(doubtful map[string]time.Time) bool {
			past.Doubtful = doubtful
			return slices.ContainsFunc(topology.Plan(topology.DiffSince(classic, broker.Observed, past)), func(step topology.Step) bool {
				return step.Action == topology.ActionDelete && step.Binding != nil && step.Binding.Destination == "test"
			})
		}
		if swaps(map[string]time.Time{"binding/" + bridge: time.Now()}) {
			t.Errorf("ways are swapped, and a request may still delete %s", bridge)
		}
		if !swaps(nil) {
			t.Error("no way is swapped, so that the test says nothing")
		}
	}
}

// What an application has bound leads somewhere in the end, also where the operator is killed between the removal of its binding at one queue and the
// creation at the next, and the spec has changed the parts of the two before the next one looks.
func TestTrace_LeadsABindingHomeWhateverTheSpecSaysNow(t *testing.T) {
	classic, adopted := new(v1alpha1.QueueClassic), new(true)
	for name, c := range map[string]struct{ first, then v1alpha1.Queue }{
		"another type, and another name": {
			v1alpha1.Queue{Name: "test", Type: classic}, v1alpha1.Queue{Name: "bills", PreviousNames: []string{"test"}},
		},
		"another type, and adopted": {v1alpha1.Queue{Name: "test", Type: classic}, v1alpha1.Queue{Name: "test", Adopt: adopted}},
		"another name, and a third one": {
			v1alpha1.Queue{Name: "orders", PreviousNames: []string{"test"}}, v1alpha1.Queue{Name: "bills", PreviousNames: []string{"orders", "test"}},
		},
		"another name, and the former one": {
			v1alpha1.Queue{Name: "orders", PreviousNames: []string{"test"}}, v1alpha1.Queue{Name: "test", PreviousNames: []string{"orders"}},
		},
		"another name, and adopted": {
			v1alpha1.Queue{Name: "orders", PreviousNames: []string{"test"}},
			v1alpha1.Queue{Name: "orders", PreviousNames: []string{"test"}, Adopt: adopted},
		},
	} {
		broker := emptyBroker()
		broker.converge(desired(t, async()))
		broker.exchange("async", func(e *topology.ExchangeState) { e.Policy = "redrive.async:exchange" })
		theirs := topology.Binding{Source: "async", Destination: "test", RoutingKey: "theirs"}
		broker.Bindings = append(broker.Bindings, theirs)
		past := topology.Past{Created: []string{createdExchange}}
		// look stops after a step; it is true where it did.
		look := func(queue v1alpha1.Queue, last func(topology.Step) bool) bool {
			queue.BindingKeys = []string{"test"}
			diff := topology.DiffSince(desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1] = queue })), broker.Observed, past)
			for _, step := range topology.Plan(diff) {
				if broker.apply(step); last(step) {
					return true
				}
			}
			for _, extra := range diff.ExtraQueues {
				if !slices.Contains(diff.Deferred, extra.Name) { // It is unbound, and gone some time later.
					broker.Bindings = slices.DeleteFunc(broker.Bindings, func(b topology.Binding) bool { return b.Destination == extra.Name })
				}
			}
			past.Migrations = nil
			for _, m := range diff.Migrations {
				past.Migrations = append(past.Migrations, v1alpha1.Migration{Queue: m.Queue, Standin: m.Standin, Step: m.Step})
				if m.Drains != "" {
					delete(broker.Queues, m.Drains)
				}
			}
			return false
		}
		removed := false
		for range 8 {
			removed = removed || look(c.first, func(step topology.Step) bool {
				return step.Action == topology.ActionDelete && step.Binding != nil && step.Binding.Name() == theirs.Name()
			})
		}
		if !removed {
			t.Fatalf("%s: the binding is not moved, so that the test says nothing", name)
		}
		for range 8 {
			look(c.then, func(topology.Step) bool { return false })
			if !slices.ContainsFunc(broker.Bindings, func(b topology.Binding) bool { return b.RoutingKey == "theirs" }) {
				t.Errorf("%s: nothing tells of the binding any more", name)
				break
			}
		}
		home := topology.Binding{Source: "async", Destination: c.then.Name, RoutingKey: "theirs"}
		if !slices.ContainsFunc(broker.Bindings, func(b topology.Binding) bool { return b.Name() == home.Name() }) {
			t.Errorf("%s: in the end there is no %s", name, home.Name())
		}
	}
}

// A request that had no answer may still remove what an application has bound, and the spec says again that the queue stays as it is: the binding stands,
// and nothing but the trace tells of it once the request is carried out.
func TestTrace_StaysWhileARequestMayRemoveItsBinding(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.exchange("async", func(e *topology.ExchangeState) { e.Policy = "redrive.async:exchange" })
	theirs := topology.Binding{Source: "async", Destination: "test", RoutingKey: "theirs"}
	broker.Bindings = append(broker.Bindings, theirs)
	past := topology.Past{Created: []string{createdExchange}}
	renamed := desired(t, async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues[1].Name, tr.Spec.Queues[1].PreviousNames = "orders", []string{"test"}
	}))
	has := func(such func(topology.Binding) bool) bool { return slices.ContainsFunc(broker.Bindings, such) }
	traced := func(b topology.Binding) bool { return b.Source == "async.alternate" && b.RoutingKey == "theirs" }
	stands := func(b topology.Binding) bool { return b.Name() == theirs.Name() }
	look := func(wanted topology.Objects) {
		diff := topology.DiffSince(wanted, broker.Observed, past)
		for _, step := range topology.Plan(diff) {
			if step.Action == topology.ActionDelete && step.Binding != nil && step.Binding.Name() == theirs.Name() {
				past.Doubtful = map[string]time.Time{"binding/" + theirs.Name(): time.Now()}
				break // It has no answer.
			}
			broker.apply(step)
		}
		past.Migrations = written(diff)
	}
	for range 4 {
		look(renamed)
	}
	if past.Doubtful == nil || !has(traced) || !has(stands) {
		t.Fatalf("there is %v, so that the test says nothing", broker.Bindings)
	}
	for range 3 {
		look(desired(t, async())) // without the new name
	}
	if !has(traced) {
		t.Error("the trace is gone")
	}
	broker.Bindings = slices.DeleteFunc(broker.Bindings, stands)
	look(desired(t, async()))
	if has(stands) {
		t.Error("the binding is made while the request may come again")
	}
	past.Doubtful = nil
	for range 2 {
		look(desired(t, async()))
	}
	if !has(stands) || has(traced) {
		t.Errorf("in the end there is %v", broker.Bindings)
	}
}

// written are the migrations of a difference as the status keeps them for the next look.
func written(diff topology.Difference) (all []v1alpha1.Migration) {
	for _, m := range diff.Migrations {
		all = append(all, v1alpha1.Migration{Queue: m.Queue, Standin: m.Standin, Step: m.Step})
	}
	return all
}

// What was made in the place of a queue on its way out that a list lacked, or that an earlier status knew of, had no type, no mark and no way out.
func TestMigration_MakesNoUntypedQueueForOneOnItsWayOut(t *testing.T) {
	for _, step := range []v1alpha1.MigrationStep{"", v1alpha1.MigrationPrepare, v1alpha1.MigrationDivert, v1alpha1.MigrationRestore, v1alpha1.MigrationCleanup} {
		broker := emptyBroker()
		broker.converge(desired(t, async()))
		want := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].SingleActiveConsumer = new(true) }))
		past := topology.Past{
			Created: []string{createdExchange}, Retiring: []string{"test"},
			Migrations: []v1alpha1.Migration{{Queue: "test", Standin: "test.migrating", Step: step}},
		}
		made := false
		for range 3 {
			diff := topology.DiffSince(want, broker.Observed, past)
			for _, missing := range diff.Missing.Queues {
				made = true
				if missing.Type == "" || !missing.Durable {
					t.Errorf("%s: it would make %+v", step, missing)
				}
			}
			for _, step := range topology.Plan(diff) {
				broker.apply(step)
			}
			delete(broker.Queues, "test")
		}
		if !made {
			t.Errorf("%q: nothing is made at all", step)
		}
	}
}

// An operator that is killed between the removal of a way and the creation of the next leaves the bridge alone to lead what comes, for as long as the removal
// may still be carried out. Where the spec no longer says which queue takes over from which, that went at once, and all messages of the key were dropped.
func TestRename_KeepsTheBridgeWhileItsWayCannotBeMade(t *testing.T) {
	named := func(name string, previous ...string) topology.Objects {
		return desired(t, async(func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1] = v1alpha1.Queue{Name: name, PreviousNames: previous, BindingKeys: []string{"test"}}
		}))
	}
	for what, next := range map[string]topology.Objects{"back": named("test"), "to a third name": named("bills")} {
		broker := emptyBroker()
		broker.converge(named("test"))
		broker.exchange("async", func(e *topology.ExchangeState) { e.Policy = "redrive.async:exchange" })
		past := topology.Past{Created: []string{createdExchange}}
		way := topology.Binding{Source: "async", Destination: "test", RoutingKey: "test", Arguments: topology.Arguments{topology.OwnerArgument: next.Owner}}
		killed := false
		for range 10 {
			diff := topology.DiffSince(named("orders", "test"), broker.Observed, past)
			for _, step := range topology.Plan(diff) {
				broker.apply(step)
				killed = step.Action == topology.ActionDelete && step.Ref() == (topology.Step{Binding: &way}).Ref()
				if killed {
					break
				}
			}
			if past.Migrations = written(diff); killed {
				break
			}
		}
		leads := func() bool {
			return slices.ContainsFunc(broker.Bindings, func(b topology.Binding) bool { return b.Source == "async.alternate" && b.RoutingKey == "test" })
		}
		if !killed || !leads() {
			t.Fatalf("the way is not removed (%t), or nothing stands in for it: %v", killed, broker.Bindings)
		}
		past.Doubtful = map[string]time.Time{
			"binding/" + way.Name(): time.Now(), "binding/" + (topology.Binding{Source: "async", Destination: "bills", RoutingKey: "test"}).Name(): time.Now(),
		}
		for range 3 {
			diff := topology.DiffSince(next, broker.Observed, past)
			for _, step := range topology.Plan(diff) {
				broker.apply(step)
			}
			past.Migrations = written(diff)
			for _, extra := range diff.ExtraQueues {
				if !slices.Contains(diff.Deferred, extra.Name) && extra.Name == "test" {
					t.Errorf("renamed %s: queue %s goes, with what leads into it", what, extra.Name)
				}
			}
		}
		if !leads() {
			t.Errorf("renamed %s: what comes by the key is unroutable: %v", what, broker.Bindings)
		}
		past.Doubtful = nil
		for range 3 {
			diff := topology.DiffSince(next, broker.Observed, past)
			for _, step := range topology.Plan(diff) {
				broker.apply(step)
			}
			past.Migrations = written(diff)
			if left := diff.Deferred; len(left) > 0 && diff.Empty() {
				t.Errorf("renamed %s: %v stay for good", what, left)
			}
		}
	}
}

func TestMigration_GivesAClassicQueueOnlyPolicyKeysItKnows(t *testing.T) {
	broker := emptyBroker()
	queue := func(kind v1alpha1.QueueType, ttl time.Duration) topology.Objects {
		return desired(t, async(func(tr *v1alpha1.Transport) {
			if tr.Spec.Queues[1].Type = &kind; ttl > 0 {
				tr.Spec.Queues[1].Limits = &v1alpha1.Limits{MessageTTL: v1alpha1.NewDuration(ttl)}
			}
		}))
	}
	broker.converge(queue(v1alpha1.QueueClassic, time.Hour))
	past := topology.Past{Created: []string{createdExchange, "queue/test"}}
	strict := desired(t, async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues[1].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict}
		tr.Spec.Queues[1].Limits = &v1alpha1.Limits{MessageTTL: v1alpha1.NewDuration(time.Hour)}
	}))
	broker.queue("test", func(q *topology.QueueState) {
		q.Policy, q.EffectiveDefinition = "redrive.async:queue:test", topology.Arguments{"message-ttl": 3600000}
	})
	for _, warning := range topology.DiffSince(strict, broker.Observed, past).Warnings {
		if warning.Object.Name == "test" && strings.Contains(warning.Message, "delivery limit") {
			t.Errorf("a classic queue that is to become Strict: %s", warning.Message)
		}
	}
	look := func(want topology.Objects) string {
		diff := topology.DiffSince(want, broker.Observed, past)
		for _, step := range topology.Plan(diff) {
			broker.apply(step)
		}
		past.Migrations = written(diff)
		return fmt.Sprint(broker.Policies["redrive.async:queue:test"].Definition)
	}
	for _, c := range []struct {
		ttl  time.Duration
		want string
	}{{time.Hour, "map[message-ttl:3600000]"}, {time.Minute, "map[message-ttl:60000]"}, {0, "map[overflow:drop-head]"}, {time.Hour, "map[message-ttl:3600000]"}} {
		for range 2 {
			if got := look(queue(v1alpha1.QueueQuorum, c.ttl)); got != c.want {
				t.Errorf("with a time to live of %s the policy says %s, want %s", c.ttl, got, c.want)
			}
		}
	}
	delete(broker.Queues, "test")
	if got, want := look(queue(v1alpha1.QueueQuorum, time.Hour)), "map[delivery-limit:20 message-ttl:3600000]"; got != want {
		t.Errorf("once the queue is gone the policy says %s, want %s", got, want)
	}
}

// The status of a backup may have a step of a migration that has long been taken, and not know of a classic queue that was made since. That is never emptied
// to be deleted, so that the migration stood still for good, and nobody read the stand-in.
func TestMigration_GoesOnPastAQueueThatABackupDoesNotKnow(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].SingleActiveConsumer = new(true) })))
	classic := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic) }))
	past := topology.Past{Created: []string{createdExchange}}
	look := func() topology.Migration {
		diff := topology.DiffSince(classic, broker.Observed, past)
		for _, step := range topology.Plan(diff) {
			broker.apply(step)
		}
		past.Migrations = written(diff)
		return diff.Migrations[0]
	}
	var backup []v1alpha1.Migration
	for look().Step != v1alpha1.MigrationRestore {
		if past.Migrations[0].Step == v1alpha1.MigrationDrain {
			backup = past.Migrations
			delete(broker.Queues, "test")
			past.Created = []string{createdExchange, "queue/test"}
		}
	}
	past.Created, past.Migrations = []string{createdExchange}, backup
	for range 4 {
		look()
	}
	if m := look(); m.Step != v1alpha1.MigrationCleanup || m.Drains != "test.migrating" || m.Reads != compile.ReadsStandin {
		t.Errorf("it is in %s, empties %q, and workers read %q", m.Step, m.Drains, m.Reads)
	}
}
