package topology

import (
	"fmt"
	"maps"
	"slices"
)

// Shared is a work queue with the Transport's mark that its spec does not have, under no name, and that others have bound.
type Shared struct {
	Queue string
	// By names the bindings of others.
	By string
}

// SharedQueues finds the queues of which a Transport without a past cannot tell whether they were adopted, and so are theirs: to take
// all bindings away would lose what others publish.
func SharedQueues(desired Objects, observed Observed) []Shared {
	named := map[string]bool{}
	for _, queue := range desired.Queues {
		named[queue.Name] = true
		for _, former := range queue.PreviousNames {
			named[former] = true
		}
	}
	others := observed.boundByOthers(desired.Owner)
	var shared []Shared
	for _, name := range slices.Sorted(maps.Keys(observed.Queues)) {
		queue := observed.Queues[name].Queue
		// Lanes, failure and quarantine queues and stand-ins are for this Transport's messages only.
		if named[name] || queue.Arguments.Owner() != desired.Owner || RoleOf(queue) != RoleWork || StandinFor(queue) != "" {
			continue
		}
		if ways, bound := others[name]; bound {
			shared = append(shared, Shared{Queue: name, By: ways.String()})
		}
	}
	return shared
}

// boundByOthers are the ways by which others lead messages into queues. Our own bindings carry the mark.
func (o Observed) boundByOthers(owner string) map[string]routes {
	ways := map[string]routes{}
	for _, binding := range o.Bindings {
		if !binding.ToExchange && binding.Arguments.Owner() != owner {
			ways[binding.Destination] = ways[binding.Destination].with(fmt.Sprintf("exchange %q, key %q", binding.Source, binding.RoutingKey))
		}
	}
	return ways
}

// Ref names the queue.
func (s Shared) Ref() Ref { return Ref{Kind: KindQueue, Name: s.Queue} }

// Kept says that it stays, why, and what to do.
func (s Shared) Kept() Finding {
	return Finding{Object: s.Ref(), Message: fmt.Sprintf("it carries this Transport's mark, is not in spec.queues, and others have bound it (%s): it "+
		"is kept, with its messages and their bindings, and nobody consumes it here, because a Transport that was created again cannot tell whether it was "+
		"adopted before. If it is theirs, there is nothing to do. To have it removed, put it into spec.queues without adopt, and take it out again "+
		"once the Transport is ready", s.By)}
}

// Unbound says what its removal means.
func (s Shared) Unbound() Finding {
	return Finding{Object: s.Ref(), Message: fmt.Sprintf("others have bound it (%s), and their bindings go with it, unless status.adopted of the "+
		"Transport has it, or the Transport is created again: then it is kept. If it is theirs, set adopt: true and apply that before it leaves the spec",
		s.By)}
}
