package topology_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// bounded lets the queue test drop what is over.
func bounded(tr *v1alpha1.Transport) {
	tr.Spec.Queues[1].Limits = &v1alpha1.Limits{DropOldestAfter: new(int64(10000))}
}

func position(steps []topology.Step, start string) int {
	return slices.IndexFunc(lines(steps), func(line string) bool { return strings.HasPrefix(line, start) })
}

const (
	limitsOfTest = "policy redrive.async:queue:test"
	intoFailure  = `+ binding async.failed -> async.failed ""`
)

func TestPlan_LimitsAQueueOnceWhatItDropsHasAWayOut(t *testing.T) {
	full := func(b *simulated) {
		b.queue("test", func(q *topology.QueueState) {
			q.Type, q.Durable, q.Messages = topology.TypeClassic, true, new(int64(50000))
		})
	}
	t.Run("an adopted one", func(t *testing.T) {
		broker := emptyBroker()
		full(broker)
		plan := topology.Plan(topology.Diff(desired(t, async(adopting, bounded)), broker.Observed, nil))
		limits, way := position(plan, "+ "+limitsOfTest), position(plan, intoFailure)
		if way < 0 || limits < way {
			t.Errorf("the limits are step %d, the way out is step %d", limits, way)
		}
	})
	t.Run("one whose limits change while the way out is gone", func(t *testing.T) {
		broker := emptyBroker()
		broker.converge(desired(t, async()))
		broker.Bindings = slices.DeleteFunc(broker.Bindings, func(b topology.Binding) bool { return b.Source == "async.failed" })
		plan := topology.Plan(topology.Diff(desired(t, async(bounded)), broker.Observed, nil))
		limits, way := position(plan, "~ "+limitsOfTest), position(plan, intoFailure)
		if way < 0 || limits < way {
			t.Errorf("the limits are step %d, the way out is step %d", limits, way)
		}
	})
	t.Run("nor while the failure queue is in conflict", func(t *testing.T) {
		broker := emptyBroker()
		full(broker)
		broker.queue("async.failed", func(q *topology.QueueState) { q.Type, q.Durable = topology.TypeClassic, true })
		plan := topology.Plan(topology.Diff(desired(t, async(adopting, bounded)), broker.Observed, nil))
		if limits := position(plan, "+ "+limitsOfTest); limits >= 0 {
			t.Errorf("the limits are step %d", limits)
		}
	})
	t.Run("nor if its owner makes it only later", func(t *testing.T) {
		broker := emptyBroker()
		broker.converge(desired(t, async(adopting, bounded)))
		if to := broker.Policies["redrive.async:queue:test"].Definition["dead-letter-exchange"]; to != "async.failed" {
			t.Errorf("what the limits remove goes to %v", to)
		}
	})
}

// The bound of the new one was that of the former one too, and dropped what it was kept for.
func TestFailureQueue_KeepsAPolicyWithoutABoundWhenRenamed(t *testing.T) {
	const former, failure = "redrive.async:failure:async.failed", "redrive.async:failure:b.failed"
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.queue("async.failed", func(q *topology.QueueState) { q.Messages = new(int64(3)) })
	renamed := desired(t, async(func(tr *v1alpha1.Transport) {
		tr.Spec.Failure = &v1alpha1.Failure{Queue: new("b.failed"), DropOldestAfter: new(int64(2))}
	}))
	old := broker.Policies[former]
	old.Name = "redrive.async:failure" // as it was called while one was for all
	broker.Policies[old.Name] = old
	lacking := broker.Observed
	lacking.Queues = maps.Clone(broker.Queues)
	delete(lacking.Queues, "async.failed")
	if d := topology.DiffSince(renamed, lacking, topology.Past{Retiring: []string{"async.failed"}}); len(d.ExtraPolicies) > 0 {
		t.Errorf("a list lacks the former one, and these policies are to go: %v", d.ExtraPolicies)
	}
	broker.converge(renamed)
	if got := broker.Policies[failure].Pattern; got != `^b\.failed$` {
		t.Errorf("the bounded policy applies to %s", got)
	}
	if _, stays := broker.Policies[old.Name]; !stays {
		t.Error("the policy for all failure queues goes before those that take its place are seen")
	}
	broker.converge(renamed)
	if _, stays := broker.Policies[old.Name]; stays {
		t.Error("the policy for all failure queues stays")
	}
	pin := broker.Policies[former]
	if _, bounded := pin.Definition["max-length"]; bounded || pin.Pattern != `^async\.failed$` || pin.Priority != broker.Policies[failure].Priority {
		t.Errorf("the former one is pinned by %+v", pin)
	}
	delete(broker.Queues, "async.failed")
	broker.converge(renamed)
	if _, stays := broker.Policies[former]; stays {
		t.Error("its policy stays when it is gone")
	}
}

