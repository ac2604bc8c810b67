package tenancy

import (
	"math"
	"testing"
)

// On a node with 32 processors one namespace compiled its policies on 16 of them at a time, and the operator was killed for its memory.
func TestProcessors_AreNoMoreThanThereIsMemoryFor(t *testing.T) {
	for name, tc := range map[string]struct {
		processors int
		memory     int64
		all, each  int
	}{
		"one processor":                             {1, 90 << 20, 1, 1},
		"two processors":                            {2, 90 << 20, 1, 1},
		"a large node, as it is delivered":          {64, 90 << 20, 2, 1},
		"a large node, and little memory":           {64, 1 << 20, 1, 1},
		"a large node, and memory for a part":       {64, 256 << 20, 9, 5},
		"a large node, and memory for all":          {64, 4 << 30, 63, 32},
		"a large node, where nothing says how much": {64, math.MaxInt64, 63, 32},
	} {
		if p := newProcessors(tc.processors, tc.memory); p.all != tc.all || p.each != tc.each {
			t.Errorf("%s: %d compute at a time, of one namespace %d; want %d and %d", name, p.all, p.each, tc.all, tc.each)
		}
	}
}
