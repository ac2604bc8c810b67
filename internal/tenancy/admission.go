package tenancy

import (
	"errors"
	"sync"
)

// ErrCrowded says that a namespace has as many reconciles as it may have.
var ErrCrowded = errors.New("queued: hundreds of Transports of this namespace are waiting for their brokers; retrying later")

// Admission counts the reconciles of each namespace that go on or wait. It is safe for concurrent use.
type Admission struct {
	most, mostSteady int

	mu  sync.Mutex
	all map[string]int
}

// NewAdmission admits so many reconciles of a namespace, of which mostSteady may be those of Transports that are only compared with their broker again.
func NewAdmission(most, mostSteady int) *Admission {
	return &Admission{most: most, mostSteady: mostSteady, all: map[string]int{}}
}

// Enter fails with ErrCrowded where the namespace has as many already. Else leave is to be called once.
func (a *Admission) Enter(namespace string, steady bool) (leave func(), err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := a.all[namespace]; now >= a.most || steady && now >= a.mostSteady {
		return nil, ErrCrowded
	}
	a.all[namespace]++
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.all[namespace]--; a.all[namespace] == 0 {
			delete(a.all, namespace)
		}
	}, nil
}
