package controllers

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/topology"
)

const (
	// betweenCounts is the shortest time between two writes of status.failed that only tell how much.
	betweenCounts = 5 * time.Minute
	// betweenDrains is that of status.retiring, where people wait for the numbers to fall.
	betweenDrains = time.Minute
)

// reportCounts shows how many messages the queues hold: exactly as metrics, and roughly in status.failed.
func (r *TransportReconciler) reportCounts(run *transportRun) {
	name := client.ObjectKeyFromObject(run.transport)
	r.queueMetrics.Set(name, run.report.Queues, time.Now())
	var bound *int64
	if failure := run.transport.Spec.Failure; failure != nil {
		bound = failure.DropOldestAfter
	}
	r.dropMetrics.Set(name, bound, run.report.Queues, time.Now())
	for _, step := range run.report.Steps {
		if step.Action == topology.ActionCreate && step.Queue != nil && step.Queue.Role == topology.RoleFailure {
			run.transport.Status.Failed = new(int64(0)) // the broker counts it only later, but it has just been made
		}
	}
	for _, queue := range run.report.Queues {
		if queue.Role == topology.RoleFailure && queue.Messages != nil {
			run.transport.Status.Failed = r.counts.failed(name, run.transport.Status.Failed, *queue.Messages, time.Now())
		}
	}
}

// statusCounts decides which counts are worth a write of the status, and remembers when each Transport's were last written.
// It is safe for concurrent use.
type statusCounts struct {
	mu              sync.Mutex
	failures, drain map[types.NamespacedName]time.Time
	// quarantined are the messages in quarantine queues as the condition tells of them.
	quarantined map[types.NamespacedName]map[string]dampedCount
	// uncounted is since when the broker has counted no queue of a Transport.
	uncounted map[types.NamespacedName]time.Time
}

func newStatusCounts() *statusCounts {
	return &statusCounts{
		failures: map[types.NamespacedName]time.Time{}, drain: map[types.NamespacedName]time.Time{},
		quarantined: map[types.NamespacedName]map[string]dampedCount{}, uncounted: map[types.NamespacedName]time.Time{},
	}
}

// dampedCount is a number in a text of the status, and since when it stands there.
type dampedCount struct {
	n  int64
	at time.Time
}

// damp gives the figures for numbers that are not zero, so that a text with them is seldom written: those before, but
// where, once a minute at most, a number doubles or halves.
func damp[K comparable](before map[K]dampedCount, numbers map[K]int64, now time.Time) map[K]dampedCount {
	figures := make(map[K]dampedCount, len(numbers))
	for key, n := range numbers {
		old, known := before[key]
		if !known || now.Sub(old.at) >= betweenDrains && worthWriting(&old.n, n, betweenCounts) {
			old = dampedCount{n: n, at: now}
		}
		figures[key] = old
	}
	return figures
}

// quarantine gives the figures for the messages in the quarantine queues that hold any.
func (c *statusCounts) quarantine(name types.NamespacedName, held map[string]int64, now time.Time) map[string]dampedCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	figures := damp(c.quarantined[name], held, now)
	if c.quarantined[name] = figures; len(figures) == 0 {
		delete(c.quarantined, name)
	}
	return figures
}

// uncountedFor is how long the broker has counted no queue of a Transport, given whether it has counted one now.
func (c *statusCounts) uncountedFor(name types.NamespacedName, counted bool, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, known := c.uncounted[name]
	switch {
	case counted:
		delete(c.uncounted, name)
		return 0
	case !known:
		c.uncounted[name] = now
		return 0
	default:
		return now.Sub(since)
	}
}

// failed gives the number for status.failed: the new count where it is worth a write, else the old one.
func (c *statusCounts) failed(name types.NamespacedName, old *int64, count int64, now time.Time) *int64 {
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

// retiring gives the list for status.retiring: the new one where a queue comes, goes or enters another stage, or where, once
// a minute at most, a count crosses zero, doubles or halves. Else it is the old one.
func (c *statusCounts) retiring(name types.NamespacedName, old, next []v1alpha1.Retirement, now time.Time) []v1alpha1.Retirement {
	next = furthest(next)
	c.mu.Lock()
	defer c.mu.Unlock()
	if slices.EqualFunc(old, next, sameStage) && (now.Sub(c.drain[name]) < betweenDrains || slices.EqualFunc(old, next, sameSize)) {
		return old
	}
	c.drain[name] = now
	return next
}

// sameSize is true where two counts of a queue tell people the same.
func sameSize(a, b v1alpha1.Retirement) bool {
	return b.Messages == nil || !worthWriting(a.Messages, *b.Messages, betweenCounts)
}

// sameStage is true where two states of a queue differ in its count at most.
func sameStage(a, b v1alpha1.Retirement) bool {
	if (a.Messages == nil) != (b.Messages == nil) {
		return false
	}
	a.Messages, b.Messages = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

// holding are the queues with messages as status.retiring tells of them, so that a text with them changes no more often; those
// that were just seen where it knows of none.
func holding(retiring []v1alpha1.Retirement, seen []apply.Blocked) []apply.Blocked {
	var holding []apply.Blocked
	for _, state := range retiring {
		if state.Messages != nil && *state.Messages > 0 {
			holding = append(holding, apply.Blocked{Queue: state.Queue, Messages: *state.Messages})
		}
	}
	if len(holding) == 0 {
		return seen
	}
	return holding
}

func (c *statusCounts) forget(name types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.failures, name)
	delete(c.quarantined, name)
	delete(c.uncounted, name)
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
		return since >= betweenCounts
	default:
		return false
	}
}
