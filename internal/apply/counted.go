package apply

import (
	"slices"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// Counted tells how old the broker's counts of queues are. It is kept only while a queue is on its way out; what it holds is not changed.
type Counted map[string]lastCount

// lastCount is the last count of a queue's leader that a look has found.
type lastCount struct {
	leader string
	tick   int64
	// seen is when a look found it last, and after when one found the count before it last: it was made after that. Zero where no look did.
	seen, after time.Time
}

// look is what is known with another look at the queue. A classic queue does not tell one count from the next: it is taken as counted.
func (c lastCount) look(queue topology.QueueState, at time.Time) lastCount {
	next := lastCount{leader: queue.Leader, tick: queue.Tick, seen: at}
	switch {
	case queue.Messages == nil:
		return lastCount{}
	case queue.Tick == 0:
		next.after = at
	case c.leader != queue.Leader || c.tick == 0:
	case c.tick == queue.Tick:
		next.after = c.after
	default:
		next.after = c.seen
	}
	return next
}

// count notes how old the counts are by which queues on their way out are judged: their own, and those of all where messages may be that come back into
// them. They are at most as many as are counted of a Transport.
func (r *run) count(retiring map[string]v1alpha1.Retirement) {
	r.report.Counted = nil
	if len(retiring) == 0 {
		return
	}
	at, before := r.input.Now.Add(-r.age), r.input.State.Counted
	counted := Counted{}
	note := func(name string) {
		if queue, exists := r.observed.Queues[name]; exists && len(counted) < mostCounted {
			counted[name] = before[name].look(queue, at)
		}
	}
	for _, queue := range r.input.Desired.Queues {
		note(queue.Name)
	}
	for _, m := range r.Difference.Migrations {
		note(m.Standin)
	}
	for _, name := range r.retiringOrder(retiring) {
		note(name)
		r.quiet[name] = at.Add(-r.input.State.Stamps.SinceUnbound(retiring[name], at))
	}
	r.report.Counted = counted
}

// isCounted is true where the broker has counted a queue on its way out, some others and all lanes of this Transport since what waited in a lane when the
// queue was found quiet came back.
func (r *run) isCounted(queue topology.QueueState, others []topology.QueueState) bool {
	since := r.quiet[queue.Name].Add(r.returning())
	isOld := func(name string) bool {
		after := r.report.Counted[name].after
		return after.IsZero() || after.Before(since)
	}
	for name := range r.report.Counted {
		if r.isLane(r.observed.Queues[name]) && isOld(name) {
			return false
		}
	}
	return !isOld(queue.Name) && !slices.ContainsFunc(others, func(other topology.QueueState) bool { return isOld(other.Name) })
}
