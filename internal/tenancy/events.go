package tenancy

import (
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
)

// Each event is kept in the memory of the operator for some minutes, and in the cluster for an hour. What changes a namespace's conditions is up to who may
// write there: one RetryPolicy that was edited three times a second led to 33 events a second, of the 50 Transports that refer to it.
const (
	// eventBurst is how many events a namespace may have at once: a thousand Transports that are made together have some each.
	eventBurst = 5000
	// eventsPerSecond is how many more it may have each second.
	eventsPerSecond = 2
)

// EventRecorder leaves out events of a namespace that has too many. It is safe for concurrent use.
type EventRecorder struct {
	events.EventRecorder

	mu     sync.Mutex
	limits map[string]flowcontrol.PassiveRateLimiter
}

// NewEventRecorder passes events on to a recorder.
func NewEventRecorder(recorder events.EventRecorder) *EventRecorder {
	return &EventRecorder{EventRecorder: recorder, limits: map[string]flowcontrol.PassiveRateLimiter{}}
}

// Eventf implements events.EventRecorder.
func (l *EventRecorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	if object, err := meta.Accessor(regarding); err == nil && !l.of(object.GetNamespace()).TryAccept() {
		return
	}
	l.EventRecorder.Eventf(regarding, related, kind, reason, action, note, args...)
}

func (l *EventRecorder) of(namespace string) flowcontrol.PassiveRateLimiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limits[namespace] == nil {
		l.limits[namespace] = flowcontrol.NewTokenBucketPassiveRateLimiter(eventsPerSecond, eventBurst)
	}
	return l.limits[namespace]
}
