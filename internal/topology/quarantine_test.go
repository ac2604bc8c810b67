package topology_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// strict gives the queue test a strict order.
func strict(onFailure v1alpha1.OnFailure) func(*v1alpha1.Transport) {
	return func(tr *v1alpha1.Transport) {
		tr.Spec.Queues[1].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict, OnFailure: onFailure}
	}
}

// deliveries are what the policies need of the strictly ordered queue test.
func deliveries(t *testing.T, needed int64, change ...func(*v1alpha1.Transport)) topology.Objects {
	t.Helper()
	objects, err := topology.Desired(async(change...), compile.Needs{Lanes: lanes(), Deliveries: map[string]int64{"test": needed}}, owner)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

const quarantineOfTest = "+ queue test.quarantine  redrive-quarantine-of=test, x-dead-letter-exchange=async.failed, " +
	"x-dead-letter-strategy=at-least-once, x-overflow=reject-publish, x-queue-type=quorum, x-single-active-consumer=true"

func TestQuarantine_HasAQueueForEveryQueueButAStrictOne(t *testing.T) {
	cases := []struct {
		name   string
		change func(*v1alpha1.Transport)
		has    bool
	}{
		{"a quorum queue", func(*v1alpha1.Transport) {}, true},
		{"a classic queue", func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Type = new(v1alpha1.QueueClassic) }, true},
		{"an adopted queue", adopting, true},
		{"a queue with a single active consumer", func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].SingleActiveConsumer = new(true) }, true},
		{"a queue with ordering None", func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1].Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingNone}
		}, true},
		{"a strict queue", strict(""), false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			plan := lines(topology.Plan(topology.Diff(desired(t, async(c.change)), emptyBroker().Observed, nil)))
			wanted := []string{
				quarantineOfTest,
				`+ binding async.return -> test.quarantine "test.quarantine"`,
				`+ policy redrive.async:queue:test.quarantine  pattern=^test\.quarantine$, priority=1000, delivery-limit=20, overflow=reject-publish`,
			}
			for _, line := range wanted {
				if got := slices.Contains(plan, line); got != c.has {
					t.Errorf("the plan has %q: %t, in\n%s", line, got, strings.Join(plan, "\n"))
				}
			}
		})
	}
}

func TestQuarantine_IsReadyBeforeMessagesComeIn(t *testing.T) {
	plan := topology.Plan(topology.Diff(desired(t, async()), emptyBroker().Observed, nil))
	order := []string{
		intoFailure, "+ policy redrive.async:queue:test.quarantine", "+ queue test.quarantine", "+ queue test ",
		`+ binding async.return -> test.quarantine`, `+ binding async.return -> test "test"`, `+ binding async -> test "test"`,
	}
	for i := 1; i < len(order); i++ {
		if before, after := position(plan, order[i-1]), position(plan, order[i]); before < 0 || before >= after {
			t.Errorf("%q is step %d, and %q step %d", order[i-1], before, order[i], after)
		}
	}
}

