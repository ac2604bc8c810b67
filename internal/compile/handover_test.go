package compile_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

func TestWithHandedOver_IsWhatNoOtherGroupIsReadyToConsume(t *testing.T) {
	t.Parallel()
	queue := func(name, standin string) compile.Queue {
		return compile.Queue{Name: name, Quarantine: name + ".quarantine", Standin: standin, Policy: name}
	}
	left, quarantined := queue("left", ""), queue("kept", "")
	left.Leaving = true
	quarantined.Leaving, quarantined.Reads = true, compile.ReadsQuarantine
	last := compile.Config{Worker: "first", Queues: []compile.Queue{queue("stays", ""), queue("moves", ""), queue("before", ""), left, quarantined}}
	group := func(name string, queues ...compile.Queue) compile.Config {
		config := compile.Config{Worker: name, Queues: queues, Policies: map[string]v1alpha1.RetryPolicySpec{}}
		for _, queue := range queues {
			config.Policies[queue.Name] = v1alpha1.RetryPolicySpec{}
		}
		return config
	}
	groups := []compile.Config{
		group("first", queue("stays", ""), left),
		group("second", queue("moves", "moves.migrating"), queue("kept", "")),
		group("third", queue("shared", "")),
		group("fourth", queue("shared", ""), queue("renamed", "before")),
	}
	former := last.WithoutQueues()
	for name, tt := range map[string]struct {
		ready []string
		next  *compile.Config
		want  []string
	}{
		"no next group is ready":                {[]string{"first"}, &groups[0], []string{"moves", "moves.migrating", "renamed", "before"}},
		"one is":                                {[]string{"first", "second"}, &groups[0], []string{"renamed", "before"}},
		"all are":                               {[]string{"first", "second", "fourth"}, &groups[0], nil},
		"the group leaves, and nobody is ready": {nil, &former, []string{"stays", "moves", "moves.migrating", "renamed", "before"}},
		"the group leaves, and all are ready":   {[]string{"first", "second", "fourth"}, &former, nil},
	} {
		unserved := compile.Unserved(groups, func(group, _ string) bool { return slices.Contains(tt.ready, group) })
		if unserved["left"] || unserved["shared"] && slices.Contains(tt.ready, "fourth") {
			t.Errorf("%s: unserved are %v", name, unserved)
		}
		next := tt.next.WithHandedOver(&last, groups, unserved)
		var got []string
		for _, queue := range next.Queues[len(tt.next.Queues):] {
			if _, has := next.Policies[queue.Policy]; !has || !queue.Leaving || next.Has(queue.Name) {
				t.Errorf("%s: %+v", name, queue)
			}
			got = append(got, queue.Consumed()...)
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: consumes %v beside its own, want %v", name, got, tt.want)
		}
		if again := next.WithHandedOver(&next, groups, unserved); !slices.Equal(again.Queues, next.Queues) {
			t.Errorf("%s: the next time %+v", name, again.Queues)
		}
	}
}

// A configuration whose rules name policies that it lacks is refused by the operator, and was carried out by redrive run: every message that a rule matched
// was in the failure queue.
func TestFormer_KeepsThePoliciesThatRulesName(t *testing.T) {
	t.Parallel()
	transport := testtransport.New("http://127.0.0.1:1/")
	transport.Spec.RetryPolicies = []v1alpha1.PolicyRule{{When: "message.priority > 1", RetryPolicyRef: v1alpha1.PolicyReference{Name: "policy"}}}
	compiled := testtransport.Compile(t, transport, testtransport.Explicit(time.Second))
	last := compiled.Workers[0]
	own := last.Queues[0].Name
	for i := range last.Queues {
		last.Queues[i].Policy = "own"
	}
	last.Policies["own"] = last.Policies["policy"]
	for _, groups := range [][]compile.Config{nil, compiled.Workers} {
		unserved := compile.Unserved(groups, func(string, string) bool { return false })
		next, goesOn := last.Former(groups, unserved, []string{own})
		if err := next.Validate(); err != nil || !goesOn || len(next.Rules) != 1 {
			t.Errorf("%d groups in the spec: the configuration goes on %v, with the rules %v, and is refused: %v", len(groups), goesOn, next.Rules, err)
		}
	}
}

