package tenancy

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"redrive.dev/redrive/internal/broker"
)

// spare is the part of a whole that is kept for namespaces that have nothing of it, or next to nothing: one in so many. Without it, namespaces that come one
// after the other, and take what they may, leave nothing after the eighth or ninth.
const spare = 8

// shares divides a number of equal units among namespaces. One gets no more than it leaves free: alone half of all, and the next one half of the rest. The
// last eighth is for namespaces that have none. It is safe for concurrent use.
type shares struct {
	all int

	mu         sync.Mutex
	used       int
	namespaces map[string]int
	// waiting are those for whom there was no unit, in the order in which they came.
	waiting []*shareWaiter
}

// shareWaiter waits for one unit.
type shareWaiter struct {
	namespace string
	// granted is closed when it has it.
	granted chan struct{}
}

func newShares(all int) *shares { return &shares{all: all, namespaces: map[string]int{}} }

// of is how many units are taken, by all namespaces and by one of them.
func (s *shares) of(namespace string) (all, its int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used, s.namespaces[namespace]
}

// take takes one unit. It is false where there is none, or none came before the context was over.
func (s *shares) take(ctx context.Context, namespace string, wait bool) bool {
	s.mu.Lock()
	if s.fits(namespace) {
		s.add(namespace)
		s.mu.Unlock()
		return true
	}
	if !wait {
		s.mu.Unlock()
		return false
	}
	waiter := &shareWaiter{namespace, make(chan struct{})}
	s.waiting = append(s.waiting, waiter)
	s.mu.Unlock()
	broker.Await(ctx, func() {
		select {
		case <-waiter.granted:
		case <-ctx.Done():
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.Index(s.waiting, waiter)
	if at >= 0 {
		s.waiting = slices.Delete(s.waiting, at, at+1)
	}
	return at < 0
}

// fits is true where a namespace may have a unit more.
func (s *shares) fits(namespace string) bool {
	its, free := s.namespaces[namespace], s.all-s.used
	return free > its && (its == 0 || free > s.all/spare)
}

func (s *shares) add(namespace string) {
	s.used++
	s.namespaces[namespace]++
}

// give takes units back, and gives them to those who wait, first to the namespace that has the least.
func (s *shares) give(namespace string, units int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used -= units
	if s.namespaces[namespace] -= units; s.namespaces[namespace] == 0 {
		delete(s.namespaces, namespace)
	}
	for len(s.waiting) > 0 {
		next := slices.MinFunc(s.waiting, func(a, b *shareWaiter) int { return cmp.Compare(s.namespaces[a.namespace], s.namespaces[b.namespace]) })
		if !s.fits(next.namespace) {
			return
		}
		s.add(next.namespace)
		s.waiting = slices.DeleteFunc(s.waiting, func(w *shareWaiter) bool { return w == next })
		close(next.granted)
	}
}
