package tenancy

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
)

const (
	// leastMemory is how many bytes the snapshots of all brokers take together. Where GOMEMLIMIT allows for more it is half of that.
	leastMemory = 96 << 20
	// freeMemory is what each reservation may take besides: most vhosts are small, and wait for nobody.
	freeMemory = 64 << 10
	// MemoryStep is how much is taken at a time.
	MemoryStep = 1 << 20
)

// ErrMemory is why an answer is not read to its end.
var ErrMemory = errors.New("the operator reads as much at a time as it has memory for: this comes later, or never where one vhost is that large " +
	"(raise GOMEMLIMIT and the memory limit of the operator then)")

// Memory bounds what the answers of all management APIs take together, or the configurations of all workers. A namespace gets no more than it leaves free:
// one alone half of all, and the next one half of the rest. The last eighth is for namespaces that have nothing. It is safe for concurrent use.
type Memory struct{ steps *shares }

// NewMemory bounds to so many bytes.
func NewMemory(all int) *Memory { return &Memory{newShares(all / MemoryStep)} }

// MemoryOfProcess is how many bytes the snapshots of brokers may take; it follows GOMEMLIMIT.
func MemoryOfProcess() int {
	const unset = 1 << 50
	if limit := debug.SetMemoryLimit(-1); limit < unset {
		return max(leastMemory, int(limit/2))
	}
	return leastMemory
}

// Used is how many bytes are taken, by all namespaces and by one of them.
func (m *Memory) Used(namespace string) (all, its int) {
	all, its = m.steps.of(namespace)
	return all * MemoryStep, its * MemoryStep
}

// Reservation is what one snapshot takes, or the other answers of one reconcile, until its last user releases it. A nil one takes what it wants.
type Reservation struct {
	memory    *Memory
	namespace string
	// used are bytes, and held are steps.
	used, held int

	mu    sync.Mutex
	users int
}

// Reserve begins an empty reservation, with one user.
func (m *Memory) Reserve(namespace string) *Reservation {
	return &Reservation{memory: m, namespace: namespace, users: 1}
}

// Take implements broker.Meter. The first time it waits; a reservation that has something already and wants more fails instead, with ErrMemory, so that two
// never wait for each other. Fewer than no bytes are given back; the step that they were part of is kept until Release.
func (h *Reservation) Take(ctx context.Context, bytes int) error { return h.take(ctx, bytes, true) }

// TakeNow never waits.
func (h *Reservation) TakeNow(ctx context.Context, bytes int) error {
	if h == nil {
		return nil
	}
	return h.take(ctx, bytes, false)
}

func (h *Reservation) take(ctx context.Context, bytes int, mayWait bool) error {
	h.used += bytes
	for h.used-freeMemory > h.held*MemoryStep {
		if !h.memory.steps.take(ctx, h.namespace, mayWait && h.held == 0) {
			return ErrMemory
		}
		h.held++
	}
	return nil
}

// Share adds a user. It is nil for nil.
func (h *Reservation) Share() *Reservation {
	if h != nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.users++
	}
	return h
}

// Release takes a user away, and with the last one gives all back.
func (h *Reservation) Release() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.users--; h.users > 0 || h.held == 0 {
		return
	}
	h.memory.steps.give(h.namespace, h.held)
	h.held = 0
}