func TestDesired_RefusesNamesOfQuarantineAndStandIns(t *testing.T) {
	rename := func(name string) func(*v1alpha1.Transport) {
		return func(tr *v1alpha1.Transport) { tr.Spec.Queues[1].Name = name }
	}
	cases := []struct {
		name   string
		change []func(*v1alpha1.Transport)
		want   string
	}{
		{
			"a queue named like another's quarantined messages",
			[]func(*v1alpha1.Transport){rename("lost.quarantine")},
			`spec.queues[0].name: "lost.quarantine" would be its quarantine queue, and is the name of spec.queues[1]: rename one of the two`,
		},
		{"the failure queue named like quarantined messages", []func(*v1alpha1.Transport){func(tr *v1alpha1.Transport) {
			tr.Spec.Failure = &v1alpha1.Failure{Queue: new("test.quarantine")}
		}}, `spec.queues[1].name: "test.quarantine" would be its quarantine queue, and is the failure queue`},
		{
			"quarantined messages named like a lane",
			[]func(*v1alpha1.Transport){rename("async.fallback")},
			`spec.queues[1].name: "async.fallback.quarantine" would be its quarantine queue, and names that begin with "async.fallback."`,
		},
		{
			"a name that is too long with its ending",
			[]func(*v1alpha1.Transport){rename(strings.Repeat("x", 245))},
			`.quarantine" made from it has 256 bytes; RabbitMQ allows 255`,
		},
		{
			"a queue named like another's stand-in",
			[]func(*v1alpha1.Transport){rename("lost.migrating")},
			`spec.queues[0].name: "lost.migrating" would stand in for it while it is migrated, and is the name of spec.queues[1]: rename one of the two`,
		},
		{"the failure queue named like the stand-in of a strict queue", []func(*v1alpha1.Transport){strict(""), func(tr *v1alpha1.Transport) {
			tr.Spec.Failure = &v1alpha1.Failure{Queue: new("test.migrating")}
		}}, `spec.queues[1].name: "test.migrating" would stand in for it while it is migrated, and is the failure queue`},
		{"an adopted queue has no stand-in whose name could be taken", []func(*v1alpha1.Transport){
			rename("lost.migrating"), func(tr *v1alpha1.Transport) { tr.Spec.Queues[0].Adopt = new(true) },
		}, ""},
		{"the longest name that the schema allows", []func(*v1alpha1.Transport){rename(strings.Repeat("x", 244))}, ""},
		{"a name with that ending alone", []func(*v1alpha1.Transport){rename("mine.quarantine")}, ""},
		{"a strict queue has no quarantined messages whose name could be taken", []func(*v1alpha1.Transport){
			strict(""), rename("lost.quarantine"), func(tr *v1alpha1.Transport) {
				tr.Spec.Queues[0].Ordering, tr.Spec.Queues[1].Ordering = tr.Spec.Queues[1].Ordering, nil
			},
		}, ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := topology.Desired(async(c.change...), compile.Needs{Lanes: lanes()}, owner)
			var invalid *topology.InvalidError
			switch {
			case c.want == "":
				if err != nil {
					t.Error(err)
				}
			case !errors.As(err, &invalid) || len(invalid.Problems) != 1 || !strings.Contains(err.Error(), c.want):
				t.Errorf("want %q, got %v", c.want, err)
			}
		})
	}
}

func TestQuarantine_IsAddedToAnExistingTransport(t *testing.T) {
	broker := emptyBroker()
	// Before there were any.
	of := func(name string) bool { return strings.HasSuffix(name, ".quarantine") }
	older := desired(t, async())
	older.Queues = slices.DeleteFunc(older.Queues, func(q topology.Queue) bool { return of(q.Name) })
	older.Bindings = slices.DeleteFunc(older.Bindings, func(b topology.Binding) bool { return of(b.Destination) })
	older.Policies = slices.DeleteFunc(older.Policies, func(p topology.Policy) bool { return of(p.Name) })
	broker.converge(older)

	got := broker.converge(desired(t, async()), createdExchange)
	if plan := topology.Plan(got); len(plan) != 6 || len(got.Conflicts)+len(got.ExtraQueues)+len(got.Warnings) > 0 {
		t.Errorf("want the two queues with a binding and a policy each, got %v, %v, %v", lines(plan), got.Conflicts, got.Warnings)
	}
	if rest := topology.Diff(desired(t, async()), broker.Observed, []string{createdExchange}); !rest.Empty() {
		t.Errorf("a difference is left: %v", lines(topology.Plan(rest)))
	}
}

func TestQuarantine_ConflictsWithAnotherQueueOfItsName(t *testing.T) {
	cases := []struct {
		name   string
		change func(*topology.QueueState)
		want   string
	}{
		{
			"a classic queue", func(q *topology.QueueState) { q.Type, q.Durable = "classic", true },
			`queue "test.quarantine": type is classic, wanted is quorum; a queue cannot change it in place: give the work queue another name`,
		},
		{"a queue of another Transport", func(q *topology.QueueState) {
			q.Type, q.Durable, q.Arguments = "quorum", true, topology.Arguments{"redrive-owner": "c1/shop/blog"}
		}, "it is owned by the Transport shop/blog"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			broker := emptyBroker()
			broker.queue("test.quarantine", c.change)
			got := broker.converge(desired(t, async()))
			contains(t, "conflicts", got.Conflicts, []string{c.want})
			contains(t, "withheld", got.Withheld, []string{
				"queue test.quarantine is in conflict", "its quarantine queue is in conflict",
			})
			if _, made := broker.Policies["redrive.async:queue:test.quarantine"]; made {
				t.Error("it gets a policy of ours")
			}
		})
	}
}

