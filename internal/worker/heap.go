package worker

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"

	"github.com/KimMachineGun/automemlimit/memlimit"
)

const (
	// roomyHeap is the size that the heap may always have.
	roomyHeap = 32 << 20
	// shareOfRuntime is the part of the process's memory that the Go runtime keeps to.
	shareOfRuntime = 0.8
	// usualGrowth of the heap from one collection to the next, in percent.
	usualGrowth = 100
	liveHeap    = "/gc/heap/live:bytes"
)

// LetHeapGrow lets the heap of this process always grow to some megabytes before it is collected. A worker keeps little and
// allocates much: it would collect after every few hundred messages, and spend a fifth of its time on that. A larger heap grows as
// usual. Where the process may use little memory it is a quarter of that, and the runtime collects more often before it comes to what the
// control group allows: large messages would have it killed else. The variables GOGC and GOMEMLIMIT go first. stop ends the growth.
func LetHeapGrow() (stop func()) {
	// The rest is for what the runtime does not count, such as the kernel's buffers of sockets. Without a limit there is nothing to set.
	_, _ = memlimit.Set(memlimit.WithRatio(shareOfRuntime))
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	h := &heap{size: roomyHeap}
	if limit := MemoryLimit(); limit > 0 {
		h.size = min(h.size, limit/loanShare)
	}
	h.adjust()
	h.watch()
	return h.end
}

type heap struct {
	size int64

	mu    sync.Mutex
	ended bool
}

// marker dies with the next collection. It has a pointer, for the runtime may keep small objects without one for longer.
type marker struct{ _ *marker }

// watch adjusts the growth after each collection.
func (h *heap) watch() {
	runtime.AddCleanup(&marker{}, func(h *heap) {
		if h.adjust() {
			h.watch()
		}
	}, h)
}

// end is the last to set the growth.
func (h *heap) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	debug.SetGCPercent(usualGrowth)
}

// adjust sets the growth so that the next collection comes at the size, or when what is live has doubled. It is false at the end.
func (h *heap) adjust() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return false
	}
	sample := []metrics.Sample{{Name: liveHeap}}
	metrics.Read(sample)
	live := max(1<<20, int64(sample[0].Value.Uint64())) //nolint:gosec // no heap is as large
	debug.SetGCPercent(max(usualGrowth, int((h.size-live)*usualGrowth/live)))
	return true
}
