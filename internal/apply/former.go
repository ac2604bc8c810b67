package apply

import (
	"slices"
	"time"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// mostFormer bounds how many ways by former names are waited for: those who may bind to our exchanges can give any number of bindings our mark.
const mostFormer = 1024

// Former are the ways back from the lanes by names that no queue has any more, each with the time since which it is so to this process. They are kept in
// memory only, and what they hold is not changed.
type Former map[formerWay]time.Time

type formerWay struct{ name, queue, source string }

// formerDue are the deletions of ways back by former names by which no retry comes any more: workers had the time to read that they park none by
// such a name, and what they had parked until then had the time to come back.
func (r *run) formerDue() (due []topology.Step) {
	if len(r.Difference.FormerWays) == 0 {
		r.report.Former = nil
		return nil
	}
	wait, former := r.input.Waits.Grace+r.returning(), Former{}
	for _, binding := range r.Difference.FormerWays {
		way := formerWay{binding.RoutingKey, binding.Destination, binding.Source}
		since, known := r.input.State.Former[way]
		if !known || slices.Contains(r.consumed, way.name) || r.laneStalls() || r.isQuarantined(way.name) {
			since = r.input.Now
		}
		left := wait - r.input.Now.Sub(since)
		if left <= 0 || len(former) == mostFormer {
			due = append(due, topology.Step{Action: topology.ActionDelete, Binding: &binding})
			continue
		}
		former[way] = since
		r.report.RequeueAfter = soonest(r.report.RequeueAfter, left)
	}
	r.report.Former = former
	return due
}

// isQuarantined is true for a name by which messages in its quarantine queue are retried.
func (r *run) isQuarantined(work string) bool {
	queue := r.observed.Queues[compile.Names{}.Quarantine(work)]
	return topology.QuarantineOf(queue.Queue) == work && !queue.Empty()
}