func TestQuarantine_KeepsItsPolicyAndWayBackUntilItIsGone(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	without := desired(t, async(func(tr *v1alpha1.Transport) { tr.Spec.Queues = tr.Spec.Queues[:1] }))
	got := broker.converge(without, createdExchange)
	if plan := lines(topology.Plan(got)); len(plan) > 0 || len(got.ExtraQueues) != 2 {
		t.Errorf("they go in steps, got %q, %v", plan, got.ExtraQueues)
	}
	if _, pinned := broker.Policies["redrive.async:queue:test.quarantine"]; !pinned {
		t.Error("a broad policy of others would reach what is in them")
	}
	for _, binding := range broker.BindingsTo("test.quarantine") {
		if topology.LeadsIn(binding, broker.Queues["test.quarantine"].Queue, "async") {
			t.Errorf("what waits in lanes could not come back: %s", binding.Name())
		}
	}
	for _, queue := range []string{"test", "test.quarantine"} {
		broker.Bindings = slices.DeleteFunc(broker.Bindings, func(b topology.Binding) bool { return b.Destination == queue })
		delete(broker.Queues, queue)
	}
	got = broker.converge(without, createdExchange)
	want := []string{"- policy redrive.async:queue:test", "- policy redrive.async:queue:test.quarantine"}
	if plan := lines(topology.Plan(got)); !slices.Equal(plan, want) {
		t.Errorf("want %q, got %q", want, plan)
	}
}

func TestRoleOf_KnowsQuarantineByItsArguments(t *testing.T) {
	objects := desired(t, async(func(tr *v1alpha1.Transport) {
		tr.Spec.Queues[1].Name, tr.Spec.Queues[1].SingleActiveConsumer = "mine.quarantine", new(true)
	}))
	for _, queue := range objects.Queues {
		if got := topology.RoleOf(queue); got != queue.Role {
			t.Errorf("%s is %s, taken for %s", queue.Name, queue.Role, got)
		}
	}
	if got := topology.QuarantineOf(objects.Queues[3]); got != "lost" {
		t.Errorf("%s has the quarantine of %q", objects.Queues[3].Name, got)
	}
}

func TestWarnings_JudgesQuarantineAsADestinationOfLanes(t *testing.T) {
	limit := func(definition topology.Arguments) func(*simulated) {
		return func(b *simulated) {
			b.Policies["all"] = topology.Policy{Name: "all", Pattern: `^test\.quarantine$`, ApplyTo: "all", Priority: 5000, Definition: definition}
		}
	}
	const overridden = `queue test.quarantine: the RabbitMQ policy "all" (priority 5000) applies instead`
	checkDiff(t, []diffCase{
		{
			name: "a foreign binding",
			broker: func(b *simulated) {
				b.Bindings = append(b.Bindings, topology.Binding{Source: "async", Destination: "test.quarantine", RoutingKey: "x"})
			},
			want: expectation{warnings: []string{`queue test.quarantine: it also gets messages of exchange "async" (key "x"): they are handled one by one`}},
		},
		{
			name: "a queue that is full and refuses messages",
			broker: func(b *simulated) {
				b.queue("test.quarantine", func(q *topology.QueueState) {
					q.Policy, q.Ready = "redrive.async:queue:test.quarantine", 5
					q.EffectiveDefinition = topology.Arguments{"delivery-limit": 20, "overflow": "reject-publish", "max-length": 5}
				})
			},
			want: expectation{warnings: []string{
				"queue test.quarantine: an operator policy bounds its length and refuses what is over",
				"queue test.quarantine: it is full and refuses messages, which stops the lanes that lead to it (max-length 5 by an operator " +
					"policy): take messages out, and take the limit away",
			}},
		},
		{
			name: "a policy that lets them expire", broker: limit(topology.Arguments{"message-ttl": 9}),
			want: expectation{warnings: []string{overridden, `"all" sets message-ttl: messages go to the failure queue when they are that old`}},
		},
		{
			name: "a policy that drops the oldest", broker: limit(topology.Arguments{"max-length": 9, "overflow": "drop-head"}),
			want: expectation{warnings: []string{overridden, `"all" bounds its length: the oldest messages go to the failure queue`}},
		},
	})
}

