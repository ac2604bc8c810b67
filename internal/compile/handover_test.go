package compile_test

import (
	"slices"
	"testing"

	"redrive.dev/redrive/internal/compile"
)

func TestHandedOver_IsWhatNoOtherGroupIsReadyToConsume(t *testing.T) {
	t.Parallel()
	queue := func(name string) compile.Queue { return compile.Queue{Name: name, Quarantine: name + ".quarantine"} }
	leaving := queue("left")
	leaving.Leaving = true
	migrated := queue("moves")
	migrated.Standin = "moves.migrating"
	last := compile.Config{Worker: "first", Queues: []compile.Queue{queue("stays"), migrated, leaving}}
	groups := []compile.Config{
		{Worker: "first", Queues: []compile.Queue{queue("stays"), leaving}},
		{Worker: "second", Queues: []compile.Queue{queue("moves")}},
		{Worker: "third", Queues: []compile.Queue{queue("shared")}},
		{Worker: "fourth", Queues: []compile.Queue{queue("shared")}},
	}
	moved := []string{"moves", "moves.migrating", "moves.quarantine"}
	for name, tt := range map[string]struct {
		ready []string
		next  *compile.Config
		want  []string
	}{
		"the next group is not ready":           {[]string{"first", "fourth"}, &groups[0], moved},
		"the next group is ready":               {[]string{"first", "second", "fourth"}, &groups[0], nil},
		"the group leaves, and nobody is ready": {nil, nil, slices.Sorted(slices.Values(append([]string{"stays", "stays.quarantine"}, moved...)))},
	} {
		unserved := compile.Unserved(groups, func(group, _ string) bool { return slices.Contains(tt.ready, group) })
		if unserved["left"] || unserved["shared"] && slices.Contains(tt.ready, "fourth") {
			t.Errorf("%s: unserved are %v", name, unserved)
		}
		if got := last.HandedOver(tt.next, unserved); !slices.Equal(got, tt.want) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}
