package controllers

import (
	"context"
	"time"
)

// moment is how long a reconcile waits for an answer before it gives its slot to others of its namespace.
const moment = 5 * time.Millisecond

// cpuSlots are those of the reconciles that run, by namespace. What a reconcile costs is up to who wrote the Transport and answers for its broker: dozens
// of them side by side, each at a broker of its own, would keep the processors from all other namespaces. Its zero value is ready, and it is safe for
// concurrent use.
type cpuSlots struct{ namespaceLimit }

// cpuSlot is that of one reconcile. It implements broker.Waiter, and is for one goroutine.
type cpuSlot struct {
	slots chan struct{}
	// held is false once the time of the reconcile was over before it got its slot back.
	held bool
}

// acquire waits for a slot, which is to be given back by release. It fails with errNothingToDo.
func (c *cpuSlots) acquire(ctx context.Context, namespace string) (*cpuSlot, error) {
	slot := &cpuSlot{slots: c.of(namespace)}
	if slot.take(ctx); !slot.held {
		return nil, errNothingToDo
	}
	return slot, nil
}

func (s *cpuSlot) take(ctx context.Context) {
	select {
	case s.slots <- struct{}{}:
		s.held = true
	case <-ctx.Done():
	}
}

func (s *cpuSlot) release() {
	if s.held {
		s.held = false
		<-s.slots
	}
}

// Wait implements broker.Waiter. What takes longer than a moment leaves the slot to others meanwhile, so brokers that are slow, or do not answer, keep
// nobody from running.
func (s *cpuSlot) Wait(ctx context.Context, wait func()) {
	if !s.held {
		wait()
		return
	}
	left := time.AfterFunc(moment, func() { <-s.slots })
	wait()
	if !left.Stop() {
		s.held = false
		s.take(ctx)
	}
}