func TestDeliveryLimit_AllowsAllRetriesOfAStrictQueue(t *testing.T) {
	cases := []struct {
		name    string
		objects func(*testing.T) topology.Objects
		want    string
	}{
		{
			"it goes on", func(t *testing.T) topology.Objects { t.Helper(); return deliveries(t, 26, strict("")) },
			"delivery-limit=26",
		},
		{"it blocks", func(t *testing.T) topology.Objects {
			t.Helper()
			return deliveries(t, 26, strict(v1alpha1.OnFailureBlock))
		}, "delivery-limit=2147483647"},
		{
			"nobody knows what it needs", func(t *testing.T) topology.Objects { t.Helper(); return desired(t, async(strict(""))) },
			"delivery-limit=2147483647",
		},
		{"it has limits too", func(t *testing.T) topology.Objects {
			t.Helper()
			return deliveries(t, 26, strict(v1alpha1.OnFailureContinue), bounded)
		}, "delivery-limit=26, max-length=10000, overflow=drop-head"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			plan := topology.Plan(topology.Diff(c.objects(t), emptyBroker().Observed, nil))
			policy := "+ policy redrive.async:queue:test  pattern=^test$, priority=100, " + c.want
			queue := "+ queue test  x-dead-letter-exchange=async.failed, x-dead-letter-strategy=at-least-once, x-overflow=reject-publish, " +
				"x-queue-type=quorum, x-single-active-consumer=true"
			if limit, made := position(plan, policy), position(plan, queue); limit < 0 || limit > made {
				t.Errorf("the limit is step %d, the queue is step %d of\n%s", limit, made, strings.Join(lines(plan), "\n"))
			}
		})
	}
}

func TestDeliveryLimit_ChangesInPlaceForMoreRetries(t *testing.T) {
	broker := emptyBroker()
	broker.converge(deliveries(t, 26, strict("")))
	broker.queue("test", func(q *topology.QueueState) {
		q.Policy, q.EffectiveDefinition = "redrive.async:queue:test", topology.Arguments{"delivery-limit": 26}
	})
	got := broker.converge(deliveries(t, 33, strict("")), createdExchange)
	want := []string{"~ policy redrive.async:queue:test  delivery-limit: 26 -> 33"}
	if plan := lines(topology.Plan(got)); !slices.Equal(plan, want) || len(got.Warnings) > 0 {
		t.Errorf("want %q, got %q, %v", want, plan, got.Warnings)
	}
}

