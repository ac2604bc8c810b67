package compile_test

import (
	"testing"

	"redrive.dev/redrive/internal/compile"
)

// A worker group that reads a stand-in gets another name for its queue together with another image: what it stands in for is not new to its pods.
func TestNewToPods_LacksAQueueWhoseStandinTheyRead(t *testing.T) {
	for name, c := range map[string]struct{ last, next compile.Queue }{
		"a renaming": {compile.Queue{Name: "test"}, compile.Queue{Name: "orders", Standin: "test"}},
		"a renaming where only the stand-in of a migration is left": {
			compile.Queue{Name: "test", Standin: "test.migrating"}, compile.Queue{Name: "orders", Standin: "test.migrating"},
		},
		"a second renaming": {compile.Queue{Name: "orders", Standin: "test"}, compile.Queue{Name: "post", Standin: "test"}},
	} {
		last := compile.Config{Worker: "default", MadeFor: "exec, image a:1", Queues: []compile.Queue{c.last}}
		next := compile.Config{Worker: "default", MadeFor: "exec, image a:2", Queues: []compile.Queue{c.next}}
		holds := next.NewToPods(&last)
		held, _ := next.Holding(holds)
		read := map[string]bool{}
		for _, queue := range held.Queues {
			for _, name := range queue.Consumed() {
				read[name] = true
			}
		}
		for _, queue := range c.last.Consumed() {
			if queue == c.next.Standin && !read[queue] {
				t.Errorf("%s: queue %s was read by all pods, and is read by none until the rollout has ended: %v", name, queue, holds)
			}
		}
	}
}
