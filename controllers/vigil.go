package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// soonLook is when a Transport with a trouble is looked at again. RabbitMQ counts messages every 5 s.
	soonLook = 10 * time.Second
	// vigilFor is how long a Transport is looked at so often because workers are not there: a Deployment that stays broken
	// is no reason to ask the broker all the time.
	vigilFor = 3 * time.Minute
	// vigilAfter is how long it goes on once they are there again: pods that end and start again may leave quarantined messages behind
	// that the broker has not counted yet.
	vigilAfter = 2 * soonLook
)

// vigil remembers whose workers were not all there of late. It is safe for concurrent use.
type vigil struct {
	mu  sync.Mutex
	all map[types.NamespacedName]absence
}

// absence is from the first to the last look at which workers were missing.
type absence struct{ first, last time.Time }

func newVigil() *vigil { return &vigil{all: map[types.NamespacedName]absence{}} }

// next is how long it is until the next look, given whether workers are missing now; zero where there is no hurry.
func (v *vigil) next(name types.NamespacedName, missing bool, now time.Time) time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	seen, known := v.all[name]
	switch {
	case missing && !known:
		seen = absence{first: now, last: now}
	case missing:
		seen.last = now
	case !known:
		return 0
	case now.Sub(seen.last) >= vigilAfter:
		delete(v.all, name)
		return 0
	}
	v.all[name] = seen
	if now.Sub(seen.first) >= vigilFor {
		return 0
	}
	return jitter(soonLook)
}

func (v *vigil) forget(name types.NamespacedName) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.all, name)
}