func TestConflict_KeepsTheDeadLetterExchangeOfAQueue(t *testing.T) {
	broker := emptyBroker()
	legacy()(broker)
	broker.converge(desired(t, async(adopting)))
	got := broker.converge(desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic) })))
	if len(got.Conflicts) != 1 {
		t.Fatalf("conflicts %v", got.Conflicts)
	}
	if _, stands := broker.Policies["redrive.async:queue:test"]; !stands {
		t.Error("the policy that gives it a dead-letter exchange is gone, and workers still consume it")
	}
}

// What follows from others' policies is no drift, so the fingerprint tells that something else is wanted now.
func TestFingerprint_CountsWhatFollowsFromOthersPolicies(t *testing.T) {
	broker := emptyBroker()
	legacy()(broker)
	broker.Policies["mine"] = topology.Policy{
		Name: "mine", Pattern: "^test$", ApplyTo: "queues", Definition: topology.Arguments{"dead-letter-exchange": "mine"},
	}
	objects := desired(t, async(adopting))
	with := broker.converge(objects)
	delete(broker.Policies, "mine")
	without := broker.converge(objects)
	if _, made := broker.Policies["redrive.async:queue:test"]; !made {
		t.Fatal("no policy of ours takes the place of the user's")
	}
	if topology.Fingerprint(with.Wanted, with.Withheld) == topology.Fingerprint(without.Wanted, without.Withheld) {
		t.Error("a policy that is needed now and was not before would be told as a repair")
	}
}

func TestBelongingsOf_LeavesOutAnUnmarkedQueueOfAnotherTransport(t *testing.T) {
	broker := emptyBroker()
	broker.exchange("theirs.failed", func(e *topology.ExchangeState) {
		e.Arguments = topology.Arguments{topology.OwnerArgument: "c1/shop/theirs"}
	})
	broker.queue("work", func(q *topology.QueueState) {
		q.Type, q.Arguments = topology.TypeClassic, topology.Arguments{"x-dead-letter-exchange": "theirs.failed"}
	})
	for _, prefix := range []string{"ours", "theirs"} { // the other one may have taken over the prefix
		found := topology.BelongingsOf("c1/shop/ours", prefix, broker.Observed, []string{"queue/work"})
		if !found.Empty() {
			t.Errorf("prefix %s: it is among the belongings: %v", prefix, found)
		}
	}
}

// A broad policy of others would drop what is in it.
func TestBelongingsOf_LeavesThePolicyOfAFailureQueueThatStays(t *testing.T) {
	const pin = "redrive.async:failure:old"
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.Policies[pin] = topology.Policy{Name: pin, Pattern: "^old$", ApplyTo: "queues"}
	for name, pinned := range map[string]bool{"old": true, "older": false} {
		broker.Queues = map[string]topology.QueueState{}
		broker.queue(name, func(q *topology.QueueState) { q.Arguments, q.Messages = topology.Arguments{}, new(int64(0)) })
		found := topology.BelongingsOf(owner, "async", broker.Observed, nil)
		goes := slices.ContainsFunc(found.Policies, func(policy topology.Policy) bool { return policy.Name == pin })
		if slices.Contains(found.Pinned, "old") != pinned || goes == pinned {
			t.Errorf("beside the queue %s: pinned %q, and its policy goes: %v", name, found.Pinned, goes)
		}
	}
}

func TestLeadsIn_IsNotTrueOfTheWaysBackFromTheLanes(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	for _, queue := range []string{"test", "test.quarantine"} {
		for source, leadsIn := range map[string]bool{"async.return": false, "async.return.alternate": false, "async": true, "async.unrouted": true} {
			way := topology.Binding{Source: source, Destination: queue, RoutingKey: queue}
			if topology.LeadsIn(way, broker.Queues[queue].Queue, "async") != leadsIn {
				t.Errorf("%s goes before the lanes are empty: %v", way.Name(), !leadsIn)
			}
		}
	}
}

// A status that was restored in another cluster, or namespace, names classic queues of the first, which carry no mark.
func TestDiff_TakesNoQueueByTheStatusOfAnotherTransport(t *testing.T) {
	broker := emptyBroker()
	classic := async(func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic) })
	first, err := topology.Desired(classic, compile.Needs{Lanes: lanes()}, "c1/shop/async")
	if err != nil {
		t.Fatal(err)
	}
	broker.converge(first)
	created := []string{createdExchange, "queue/test"}
	without := async(func(tr *v1alpha1.Transport) { tr.Spec.Queues = tr.Spec.Queues[:1] })
	for owner, extra := range map[string]int{"c2/shop/async": 0, "c1/shop/async": 1} {
		second, err := topology.Desired(without, compile.Needs{Lanes: lanes()}, owner)
		if err != nil {
			t.Fatal(err)
		}
		classic := 0
		for _, queue := range topology.Diff(second, broker.Observed, created).ExtraQueues {
			if queue.Name == "test" {
				classic++
			}
		}
		if classic != extra {
			t.Errorf("for %s %d such queues are to go, want %d", owner, classic, extra)
		}
	}
}
