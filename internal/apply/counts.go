package apply

import (
	"cmp"
	"slices"

	"redrive.dev/redrive/internal/topology"
)

// What is counted is kept until the next look, and told by metrics, so it is bounded whatever a broker lists. A spec has 64 queues, as many for
// their quarantined messages and as many stand-ins, a failure queue and 128 lanes.
const (
	mostCounted      = 512
	mostCountedLanes = 256
	// mostLeavingQuarantine is how many quarantine queues are counted that are not wanted any more.
	mostLeavingQuarantine = 64
)

// tally collects the counts of queues, of each once and of some at most.
type tally struct {
	counts []QueueCount
	known  map[string]bool
	lanes  int
}

func (t *tally) add(queue topology.QueueState, role topology.Role) {
	isLane := role == topology.RoleLane
	if t.known[queue.Name] || len(t.counts) == mostCounted || isLane && t.lanes == mostCountedLanes {
		return
	}
	if isLane {
		t.lanes++
	}
	t.known[queue.Name] = true
	t.counts = append(t.counts, countOf(queue, role))
}

// counts has the desired queues and what belongs to them: stand-ins, and quarantine queues that still hold messages. Each queue is counted once, whatever
// else it is.
func counts(p *Prepared) []QueueCount {
	desired, all := slices.Clone(p.input.Desired.Queues), tally{known: map[string]bool{}}
	for _, m := range p.Difference.Migrations {
		desired = append(desired, topology.Queue{Name: m.Standin, Role: topology.RoleWork})
	}
	for _, queue := range desired {
		if got, exists := p.observed.Queues[queue.Name]; exists {
			all.add(got, queue.Role)
		}
	}
	for _, queue := range leavingQuarantine(p) {
		all.add(queue, topology.RoleQuarantine)
	}
	return all.counts
}

// leavingQuarantine are the quarantine queues that are not wanted any more, those first that workers still consume. A mark alone makes none of a queue:
// anybody's management API may list any number of them. Its work queue, or it itself, has to be known.
func leavingQuarantine(p *Prepared) []topology.QueueState {
	const consumed, known = 1, 2
	ranks := map[string]int{}
	for _, state := range p.input.State.Retiring {
		ranks[state.Queue] = known
	}
	for _, queue := range p.input.Desired.Queues {
		ranks[queue.Name] = known
	}
	for _, queue := range p.consumed {
		ranks[queue] = consumed
	}
	var leaving []topology.QueueState
	for _, queue := range p.Difference.ExtraQueues {
		if work := topology.QuarantineOf(queue.Queue); topology.RoleOf(queue.Queue) == topology.RoleQuarantine && ranks[queue.Name]+ranks[work] > 0 {
			leaving = append(leaving, queue)
		}
	}
	slices.SortStableFunc(leaving, func(a, b topology.QueueState) int {
		rank := func(queue topology.QueueState) int { return cmp.Or(ranks[queue.Name], known+1) }
		return cmp.Compare(rank(a), rank(b))
	})
	return leaving[:min(len(leaving), mostLeavingQuarantine)]
}

func countOf(queue topology.QueueState, role topology.Role) QueueCount {
	return QueueCount{
		Name: queue.Name, Role: role, Messages: queue.Messages,
		Ready: queue.Ready, Unacked: queue.Unacked, Consumers: queue.Consumers,
		Expired: queue.MessagesDLX, Published: queue.Published, Acked: queue.Acked,
	}
}