// A message of a Strict queue may have come back more often than the lower limit allows.
func TestDeliveryLimit_IsNotLoweredForAQueueThatWasStrict(t *testing.T) {
	for name, after := range map[string]topology.Objects{
		"fewer retries": deliveries(t, 26, strict("")),
		"a single active consumer": desired(t, async(func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1].SingleActiveConsumer = new(true)
		})),
		"another name and no order": desired(t, async(func(tr *v1alpha1.Transport) {
			tr.Spec.Queues[1].Name, tr.Spec.Queues[1].PreviousNames = "orders", []string{"test"}
		})),
		"no order": desired(t, async()),
	} {
		t.Run(name, func(t *testing.T) {
			const policy = "redrive.async:queue:test"
			broker := emptyBroker()
			broker.converge(deliveries(t, 1000, strict("")))
			broker.converge(after, createdExchange)
			if got := broker.Policies[policy].Definition["delivery-limit"]; fmt.Sprint(got) != "1000" {
				t.Errorf("it is %v", got)
			}
		})
	}
	lacking := emptyBroker()
	lacking.converge(deliveries(t, 1000, strict("")))
	delete(lacking.Policies, "redrive.async:queue:test")
	lacking.queue("test", func(q *topology.QueueState) { q.EffectiveDefinition = topology.Arguments{"delivery-limit": 1000} })
	lacking.converge(desired(t, async()), createdExchange)
	if got := lacking.Policies["redrive.async:queue:test"].Definition["delivery-limit"]; fmt.Sprint(got) != "1000" {
		t.Errorf("where a list lacks the policy it is %v", got)
	}
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.Policies["redrive.async:queue:test"].Definition["delivery-limit"] = 1000
	broker.converge(desired(t, async()), createdExchange)
	if got := broker.Policies["redrive.async:queue:test"].Definition["delivery-limit"]; fmt.Sprint(got) != "20" {
		t.Errorf("of a queue that never was Strict somebody has raised it, and it is %v", got)
	}
}

func TestOrderingStrict_ConflictsWithAQueueOfOthers(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.queue("test", theirs(func(*topology.QueueState) {}))
	got := broker.converge(deliveries(t, 26, strict("")), createdExchange)
	contains(t, "conflicts", got.Conflicts, []string{
		`queue "test": x-single-active-consumer is false, wanted is true; Strict ordering needs a queue that has been made for it: choose another name`,
	})
	if limit := broker.Policies["redrive.async:queue:test"].Definition["delivery-limit"]; limit == nil || len(broker.BindingsTo("test.quarantine")) != 1 {
		t.Errorf("workers go on as before: limit %v, bindings %v", limit, broker.BindingsTo("test.quarantine"))
	}
	if len(got.ExtraQueues) != 1 || got.ExtraQueues[0].Name != "test.quarantine" {
		t.Errorf("the quarantine queue is not wanted any more: %v", got.ExtraQueues)
	}
}

func TestStrictHarm_FindsPoliciesThatLowerTheDeliveryLimit(t *testing.T) {
	rival := func(priority int, definition topology.Arguments) func(*simulated) {
		return func(b *simulated) {
			b.Policies["mine"] = topology.Policy{Name: "mine", Pattern: "^test$", ApplyTo: "queues", Priority: priority, Definition: definition}
		}
	}
	effective := func(policy string, definition topology.Arguments) func(*simulated) {
		return func(b *simulated) {
			b.queue("test", func(q *topology.QueueState) { q.Policy, q.EffectiveDefinition = policy, definition })
		}
	}
	const ours = "redrive.async:queue:test"
	cases := []struct {
		name    string
		broker  func(*simulated)
		want    string
		passing bool
	}{
		{
			name: "none at all", broker: rival(100, topology.Arguments{"max-length": 5, "overflow": "drop-head"}),
			want: `the RabbitMQ policy "mine" leaves it without a delivery limit`,
		},
		{
			name: "none by -1, which gives up the place on 4.0", broker: rival(500, topology.Arguments{"delivery-limit": -1}),
			want: `"mine" leaves it without a delivery limit`,
		},
		{
			name: "a lower one", broker: rival(500, topology.Arguments{"delivery-limit": 5}),
			want: `"mine" sets delivery-limit 5 where 26 is needed: messages go to the failure queue before their last retry: narrow its pattern`,
		},
		{name: "a higher one", broker: rival(500, topology.Arguments{"delivery-limit": 50})},
		{name: "a policy that does not apply", broker: rival(5, topology.Arguments{"delivery-limit": 5})},
		{
			name: "an operator policy", broker: effective(ours, topology.Arguments{"delivery-limit": 5}),
			want: "an operator policy sets delivery-limit 5 where 26 is needed", passing: true,
		},
		{name: "ours", broker: effective(ours, topology.Arguments{"delivery-limit": 26})},
		{name: "figures from before ours was written", broker: effective("", topology.Arguments{"delivery-limit": 5})},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			broker := emptyBroker()
			objects := deliveries(t, 26, strict(""))
			broker.converge(objects)
			c.broker(broker)
			var harms []topology.Finding
			for _, warning := range topology.Diff(objects, broker.Observed, nil).Warnings {
				if warning.Reason == v1alpha1.ReasonConflictingBrokerPolicy {
					harms = append(harms, warning)
				}
			}
			switch {
			case c.want == "" && len(harms) > 0:
				t.Errorf("want no harm, got %v", harms)
			case c.want != "" && (len(harms) != 1 || !strings.Contains(harms[0].String(), c.want) || harms[0].Passing != c.passing):
				t.Errorf("want %q, got %v", c.want, harms)
			}
		})
	}
}

