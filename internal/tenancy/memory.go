package tenancy

import (
	"cmp"
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"sync"

	"redrive.dev/redrive/internal/broker"
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
// one alone half of all, and the next one half of the rest. It is safe for concurrent use.
type Memory struct {
	all int

	mu         sync.Mutex
	used       int
	namespaces map[string]int
	// waiting are those for whom there was no room, in the order in which they came.
	waiting []*memoryWaiter
}

// memoryWaiter waits for one step.
type memoryWaiter struct {
	namespace string
	// granted is closed when it has it.
	granted chan struct{}
}

// NewMemory bounds to so many bytes.
func NewMemory(all int) *Memory {
	return &Memory{all: all, namespaces: map[string]int{}}
}

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
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.used, m.namespaces[namespace]
}

// Reservation is what one snapshot takes, or the other answers of one reconcile, until its last user releases it. A nil one takes what it wants.
type Reservation struct {
	memory     *Memory
	namespace  string
	used, held int
	users      int
}

// Reserve begins an empty reservation, with one user.
func (m *Memory) Reserve(namespace string) *Reservation {
	return &Reservation{memory: m, namespace: namespace, users: 1}
}

// Take implements broker.Meter. The first time it waits; a reservation that has something already and wants more fails instead, with ErrMemory, so that two
// never wait for each other.
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
	for h.used-freeMemory > h.held {
		if err := h.memory.take(ctx, h.namespace, mayWait && h.held == 0); err != nil {
			return err
		}
		h.held += MemoryStep
	}
	return nil
}

func (m *Memory) take(ctx context.Context, namespace string, wait bool) error {
	m.mu.Lock()
	if m.fits(namespace) {
		m.add(namespace)
		m.mu.Unlock()
		return nil
	}
	if !wait {
		m.mu.Unlock()
		return ErrMemory
	}
	waiter := &memoryWaiter{namespace, make(chan struct{})}
	m.waiting = append(m.waiting, waiter)
	m.mu.Unlock()
	broker.Await(ctx, func() {
		select {
		case <-waiter.granted:
		case <-ctx.Done():
		}
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	if at := slices.Index(m.waiting, waiter); at >= 0 {
		m.waiting = slices.Delete(m.waiting, at, at+1)
		return ErrMemory
	}
	return nil
}

// fits is true where a namespace may have a step more.
func (m *Memory) fits(namespace string) bool {
	return m.namespaces[namespace]+MemoryStep <= m.all-m.used
}

func (m *Memory) add(namespace string) {
	m.used += MemoryStep
	m.namespaces[namespace] += MemoryStep
}

// grant gives room to those who wait, first to the namespace that has the least.
func (m *Memory) grant() {
	for len(m.waiting) > 0 {
		next := slices.MinFunc(m.waiting, func(a, b *memoryWaiter) int { return cmp.Compare(m.namespaces[a.namespace], m.namespaces[b.namespace]) })
		if !m.fits(next.namespace) {
			return
		}
		m.add(next.namespace)
		m.waiting = slices.DeleteFunc(m.waiting, func(w *memoryWaiter) bool { return w == next })
		close(next.granted)
	}
}

// Share adds a user. It is nil for nil.
func (h *Reservation) Share() *Reservation {
	if h != nil {
		h.memory.mu.Lock()
		defer h.memory.mu.Unlock()
		h.users++
	}
	return h
}

// Release takes a user away, and with the last one gives all back.
func (h *Reservation) Release() {
	if h == nil {
		return
	}
	m := h.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.users--; h.users > 0 || h.held == 0 {
		return
	}
	m.used -= h.held
	if m.namespaces[h.namespace] -= h.held; m.namespaces[h.namespace] == 0 {
		delete(m.namespaces, h.namespace)
	}
	h.held = 0
	m.grant()
}