// A rule that was taken out of the spec with the group's name failed messages for as long as the next group did not get ready.
func TestFormer_DecidesByTheRulesOfTheSpec(t *testing.T) {
	t.Parallel()
	transport := testtransport.New("http://127.0.0.1:1/")
	transport.Spec.RetryPolicies = []v1alpha1.PolicyRule{{When: "true", RetryPolicyRef: v1alpha1.PolicyReference{Name: "policy"}}}
	last := testtransport.Compile(t, transport, testtransport.Explicit(time.Second)).Workers[0]
	transport.Spec.RetryPolicies = nil
	groups := testtransport.Compile(t, transport, testtransport.Explicit(time.Second)).Workers
	next, goesOn := last.Former(groups, compile.Unserved(groups, func(string, string) bool { return false }), nil)
	if !goesOn || len(next.Rules) != 0 || len(last.Rules) != 1 {
		t.Errorf("the former group goes on %v, with the rules %v", goesOn, next.Rules)
	}
}

// Without the lanes of the rules' policies their retries waited in lanes of others, thousands of times, or were all spent at once where there was none.
func TestFormer_HasTheLanesOfTheRulesOfTheSpec(t *testing.T) {
	t.Parallel()
	for name, lastLanes := range map[string]retry.Lanes{"none of its own": nil, "shorter ones": {time.Second}} {
		transport := testtransport.New("http://127.0.0.1:1/")
		last := testtransport.Compile(t, transport, testtransport.Explicit(time.Second)).Workers[0]
		own := last.Queues[0].Name
		last.Lanes = lastLanes
		transport.Spec.Queues = []v1alpha1.Queue{{Name: "b", BindingKeys: []string{"b"}}}
		transport.Spec.Workers[0].Name = "next"
		transport.Spec.RetryPolicies = []v1alpha1.PolicyRule{{When: "true", RetryPolicyRef: v1alpha1.PolicyReference{Name: "long"}}}
		groups := testtransport.CompileAll(t, transport, map[string]v1alpha1.RetryPolicySpec{
			"policy": testtransport.Explicit(time.Second), "long": testtransport.Explicit(time.Hour),
		}).Workers
		next, goesOn := last.Former(groups, compile.Unserved(groups, func(string, string) bool { return true }), []string{own})
		if !goesOn || len(next.Rules) != 1 || !slices.Contains(next.Lanes, time.Hour) {
			t.Errorf("%s: it goes on %v, with the rules %v and the lanes %v", name, goesOn, next.Rules, next.Lanes)
		}
	}
}

// The lanes of the spec alone made a retry of an hour, of a queue that leaves, wait in one of a second 3,600 times.
func TestWithLeaving_KeepsTheLanesOfTheQueuesThatLeave(t *testing.T) {
	t.Parallel()
	many := make(retry.Lanes, 126)
	for i := range many {
		many[i] = time.Minute + time.Duration(i)*time.Second
	}
	second, hour := retry.Lanes{time.Second}, retry.Lanes{time.Second, time.Hour}
	for name, tt := range map[string]struct {
		now, last        retry.Lanes
		nowHigh, wasHigh bool
		leaving          []string
		want             retry.Lanes
	}{
		"its policy has longer ones":             {now: second, last: hour, leaving: []string{"old"}, want: hour},
		"and twins that are not needed any more": {now: second, last: hour, wasHigh: true, leaving: []string{"old"}, want: hour},
		"and each has its twin":                  {now: second, last: hour, nowHigh: true, wasHigh: true, leaving: []string{"old"}, want: hour},
		"and lacks the twins":                    {now: second, last: hour, nowHigh: true, leaving: []string{"old"}, want: second},
		"they would be too many":                 {now: many, last: retry.Lanes{time.Second, time.Hour, 2 * time.Hour}, leaving: []string{"old"}, want: many},
		"nothing is left of it":                  {now: second, last: hour, want: second},
	} {
		now := compile.Config{Lanes: tt.now, HighLanes: tt.nowHigh}
		last := compile.Config{Lanes: tt.last, HighLanes: tt.wasHigh, Queues: []compile.Queue{{Name: "old", Quarantine: "old.quarantine"}}}
		with := now.WithLeaving(last, tt.leaving)
		if !slices.Equal(with.Lanes, tt.want) || with.HighLanes != tt.nowHigh {
			t.Errorf("%s: the lanes are %v, with twins %v; want %v", name, with.Lanes, with.HighLanes, tt.want)
		}
		if again := now.WithLeaving(with, tt.leaving); !slices.Equal(again.Lanes, tt.want) {
			t.Errorf("%s: the next time the lanes are %v", name, again.Lanes)
		}
	}
}

