package apply

import (
	"slices"
	"strings"
	"time"

	"redrive.dev/redrive/internal/topology"
)

const (
	// mostInTurn is how many of the objects of one kind, of which only a mark says that they are this Transport's, a look takes a step further. Anyone who
	// may declare queues can give any number of them a mark, and the workers wait for the end of a look.
	mostInTurn = 8
	// betweenTurns is when the next ones follow.
	betweenTurns = 10 * time.Second
)

// Turns are the last objects of each kind that had their turn. They are kept in memory only, and what they hold is not changed.
type Turns map[topology.Kind]string

// inTurn gives those of some objects, by the keys that are their names, that a look takes further: of all the same number of looks.
func inTurn[T any](r *run, kind topology.Kind, objects []T, key func(T) string) []T {
	if len(objects) == 0 {
		return nil
	}
	sorted := slices.SortedStableFunc(slices.Values(objects), func(a, b T) int { return strings.Compare(key(a), key(b)) })
	last := r.input.State.Turns[kind]
	from := max(0, slices.IndexFunc(sorted, func(object T) bool { return key(object) > last }))
	turn := slices.Concat(sorted[from:], sorted[:from])
	if len(turn) > mostInTurn {
		turn = turn[:mostInTurn]
		r.report.RequeueAfter = soonest(r.report.RequeueAfter, betweenTurns)
	}
	r.report.Turns[kind] = key(turn[len(turn)-1])
	return turn
}

// planInTurn is the plan without the unproven steps that wait for a later look.
func (r *run) planInTurn() []topology.Step {
	unproven := map[topology.Kind][]topology.Step{}
	plan := slices.DeleteFunc(slices.Clone(r.Plan), func(step topology.Step) bool {
		if step.IsUnproven() {
			kind := step.Ref().Kind
			unproven[kind] = append(unproven[kind], step)
		}
		return step.IsUnproven()
	})
	for _, kind := range []topology.Kind{topology.KindPolicy, topology.KindBinding} {
		plan = append(plan, inTurn(r, kind, unproven[kind], func(step topology.Step) string { return step.Ref().String() })...)
	}
	return plan
}

// waiting are those of some queues on their way out that wait for a later look.
func (r *run) waiting(queues []string) map[string]bool {
	waiting := map[string]bool{}
	var unproven []string
	for _, queue := range queues {
		if r.Difference.Unproven[queue] {
			unproven, waiting[queue] = append(unproven, queue), true
		}
	}
	for _, queue := range inTurn(r, topology.KindQueue, unproven, strings.Clone) {
		waiting[queue] = false
	}
	return waiting
}
