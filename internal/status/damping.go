package status

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/api/v1alpha1"
)

const (
	// MinCountInterval is the shortest time between two writes of status.failed that only tell how much.
	MinCountInterval = 5 * time.Minute
	// minDrainInterval is that of status.retiring, where people wait for the numbers to fall.
	minDrainInterval = time.Minute
)

// Counts decides which counts are worth a write of the status, and remembers when each Transport's were last written.
// It is safe for concurrent use.
type Counts struct {
	mu              sync.Mutex
	failures, drain map[types.NamespacedName]time.Time
	// quarantined are the messages in quarantine queues as the condition tells of them.
	quarantined map[types.NamespacedName]map[string]Damped
	// lacks is since when something is missing for a Transport.
	lacks map[Lack]map[types.NamespacedName]time.Time
}

// Lack is what may be missing for a while.
type Lack int

const (
	// LackOfCounts is while the broker counts no queue of a Transport.
	LackOfCounts Lack = iota
	// LackOfAnswers is while the management API gives none.
	LackOfAnswers
	// LackOfName is while nothing names the broker.
	LackOfName
)

// NewCounts returns Counts that remember nothing yet.
func NewCounts() *Counts {
	return &Counts{
		failures: map[types.NamespacedName]time.Time{}, drain: map[types.NamespacedName]time.Time{},
		quarantined: map[types.NamespacedName]map[string]Damped{},
		lacks:       map[Lack]map[types.NamespacedName]time.Time{LackOfCounts: {}, LackOfAnswers: {}, LackOfName: {}},
	}
}

// Damped is a number in a text of the status, and since when it stands there.
type Damped struct {
	N  int64
	At time.Time
}

// Damp gives the figures for numbers that are not zero, so that a text with them is seldom written: those before, but
// where, once a minute at most, a number doubles or halves.
func Damp[K comparable](before map[K]Damped, numbers map[K]int64, now time.Time) map[K]Damped {
	figures := make(map[K]Damped, len(numbers))
	for key, n := range numbers {
		old, known := before[key]
		if !known || now.Sub(old.At) >= minDrainInterval && worthWriting(&old.N, n, MinCountInterval) {
			old = Damped{N: n, At: now}
		}
		figures[key] = old
	}
	return figures
}

// Quarantine gives the figures for the messages in the quarantine queues that hold any.
func (c *Counts) Quarantine(name types.NamespacedName, held map[string]int64, now time.Time) map[string]Damped {
	c.mu.Lock()
	defer c.mu.Unlock()
	figures := Damp(c.quarantined[name], held, now)
	if c.quarantined[name] = figures; len(figures) == 0 {
		delete(c.quarantined, name)
	}
	return figures
}

// Lacks is for how long something has been missing for a Transport, given whether it is there now.
func (c *Counts) Lacks(name types.NamespacedName, what Lack, there bool, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	since := c.lacks[what]
	first, known := since[name]
	switch {
	case there:
		delete(since, name)
		return 0
	case !known:
		since[name] = now
		return 0
	default:
		return now.Sub(first)
	}
}

// Failed gives the number for status.failed: the new count where it is worth a write, else the old one.
func (c *Counts) Failed(name types.NamespacedName, old *int64, count int64, now time.Time) *int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !worthWriting(old, count, now.Sub(c.failures[name])) {
		return old
	}
	c.failures[name] = now
	return &count
}

// maxRetiring is how many queues status.retiring has room for.
const maxRetiring = 1024

// furthest are as many queues on their way out as the status has room for: those that have been on it for longest. The others, which
// are not remembered, begin anew at each look until there is room.
func furthest(retiring []v1alpha1.Retirement) []v1alpha1.Retirement {
	if len(retiring) <= maxRetiring {
		return retiring
	}
	since := func(r v1alpha1.Retirement) int64 {
		if r.Since == nil {
			return math.MaxInt64
		}
		return r.Since.Unix()
	}
	first := slices.SortedStableFunc(slices.Values(retiring), func(a, b v1alpha1.Retirement) int { return cmp.Compare(since(a), since(b)) })
	first = first[:maxRetiring]
	slices.SortFunc(first, func(a, b v1alpha1.Retirement) int { return cmp.Compare(a.Queue, b.Queue) })
	return first
}

// Retiring gives the list for status.retiring: the new one where a queue comes, goes or enters another stage, or where, once
// a minute at most, a count crosses zero, doubles or halves. Else it is the old one.
func (c *Counts) Retiring(name types.NamespacedName, old, next []v1alpha1.Retirement, now time.Time) []v1alpha1.Retirement {
	next = furthest(next)
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.EqualFunc(old, next, sameStage) && (now.Sub(c.drain[name]) < minDrainInterval || slices.EqualFunc(old, next, sameSize)) {
		return old
	}
	c.drain[name] = now
	return next
}

// sameSize is true where two counts of a queue tell people the same.
func sameSize(a, b v1alpha1.Retirement) bool {
	return b.Messages == nil || !worthWriting(a.Messages, *b.Messages, MinCountInterval)
}

// sameStage is true where two states of a queue differ in its count at most.
func sameStage(a, b v1alpha1.Retirement) bool {
	if (a.Messages == nil) != (b.Messages == nil) {
		return false
	}
	a.Messages, b.Messages = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

// Forget drops what is remembered of a Transport that is gone.
func (c *Counts) Forget(name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.failures, name)
	delete(c.quarantined, name)
	for _, since := range c.lacks {
		delete(since, name)
	}
	delete(c.drain, name)
}

// worthWriting: whether there is anything is told at once; how much only where it doubled or halved, and not often.
func worthWriting(old *int64, count int64, since time.Duration) bool {
	switch {
	case old == nil:
		return true
	case (*old == 0) != (count == 0):
		return true
	case count >= 2**old && count > *old, count <= *old/2 && count < *old:
		return since >= MinCountInterval
	default:
		return false
	}
}