// Pods for a former handler got the messages of a queue that had come together with the next one, and pods for the next one those of a queue that had gone to
// another group with its handler: all of them failed.
func TestNewToPods_IsWhatComesWithAnotherHandler(t *testing.T) {
	t.Parallel()
	queue := func(name, standin, hold string) compile.Queue {
		return compile.Queue{Name: name, Standin: standin, Hold: hold}
	}
	last := compile.Config{MadeFor: "v1", Queues: []compile.Queue{queue("stays", "", ""), queue("before", "", "")}}
	waits := last
	waits.MadeFor, waits.Queues = "v2", append(slices.Clone(last.Queues), queue("new", "", compile.HoldNewToPods), queue("cut.off", "", compile.HoldCutOff))
	unknown := last
	unknown.MadeFor = ""
	for name, tt := range map[string]struct {
		madeFor string
		last    *compile.Config
		want    []string
	}{
		"the handler stays":              {"v1", &last, nil},
		"another handler":                {"v2", &last, []string{"cut.off", "new"}},
		"its pods are still to come":     {"v2", &waits, []string{"new"}},
		"the next but one":               {"v3", &waits, []string{"new"}},
		"it is not known what pods have": {"v2", &unknown, nil},
	} {
		next := compile.Config{MadeFor: tt.madeFor, Queues: []compile.Queue{
			queue("stays", "stays.migrating", ""), queue("renamed", "before", ""), queue("new", "", ""), queue("cut.off", "", ""),
		}}
		holds := next.NewToPods(tt.last)
		if got := slices.Sorted(maps.Keys(holds)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: on hold are %v, want %v", name, got, tt.want)
		}
		held, _ := next.Holding(holds)
		for _, queue := range held.Queues {
			if waits := slices.Contains(tt.want, queue.Name); held.Has(queue.Name) == waits || (len(queue.Consumed()) == 0) != waits {
				t.Errorf("%s: of %s %v is consumed, and the group counts as having it: %v", name, queue.Name, queue.Consumed(), held.Has(queue.Name))
			}
		}
	}
}

func TestWithHandedOver_LeavesQueuesToTheNextGroupWhereTheHandlerChanges(t *testing.T) {
	t.Parallel()
	moves := compile.Queue{Name: "moves", Policy: "policy"}
	last := compile.Config{Worker: "first", MadeFor: "v1", Queues: []compile.Queue{moves}}
	groups := []compile.Config{{Worker: "first", MadeFor: "v2"}, {Worker: "second", MadeFor: "v1", Queues: []compile.Queue{moves}}}
	unserved := map[string]bool{"moves": true}
	next := groups[0].WithHandedOver(&last, groups, unserved)
	if again := next.WithHandedOver(&next, groups, unserved); len(next.Queues)+len(again.Queues) > 0 {
		t.Errorf("pods with another handler consume %v, and then %v", next.Queues, again.Queues)
	}
	former := last.WithoutQueues()
	if goesOn := former.WithHandedOver(&last, groups, unserved); len(goesOn.Queues) != 1 {
		t.Errorf("pods of a group that has left the spec consume %v", goesOn.Queues)
	}
}

// A group whose quarantine queue was empty ended, while a message of it waited in a lane: it came back into a queue that nobody read.
func TestFormer_StaysUntilItsQuarantineQueueIsGone(t *testing.T) {
	t.Parallel()
	last := compile.Config{Worker: "former", Queues: []compile.Queue{{Name: "old", Policy: "policy", Quarantine: "old.quarantine"}}}
	next, goesOn := last.Former(nil, nil, []string{"old.quarantine"})
	if names := next.Named(); !goesOn || len(next.Queues) != 1 || next.Queues[0].Quarantine != "old.quarantine" || len(names) > 0 {
		t.Errorf("it goes on %v, with %+v, and keeps the operator from deleting %v", goesOn, next.Queues, names)
	}
	if next, goesOn = next.Former(nil, nil, nil); goesOn {
		t.Errorf("it goes on with %+v when the queue is gone", next.Queues)
	}
}