// Workers read a queue that is to be migrated in Strict order by the new configuration, whatever it was made for, and may do so for a while after the
// change was taken back: longer than the stand-in is there.
func TestDeliveryLimit_IsNotLoweredForAQueueThatWasToBeStrict(t *testing.T) {
	const policy = "redrive.async:queue:test"
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	past := topology.Past{Created: []string{createdExchange}}
	look := func(want topology.Objects) (migrates bool) {
		diff := topology.DiffSince(want, broker.Observed, past)
		for _, step := range topology.Plan(diff) {
			broker.apply(step)
		}
		past.Migrations = written(diff)
		return len(diff.Migrations) > 0
	}
	look(deliveries(t, 1030, strict("")))
	look(desired(t, async()))
	if got := broker.Policies[policy].Definition["delivery-limit"]; fmt.Sprint(got) != "1030" {
		t.Errorf("while the stand-in is there it is %v", got)
	}
	delete(broker.Queues, "test.migrating")
	adopted := async()
	adopted.Spec.Queues[slices.IndexFunc(adopted.Spec.Queues, func(q v1alpha1.Queue) bool { return q.Name == "test" })].Adopt = new(true)
	for _, want := range []*v1alpha1.Transport{async(), adopted, async()} {
		look(desired(t, want))
		if got := broker.Policies[policy].Definition["delivery-limit"]; fmt.Sprint(got) != "1030" {
			t.Errorf("when the stand-in is gone it is %v", got)
		}
	}
	// One that somebody else has raised is put right.
	broker.Policies[policy].Definition["delivery-limit"] = 1000
	look(desired(t, async()))
	if got := broker.Policies[policy].Definition["delivery-limit"]; fmt.Sprint(got) != "20" {
		t.Errorf("one of somebody else stays: %v", got)
	}
}

// Workers that know of a quarantine queue into which nothing leads yet put what is delivered again where it goes to the failure queue untried. Where the
// spec wants none any more, the work queue still gets no messages until they have read that.
func TestQuarantine_KeepsMessagesOutWhileItCannotBeReached(t *testing.T) {
	wanted := desired(t, async(strict(v1alpha1.OnFailureBlock)))
	for name, c := range map[string]struct {
		consumed []string
		leads    bool
		want     bool
	}{
		"they know of it":                     {consumed: []string{"test", "test.quarantine"}},
		"they know of it, and it is reached":  {consumed: []string{"test", "test.quarantine"}, leads: true, want: true},
		"they have read that there is no one": {consumed: []string{"test"}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			broker := emptyBroker()
			broker.converge(desired(t, async()))
			broker.Bindings = slices.DeleteFunc(broker.Bindings, func(b topology.Binding) bool {
				return b.Destination == "test" || b.Destination == "test.quarantine" && !c.leads
			})
			diff := topology.DiffSince(wanted, broker.Observed, topology.Past{Created: []string{createdExchange}, Consumed: c.consumed})
			got := slices.ContainsFunc(topology.Plan(diff), func(step topology.Step) bool {
				return step.Binding != nil && step.Binding.Source == "async" && (step.Binding.Destination == "test" || step.Binding.Destination == "test.migrating")
			})
			if got != c.want {
				t.Errorf("it gets messages: %v; the plan is %v", got, topology.Plan(diff))
			}
		})
	}
}
