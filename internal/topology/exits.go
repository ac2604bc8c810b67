package topology

import (
	"maps"
	"slices"
)

// Queues of a Transport that was made anew under its name with another prefix still dead-letter to the exchanges of the former prefix, and so
// do those that it adopted. As long as one does, what those exchanges lead to stays: dead-lettered to an exchange that leads nowhere, a
// message is lost.

// findExits notes the exchanges of ours that are not wanted any more, and that queues still dead-letter to, by themselves or as the alternate
// of another.
func (d *differ) findExits() {
	for _, name := range slices.Sorted(maps.Keys(d.observed.Queues)) {
		queue := d.observed.Queues[name]
		exchange, _ := queue.Arguments[argDeadLetterExchange].(string)
		if exchange == "" {
			exchange, _ = d.observed.Policies[queue.Policy].Definition[keyDeadLetterExchange].(string)
		}
		for exchange != "" && d.exits[exchange] == "" {
			if _, wanted := d.roles[exchange]; !wanted && d.observed.Exchanges[exchange].Arguments.Owner() == d.desired.Owner {
				d.exits[exchange] = name
			} else {
				break
			}
			exchange = d.alternateOf(exchange)
		}
	}
}

// isExit is true for a binding by which dead-lettered messages leave a queue.
func (d *differ) isExit(binding Binding) bool { return d.exits[binding.Source] != "" }

// lastExits are the failure queues that are to go, and into which alone such an exchange leads, each with a queue that dead-letters to it.
func (d *differ) lastExits() map[string]string {
	kept, last := map[string]bool{}, map[string]string{}
	for _, binding := range d.observed.Bindings {
		if !binding.ToExchange && d.isExit(binding) && d.queues[binding.Destination] != "" {
			kept[binding.Source] = true
		}
	}
	for _, binding := range d.observed.Bindings {
		queue := d.observed.Queues[binding.Destination].Queue
		if !binding.ToExchange && d.isExit(binding) && !kept[binding.Source] && d.retiring(queue.Name) && RoleOf(queue) == RoleFailure {
			last[queue.Name] = d.exits[binding.Source]
		}
	}
	return last
}
