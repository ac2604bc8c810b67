package topology

import (
	"crypto/sha256"
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
	known := map[identity]bool{}
	for _, binding := range d.desired.Bindings {
		known[binding.identity()] = true
		if role := d.roles[binding.Source]; role == "" || role == RoleProducers {
			known[d.route(binding)] = true
		}
	}
	outOf, into := map[string]routes{}, map[Ref]routes{}
	for i, binding := range d.observed.Bindings {
		if known[d.bound.ids[i]] || known[d.route(binding)] || binding.Arguments.Owner() == d.desired.Owner ||
			!binding.ToExchange && d.retiring(binding.Destination) || d.ofReplay(binding) {
			continue
		}
		switch target := destinationOf(binding); {
		case d.private(binding.Source):
			outOf[binding.Source] = outOf[binding.Source].with(fmt.Sprintf("%q (key %q)", binding.Destination, binding.RoutingKey))
		case target.Kind == KindQueue && d.queues[target.Name] != "" && !d.isAdopted(target.Name), d.private(target.Name) && target.Kind == KindExchange:
			into[target] = into[target].with(fmt.Sprintf("exchange %q (key %q)", binding.Source, binding.RoutingKey))
		}
	}
	for _, source := range slices.Sorted(maps.Keys(outOf)) {
		d.warnf(KindExchange, source, v1alpha1.ReasonForeignBinding, "this private exchange has a binding of others to %s, which "+
			"gets copies of messages: remove the binding", outOf[source].String())
	}
	for _, target := range slices.SortedFunc(maps.Keys(into), func(a, b Ref) int { return strings.Compare(a.String(), b.String()) }) {
		d.warnf(target.Kind, target.Name, v1alpha1.ReasonForeignBinding, d.intrusion(target), into[target].String())
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
	case d.queues[target.Name] == RoleQuarantine:
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
func (d *differ) route(binding Binding) identity {
	key := binding.RoutingKey
	switch d.observed.Exchanges[binding.Source].Type {
	case TypeFanout:
		key = ""
	case TypeHeaders:
		return binding.identity()
	}
	return sha256.Sum256([]byte(strings.Join([]string{"route", binding.Source, destinationOf(binding).String(), key}, "\x00")))
}

func destinationOf(binding Binding) Ref {
	if binding.ToExchange {
		return Ref{Kind: KindExchange, Name: binding.Destination}
	}
	return Ref{Kind: KindQueue, Name: binding.Destination}
}

// routes are the first of some bindings, in the order of their texts, and how many more there are.
type routes struct {
	first []string
	more  int
}

func (r routes) with(route string) routes {
	at, _ := slices.BinarySearch(r.first, route)
	r.first = slices.Insert(slices.Clip(r.first), at, route)
	if len(r.first) > maxRoutes {
		r.first, r.more = r.first[:maxRoutes], r.more+1
	}
	return r
}

// String implements fmt.Stringer.
func (r routes) String() string {
	text := strings.Join(r.first, ", ")
	if r.more > 0 {
		text = fmt.Sprintf("%s and %d more", text, r.more)
	}
	return text
}
