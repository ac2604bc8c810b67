package tenancy

import (
	"errors"
	"sync"
)

// ErrCrowded says that a namespace has as many reconciles as it may have.
var ErrCrowded = errors.New("queued: hundreds of Transports, of this namespace or of others, are waiting for their brokers; retrying later")

// Admission bounds the reconciles that go on or wait. A namespace gets no more than a third of what it leaves free: one alone a quarter of all, and the next
// one a quarter of the rest. Of the last eighth each gets a sixteenth at most, and while any are free, one that has none gets one. It is safe for
// concurrent use.
type Admission struct {
	all int

	mu         sync.Mutex
	used       int
	namespaces map[string]int
}

// NewAdmission admits so many reconciles of all namespaces.
func NewAdmission(all int) *Admission { return &Admission{all: all, namespaces: map[string]int{}} }

// Enter fails with ErrCrowded where the namespace has as many already. Of those that it may have, three quarters may be of Transports that are only compared
// with their broker again, which are steady. Else leave is to be called once.
func (a *Admission) Enter(namespace string, steady bool) (leave func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	its, free := a.namespaces[namespace], a.all-a.used
	most := (its + free) / 4
	if its+free <= a.all/spare {
		most /= 4
	}
	if steady {
		most = most * 3 / 4
	}
	if free == 0 || its >= max(1, most) {
		return nil, ErrCrowded
	}
	a.used++
	a.namespaces[namespace]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.used--
		if a.namespaces[namespace]--; a.namespaces[namespace] == 0 {
			delete(a.namespaces, namespace)
		}
	}, nil
}
