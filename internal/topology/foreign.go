package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"redrive.dev/redrive/api/v1alpha1"
)

// maxRoutes bounds how many bindings a finding names.
const maxRoutes = 3

// foreignBindings reports bindings that others made into our queues and private exchanges, or out of the latter. They are
// reported and never removed: somebody may count on them.
func (d *differ) foreignBindings() {
	known := map[string]bool{}
	for _, binding := range d.desired.Bindings {
		known[binding.identity()] = true
		if role := d.roles[binding.Source]; role == "" || role == RoleProducers {
			known[d.route(binding)] = true
		}
	}
	outOf, into := map[string][]string{}, map[Ref][]string{}
	for i, binding := range d.observed.Bindings {
		if known[d.bound.ids[i]] || known[d.route(binding)] || binding.Arguments.Owner() == d.desired.Owner ||
			!binding.ToExchange && d.retiring(binding.Destination) {
			continue
		}
		switch target := destinationOf(binding); {
		case d.private(binding.Source):
			outOf[binding.Source] = append(outOf[binding.Source], fmt.Sprintf("%q (key %q)", binding.Destination, binding.RoutingKey))
		case target.Kind == KindQueue && d.queues[target.Name] != "" && !d.isAdopted(target.Name), d.private(target.Name) && target.Kind == KindExchange:
			into[target] = append(into[target], fmt.Sprintf("exchange %q (key %q)", binding.Source, binding.RoutingKey))
		}
	}
	for _, source := range slices.Sorted(maps.Keys(outOf)) {
		d.warnf(KindExchange, source, v1alpha1.ReasonForeignBinding, "somebody bound %s to this private exchange, and gets copies of "+
			"messages: remove the binding", routesText(outOf[source]))
	}
	for _, target := range slices.SortedFunc(maps.Keys(into), func(a, b Ref) int { return strings.Compare(a.String(), b.String()) }) {
		d.warnf(target.Kind, target.Name, v1alpha1.ReasonForeignBinding, d.intrusion(target), routesText(into[target]))
	}
}

// intrusion says what it means that messages come into a queue or a private exchange by bindings of others.
func (d *differ) intrusion(target Ref) string {
	switch {
	case target.Kind == KindExchange:
		return "messages of %s come into this private exchange, among retries and failed messages: remove the binding"
	case d.queues[target.Name] == RoleLane:
		return "it also gets messages of %s: they wait here, and then go to the queue that their key names, or else to the " +
			"failure queue: remove the binding"
	case d.queues[target.Name] == RoleSuspects:
		return "it also gets messages of %s: they are handled one by one, as if they might bring down a worker: remove the binding"
	case d.queues[target.Name] == RoleFailure:
		return "it also gets messages of %s: they count as failed, without a reason: remove the binding"
	default:
		return "it also gets messages of %s, which spec.queues[].bindings and bindingKeys do not have: add what is wanted there, " +
			"and remove the rest"
	}
}

// private is true for our exchanges but the producers'.
func (d *differ) private(exchange string) bool {
	role, own := d.roles[exchange]
	return own && role != RoleProducers
}

// route is the same for bindings by which the same messages go the same way. An own binding of others beside ours changes
// nothing, as many clients make it when they start.
func (d *differ) route(binding Binding) string {
	key := binding.RoutingKey
	switch d.observed.Exchanges[binding.Source].Type {
	case TypeFanout:
		key = ""
	case TypeHeaders:
		return binding.identity()
	}
	return strings.Join([]string{"route", binding.Source, destinationOf(binding).String(), key}, "\x00")
}

func destinationOf(binding Binding) Ref {
	if binding.ToExchange {
		return Ref{Kind: KindExchange, Name: binding.Destination}
	}
	return Ref{Kind: KindQueue, Name: binding.Destination}
}

// routesText names some bindings and counts the rest, in an order that does not depend on the broker's.
func routesText(routes []string) string {
	slices.Sort(routes)
	if more := len(routes) - maxRoutes; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(routes[:maxRoutes], ", "), more)
	}
	return strings.Join(routes, ", ")
}
