package worker

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

// percent is how much the heap may grow now. It can only be asked for by setting it.
func percent() int {
	now := debug.SetGCPercent(usualGrowth)
	debug.SetGCPercent(now)
	return now
}

func TestLetHeapGrow_LetsASmallHeapGrowMoreThanALargeOne(t *testing.T) {
	t.Setenv("GOGC", "")
	runtime.GC()
	stop := LetHeapGrow()
	if percent() <= usualGrowth {
		t.Errorf("a small heap may grow by %d %%", percent())
	}
	large := make([]byte, 2*roomyHeap)
	deadline := time.Now().Add(10 * time.Second)
	for percent() != usualGrowth && time.Now().Before(deadline) {
		runtime.GC() // what adjusts runs soon after a collection
	}
	if percent() != usualGrowth {
		t.Errorf("a large heap may grow by %d %%", percent())
	}
	runtime.KeepAlive(large)
	stop()
	runtime.GC()
	runtime.GC()
	if percent() != usualGrowth {
		t.Errorf("it may grow by %d %% when nobody asks for it any more", percent())
	}
}

func TestLetHeapGrow_LeavesTheUsersOwnGrowth(t *testing.T) {
	before := percent()
	t.Setenv("GOGC", "50")
	defer LetHeapGrow()()
	if percent() != before {
		t.Errorf("it may grow by %d %%, was %d", percent(), before)
	}
}
