package local

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"redrive.dev/redrive/internal/topology"
)

// Collisions compares the Transports of a set that are on one broker and vhost with each other. Problems are the objects that two
// of them would make, of which only one can be the owner; warnings the exchanges of producers that two of them name.
func Collisions(units []Unit, brokers map[types.NamespacedName]Broker) (problems, warnings map[types.NamespacedName][]topology.Finding) {
	problems, warnings = map[types.NamespacedName][]topology.Finding{}, map[types.NamespacedName][]topology.Finding{}
	for i := range units {
		for j := range units {
			one, other := &units[i], &units[j]
			if i == j || !brokers[one.Name()].sameAs(brokers[other.Name()]) {
				continue
			}
			inUse, shared := collide(one.Objects, other.Objects)
			for _, ref := range inUse {
				problems[one.Name()] = append(problems[one.Name()], topology.Finding{Object: ref, Message: fmt.Sprintf(
					"Transport %s makes it too, and only one of them can own it: give one of them another prefix, or other names", other.Name())})
			}
			for _, ref := range shared {
				warnings[one.Name()] = append(warnings[one.Name()], topology.Finding{Object: ref, Message: fmt.Sprintf(
					"Transport %s has the same exchange: each binds its own queues to it, and unroutedTo holds of one of them only", other.Name())})
			}
		}
	}
	return problems, warnings
}

// collide finds the objects that both would own, and the producers' exchanges of both.
func collide(one, other topology.Objects) (inUse, shared []topology.Ref) {
	for _, exchange := range one.Exchanges {
		i := slices.IndexFunc(other.Exchanges, func(e topology.Exchange) bool { return e.Name == exchange.Name })
		switch {
		case i < 0:
		case exchange.Role == topology.RoleProducers && other.Exchanges[i].Role == topology.RoleProducers:
			shared = append(shared, topology.Ref{Kind: topology.KindExchange, Name: exchange.Name})
		default:
			inUse = append(inUse, topology.Ref{Kind: topology.KindExchange, Name: exchange.Name})
		}
	}
	for _, queue := range one.Queues {
		i := slices.IndexFunc(other.Queues, func(q topology.Queue) bool { return q.Name == queue.Name })
		if i >= 0 && (!queue.Adopt || !other.Queues[i].Adopt) {
			inUse = append(inUse, topology.Ref{Kind: topology.KindQueue, Name: queue.Name})
		}
	}
	return inUse, shared
}
