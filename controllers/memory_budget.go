package controllers

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"

	"redrive.dev/redrive/internal/broker"
)

const (
	// leastBudget is how many bytes all answers together take that are read, or kept, at a time. Where GOMEMLIMIT allows for more it is half of that.
	leastBudget = 96 << 20
	// freeBudget is what each may take besides: most vhosts are small, and wait for nobody.
	freeBudget = 64 << 10
	// budgetStep is how much is taken of the budget at a time.
	budgetStep = 1 << 20
)

// errBudget is why an answer is not read to its end.
var errBudget = errors.New("the operator reads as much at a time as it has memory for: this comes later, or never where one vhost is that large " +
	"(raise GOMEMLIMIT and the memory limit of the operator then)")

// memoryBudget is what all answers of management APIs may take at a time, or all configurations of workers. One namespace has two thirds of it at most.
// It is safe for concurrent use.
type memoryBudget struct {
	all, each int

	mu      sync.Mutex
	used    int
	tenants map[string]int
	// freed is closed, and another put in its place, when something is given back.
	freed chan struct{}
}

func newMemoryBudget(all int) *memoryBudget {
	return &memoryBudget{all: all, each: all / 3 * 2, tenants: map[string]int{}, freed: make(chan struct{})}
}

// budgetOfProcess follows GOMEMLIMIT.
func budgetOfProcess() int {
	const unset = 1 << 50
	if limit := debug.SetMemoryLimit(-1); limit < unset {
		return max(leastBudget, int(limit/2))
	}
	return leastBudget
}

// memoryShare is what one snapshot, or the other answers of one look, take of the budget, until nobody has them any more.
type memoryShare struct {
	budget     *memoryBudget
	tenant     string
	used, held int
	users      int
}

// hold begins one, with one user.
func (b *memoryBudget) hold(tenant string) *memoryShare {
	return &memoryShare{budget: b, tenant: tenant, users: 1}
}

// Take implements broker.Meter. The first time it waits; whoever has something already and wants more does not, so that two never wait for each other.
func (h *memoryShare) Take(ctx context.Context, bytes int) error { return h.take(ctx, bytes, true) }

// takeNow fails instead of waiting. A nil has all.
func (h *memoryShare) takeNow(ctx context.Context, bytes int) error {
	if h == nil {
		return nil
	}
	return h.take(ctx, bytes, false)
}

func (h *memoryShare) take(ctx context.Context, bytes int, mayWait bool) error {
	h.used += bytes
	for h.used-freeBudget > h.held {
		if err := h.budget.take(ctx, h.tenant, mayWait && h.held == 0); err != nil {
			return err
		}
		h.held += budgetStep
	}
	return nil
}

func (b *memoryBudget) take(ctx context.Context, tenant string, wait bool) error {
	for {
		b.mu.Lock()
		if b.used+budgetStep <= b.all && b.tenants[tenant]+budgetStep <= b.each {
			b.used += budgetStep
			b.tenants[tenant] += budgetStep
			b.mu.Unlock()
			return nil
		}
		freed := b.freed
		b.mu.Unlock()
		if !wait {
			return errBudget
		}
		broker.Await(ctx, func() {
			select {
			case <-freed:
			case <-ctx.Done():
			}
		})
		if ctx.Err() != nil {
			return errBudget
		}
	}
}

// share adds a user. It is nil for nil.
func (h *memoryShare) share() *memoryShare {
	if h != nil {
		h.budget.mu.Lock()
		defer h.budget.mu.Unlock()
		h.users++
	}
	return h
}

// release takes a user away, and with the last one gives all back.
func (h *memoryShare) release() {
	if h == nil {
		return
	}
	b := h.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.users--; h.users > 0 || h.held == 0 {
		return
	}
	b.used -= h.held
	if b.tenants[h.tenant] -= h.held; b.tenants[h.tenant] == 0 {
		delete(b.tenants, h.tenant)
	}
	h.held = 0
	close(b.freed)
	b.freed = make(chan struct{})
}
