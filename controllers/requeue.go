package controllers

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/brokerpool"
)

const (
	// fastRequeueInterval is the requeue interval of a Transport with a problem. RabbitMQ counts messages every 5 s.
	fastRequeueInterval = 10 * time.Second
	// fastRequeueFor bounds how long a Transport with missing pods is requeued that often: a Deployment that stays broken is no
	// reason to ask the broker all the time.
	fastRequeueFor = 3 * time.Minute
	// fastRequeueAfter is how long fast requeues go on once all pods are there again: pods that restart may leave quarantined messages
	// behind that the broker has not counted yet.
	fastRequeueAfter = 2 * fastRequeueInterval
)

// fastRequeue requeues a Transport more often while pods of its workers are missing. It is safe for concurrent use.
type fastRequeue struct {
	mu  sync.Mutex
	all map[types.NamespacedName]outage
}

// outage is the time between the first and the last reconcile that found pods missing.
type outage struct{ first, last time.Time }

func newFastRequeue() *fastRequeue { return &fastRequeue{all: map[types.NamespacedName]outage{}} }

// next returns the time until the next reconcile, given whether pods are missing now; zero leaves it to the poll.
func (f *fastRequeue) next(name types.NamespacedName, missing bool, now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen, known := f.all[name]
	switch {
	case missing && !known:
		seen = outage{first: now, last: now}
	case missing:
		seen.last = now
	case !known:
		return 0
	case now.Sub(seen.last) >= fastRequeueAfter:
		delete(f.all, name)
		return 0
	}
	f.all[name] = seen
	if now.Sub(seen.first) >= fastRequeueFor {
		return 0
	}
	return brokerpool.Spread(fastRequeueInterval)
}

func (f *fastRequeue) forget(name types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.all, name)
}
