package topology

import (
	"strings"

	"redrive.dev/redrive/internal/compile"
)

// isUnproven is true for a step on, or on a way into, a queue of which only a mark says that it is ours. The policies of failure queues that are gone
// are such as well: there are as many as somebody has made queues.
func (d Difference) isUnproven(step Step) bool {
	switch {
	case step.Binding != nil:
		return step.Action == ActionDelete && d.Unproven[step.Binding.Destination]
	case step.Policy != nil:
		queue, is := policyNamesOf(d.Missing.Prefix).failureOf(step.Policy.Name)
		return is && queue != commonFailurePolicy && (step.Action == ActionDelete || d.Unproven[queue])
	default:
		return false
	}
}

// findUnproven notes the queues on their way out, and those into which bindings lead that are to go, of which nothing but a mark, which everyone who
// may declare a queue can give it, says that they are ours.
func (d *differ) findUnproven(past Past) {
	named := d.namedByUs(past)
	note := func(queue string) {
		if !named[queue] && !d.isProven(queue) {
			d.out.Unproven[queue] = true
		}
	}
	for _, queue := range d.out.ExtraQueues {
		note(queue.Name)
	}
	for _, queue := range past.Retiring {
		note(queue)
	}
	for _, binding := range d.out.ExtraBindings {
		note(binding.Destination)
	}
}

// namedByUs are the queues that workers read, or that the spec, the list of what was made, or a migration names.
func (d *differ) namedByUs(past Past) map[string]bool {
	named := map[string]bool{}
	add := func(queues ...string) {
		for _, queue := range queues {
			named[queue], named[compile.Names{}.StandinQueue(queue)], named[compile.Names{}.Quarantine(queue)] = true, true, true
		}
	}
	for _, want := range d.works {
		add(want.Name)
		add(want.PreviousNames...)
	}
	for _, m := range past.Migrations {
		add(m.Queue, m.Standin)
	}
	for _, m := range d.out.Migrations {
		add(m.Queue, m.Standin)
	}
	for _, created := range past.Created {
		if queue, is := strings.CutPrefix(created, Ref{Kind: KindQueue}.String()); is {
			add(queue)
		}
	}
	for _, queue := range past.Consumed {
		named[queue] = true
	}
	return named
}

// isProven is true for a queue of the spec, or with a name of the prefix, and for one to which only a login of this Transport can have given a policy or
// a way.
func (d *differ) isProven(queue string) bool {
	_, limited := d.observed.Policies[policyNamesOf(d.desired.Prefix).queue(queue)]
	return d.queues[queue] != "" || limited || strings.HasPrefix(queue, d.desired.Prefix+".") || d.bound.anyInto(queue, d.isOutOfOurs)
}

func (d *differ) isOutOfOurs(binding Binding) bool { return d.private(binding.Source) }

// mayHoldFailed is true for a former failure queue that has, or may still get, failed messages: one into which a failure exchange leads, or that is not
// known to be empty. Ours have always been quorum queues.
func (d *differ) mayHoldFailed(queue QueueState) bool {
	failed := d.desired.ExchangeOf(RoleFailed)
	return queue.Type == TypeQuorum && (!queue.Empty() || d.bound.anyInto(queue.Name, func(b Binding) bool { return b.Source == failed || d.isExit(b) }))
}
