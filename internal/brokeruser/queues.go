package brokeruser

import (
	"slices"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// Consumers are the workers of a Transport, by their configurations.
type Consumers struct {
	// Published have words of ConfigMaps, which others may write; Wanted are those of the spec alone.
	Published, Wanted []compile.Config
	// Leaving are queues that workers empty.
	Leaving []string
	// Unmade are bindings that are wanted, not there, and were not tried either.
	Unmade []topology.Binding
}

// Consumed are the queues that workers consume, or may consume as long as not all of them know better.
func (l *Look) Consumed(c *Consumers) []string {
	names := slices.Concat(l.own(queuesIn(c.Published)), queuesIn(c.Wanted), c.Leaving)
	names = slices.DeleteFunc(names, l.unproved(c.Unmade))
	slices.Sort(names)
	return slices.Compact(names)
}

// own are those of some names that are the Transport's own for sure. What a ConfigMap names is not: whoever may write ConfigMaps could have
// the administrator's login give rights on queues of others.
func (l *Look) own(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		return !slices.Contains(l.Transport.Status.Adopted, "queue/"+name) && !l.made(name)
	})
}

// made is true of a queue that the Transport made.
func (l *Look) made(queue string) bool {
	return slices.Contains(l.Transport.Status.Created, "queue/"+queue) ||
		l.Observed != nil && l.Observed.Queues[queue].Arguments.Owner() == l.Owner
}

// unproved tells of a queue that the Transport did not make, and that the team's login has not shown to be the team's: the binding from the return
// exchange, for which RabbitMQ asks for a right on the queue, is neither there nor was it refused, but not tried. The administrator's login must
// not give a right on it. That a status says that it was made is no proof: a server of the team's may have had it written there.
func (l *Look) unproved(unmade []topology.Binding) func(queue string) bool {
	names, untried := compile.NamesOf(l.Transport), map[string]bool{}
	for _, binding := range unmade {
		work := binding.Destination
		_, there := l.Observed.Queues[work]
		if binding.Source == names.Return() && (!there || !l.made(work)) {
			untried[work], untried[names.Quarantine(work)] = true, true
		}
	}
	return func(queue string) bool { return untried[queue] }
}

// queuesIn are the queues that some configurations name.
func queuesIn(configs []compile.Config) (names []string) {
	for i := range configs {
		for _, queue := range configs[i].Queues {
			for _, name := range []string{queue.Name, queue.Quarantine, queue.Standin} {
				if name != "" {
					names = append(names, name)
				}
			}
		}
	}
	return names
}
