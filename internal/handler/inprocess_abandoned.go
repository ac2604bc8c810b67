package handler

import (
	"math"
	"sync"
	"time"
)

// Abandoned are the calls of programs in this process that go on although their time is over, and what they keep of messages. A reload that
// replaces a handler ends none of its calls, so all handlers of a process have one Abandoned.
type Abandoned struct {
	// memory is how many bytes they may keep.
	memory int64

	// mu also guards what its handlers know of it.
	mu    sync.Mutex
	calls int
	// kept is how many bytes they keep.
	kept int64
	// handlers are those that are open.
	handlers map[*InProcess]struct{}
}

// NewAbandoned returns an account of abandoned calls that may keep so many bytes of messages together; 0 is no limit.
func NewAbandoned(memory int64) *Abandoned {
	if memory == 0 {
		memory = math.MaxInt64
	}
	return &Abandoned{memory: memory, handlers: map[*InProcess]struct{}{}}
}

// count changes the number of abandoned calls and what they keep, and returns the number.
func (a *Abandoned) count(change int, bytes int64) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls, a.kept = a.calls+change, a.kept+bytes
	for h := range a.handlers {
		h.review()
	}
	return a.calls
}

func (a *Abandoned) join(h *InProcess) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handlers[h] = struct{}{}
	h.review()
}

// isFull is true while abandoned calls hold all that they may. The account's mutex is held.
func (h *InProcess) isFull() bool {
	return h.abandoned.calls >= h.places || h.abandoned.kept >= h.abandoned.memory
}

// review brings the answer of Ready up to date, and begins or ends the time after which the process is stuck. The account's mutex is held.
func (h *InProcess) review() {
	full := h.isFull()
	if full == h.full {
		return
	}
	h.full = full
	close(h.changed)
	h.changed = make(chan struct{})
	if h.patience != nil {
		h.patience.Stop()
	}
	if full {
		h.patience = time.AfterFunc(h.stuckAfter, h.giveUp)
	}
}

// giveUp tells that only a new process helps.
func (h *InProcess) giveUp() {
	h.abandoned.mu.Lock()
	defer h.abandoned.mu.Unlock()
	if _, open := h.abandoned.handlers[h]; !open || !h.isFull() {
		return // it was closed, or one came back, at the last moment
	}
	select {
	case <-h.stuck:
	default:
		close(h.stuck)
	}
}
