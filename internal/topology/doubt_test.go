package topology_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/topology"
)

func TestNothingIsMadeThatARequestMayStillDelete(t *testing.T) {
	until := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	for key, missing := range map[string][]string{
		"queue/test":                   {"queue/test", `binding/async -> test "test"`, `binding/async.return -> test "test"`},
		`binding/async -> test "test"`: {`binding/async -> test "test"`},
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

func TestKeysOfLongNamesDiffer(t *testing.T) {
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
