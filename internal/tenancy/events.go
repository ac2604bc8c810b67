package tenancy

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
)

// Each event is kept in the memory of the operator for some minutes, and in the cluster for an hour. What changes a namespace's conditions is up to who may
// write there: one RetryPolicy that was edited three times a second led to 33 events a second, of the 50 Transports that refer to it.
const (
	// eventBurst is how many events all namespaces may have at once. One gets no more than it leaves free: alone 5,000, so that a thousand Transports that are
	// made together have some each.
	eventBurst = 10_000
	// eventsPerSecond is how many more a namespace may have each second, and allEventsPerSecond how many all.
	eventsPerSecond, allEventsPerSecond = 2, 5
)

// Events bounds the events of each namespace, and of all. It is safe for concurrent use.
type Events struct {
	mu sync.Mutex
	// recent are the events that each namespace has had, less those that the time until counted has taken off.
	recent  map[string]float64
	counted time.Time
}

// NewEvents begins without any.
func NewEvents() *Events { return &Events{recent: map[string]float64{}, counted: time.Now()} }

// Recorder passes events on to another one, and leaves out those of a namespace that has too many.
func (e *Events) Recorder(recorder events.EventRecorder) events.EventRecorder {
	return &eventRecorder{EventRecorder: recorder, events: e}
}

// have is false where a namespace may have no event now.
func (e *Events) have(namespace string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	each := min(eventsPerSecond, allEventsPerSecond/float64(max(1, len(e.recent))))
	less := each * now.Sub(e.counted).Seconds()
	e.counted = now
	all := 0.0
	for namespace, recent := range e.recent {
		if recent <= less {
			delete(e.recent, namespace)
			continue
		}
		e.recent[namespace] = recent - less
		all += recent - less
	}
	if e.recent[namespace]+1 > eventBurst-all {
		return false
	}
	e.recent[namespace]++
	return true
}

type eventRecorder struct {
	events.EventRecorder

	events *Events
}

// Eventf implements events.EventRecorder.
func (l *eventRecorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	if object, err := meta.Accessor(regarding); err == nil && !l.events.have(object.GetNamespace()) {
		return
	}
	l.EventRecorder.Eventf(regarding, related, kind, reason, action, note, args...)
}
