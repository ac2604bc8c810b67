package topology_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/topology"
)

func TestDoubtful_MakesNothingThatARequestMayStillDelete(t *testing.T) {
	until := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	for key, missing := range map[string][]string{
		"queue/test": {"queue/test", `binding/async -> test "test"`, `binding/async.return -> test "test"`},
		// A worker must not send quarantined messages to where they cannot go.
		"queue/test.quarantine":       {"queue/test.quarantine", `binding/async.return -> test.quarantine "test.quarantine"`, `binding/async -> test "test"`},
		"queue/somebody's":            nil,
		`binding/async -> new "test"`: nil,
	} {
		t.Run(key, func(t *testing.T) {
			desired := desired(t, async())
			plan := func(doubtful map[string]time.Time) (all []string, problems []topology.Finding) {
				diff := topology.DiffSince(desired, topology.Observed{}, topology.Past{Doubtful: doubtful})
				for _, step := range topology.Plan(diff) {
					all = append(all, step.Ref().String())
				}
				return all, diff.Problems
			}
			all, _ := plan(nil)
			now, problems := plan(map[string]time.Time{key: until})
			gone := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(now, s) })
			slices.Sort(gone)
			if slices.Sort(missing); !slices.Equal(gone, missing) {
				t.Errorf("not made are %q", gone)
			}
			if told := len(problems) == 1 && strings.Contains(problems[0].Message, "before 2026-07-01T12:00:00Z"); told != (missing != nil) {
				t.Errorf("it tells %v", problems)
			}
		})
	}
}

// It has no messages, and without it the queue may get none for minutes.
func TestDoubtful_MakesABindingThatReplacesNoOther(t *testing.T) {
	desired := desired(t, async())
	doubtful := topology.Past{Doubtful: map[string]time.Time{`binding/async -> test "test"`: time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)}}
	makes := func(observed topology.Observed) (makes, removes bool, diff topology.Difference) {
		diff = topology.DiffSince(desired, observed, doubtful)
		for _, step := range topology.Plan(diff) {
			makes = makes || step.Ref().String() == `binding/async -> test "test"`
			removes = removes || step.Ref().String() == `binding/async -> old "test"`
		}
		return makes, removes, diff
	}
	made, _, diff := makes(topology.Observed{})
	if !made || !diff.Awaited || len(diff.Problems) != 1 || !strings.Contains(diff.Problems[0].Message, "makes it again if it is gone") {
		t.Errorf("made: %t, looked at again: %t, told: %v", made, diff.Awaited, diff.Problems)
	}
	old := topology.Binding{Source: "async", Destination: "old", RoutingKey: "test", Arguments: topology.Arguments{topology.OwnerArgument: owner}}
	if made, removed, _ := makes(topology.Observed{Bindings: []topology.Binding{old}}); made || removed {
		t.Errorf("beside a binding that may stand in for it: made: %t, the other removed: %t", made, removed)
	}
	// A key that was changed and is taken back had no binding for minutes, for the sake of the other one of the same queue.
	exchanges := map[string]topology.ExchangeState{}
	for _, exchange := range desired.Exchanges {
		exchanges[exchange.Name] = topology.ExchangeState{Exchange: exchange}
	}
	for _, other := range []topology.Binding{
		{Source: "async", Destination: "test", RoutingKey: "other", Arguments: old.Arguments},
		{Source: "async", Destination: "old", RoutingKey: "other", Arguments: old.Arguments},
	} {
		if made, removed, _ := makes(topology.Observed{Exchanges: exchanges, Bindings: []topology.Binding{other}}); !made || removed {
			t.Errorf("beside %s, which takes none of its messages elsewhere: made: %t, the other removed: %t", other.Name(), made, removed)
		}
	}
	both := topology.Observed{Bindings: []topology.Binding{old, {
		Source: "async", Destination: "test", RoutingKey: "test", Arguments: topology.Arguments{topology.OwnerArgument: owner},
	}}}
	if _, removed, _ := makes(both); removed {
		t.Error("it is there, and another one is removed for its sake")
	}
}

func TestRef_HasDifferentKeysForLongNames(t *testing.T) {
	long := strings.Repeat("a", 600)
	keys := map[string]bool{}
	for _, name := range []string{long, long + "b", long + "c", "short"} {
		key := topology.Ref{Kind: topology.KindQueue, Name: name}.Key()
		if len(key) > 512 {
			t.Errorf("it has %d bytes", len(key))
		}
		keys[key] = true
	}
	if len(keys) != 4 {
		t.Errorf("they are %q", slices.Sorted(maps.Keys(keys)))
	}
}
