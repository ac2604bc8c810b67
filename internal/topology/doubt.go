package topology

import (
	"fmt"
	"slices"
	"time"
)

// isDoubtful is true for an object that a request whose answer nobody knows may still delete. RabbitMQ deletes by name, so that what
// is made again would go, with what came into it meanwhile.
func (d *differ) isDoubtful(ref Ref) bool {
	_, doubtful := d.doubtful[ref.Key()]
	return doubtful
}

// mayGo is true for a binding that such a request may delete, by itself or with what it leads from or to.
func (d *differ) mayGo(binding Binding) bool {
	return d.isDoubtful(binding.ref()) || d.endMayGo(binding)
}

// endMayGo is true for a binding that leads from or to what such a request may delete.
func (d *differ) endMayGo(binding Binding) bool {
	to := Ref{Kind: KindQueue, Name: binding.Destination}
	if binding.ToExchange {
		to.Kind = KindExchange
	}
	return d.isDoubtful(to) || d.isDoubtful(Ref{Kind: KindExchange, Name: binding.Source})
}

// remakes is true for a binding that is made though a request may delete it again: the operator looks every few seconds, and nothing is taken away for
// its sake. Where another binding of ours stays until then by which another queue gets the same messages, two ways would be two copies.
func (d *differ) remakes(want Binding) bool {
	if d.unwanted == nil {
		d.unwanted = map[string][]Binding{}
		wanted := identities(d.desired.Bindings)
		for i, binding := range d.bound.all {
			if binding.Arguments.Owner() == d.desired.Owner && !wanted[d.bound.ids[i]] {
				d.unwanted[binding.Source] = append(d.unwanted[binding.Source], binding)
			}
		}
	}
	return !d.endMayGo(want) && !slices.ContainsFunc(d.unwanted[want.Source], func(other Binding) bool { return d.copies(other, want) })
}

// copies is true where a message may go by both of two bindings of one exchange, to different places.
func (d *differ) copies(a, b Binding) bool {
	if a.Destination == b.Destination && a.ToExchange == b.ToExchange {
		return false
	}
	return d.observed.Exchanges[a.Source].Type != TypeDirect || a.RoutingKey == b.RoutingKey
}

// await tells of an object that is wanted, and waits until no request can delete it any more.
func (d *differ) await(ref Ref) {
	d.awaitSo(ref, "nothing is made of that name")
}

// awaitSo is await with what happens until then.
func (d *differ) awaitSo(ref Ref, meanwhile string) {
	until, doubtful := d.doubtful[ref.Key()]
	if !doubtful {
		return
	}
	if d.out.Awaited = true; slices.ContainsFunc(d.out.Problems, func(f Finding) bool { return f.Object == ref }) {
		return
	}
	d.out.Problems = append(d.out.Problems, Finding{Object: ref, Message: fmt.Sprintf(
		"a request to delete it had no answer, and the broker may still carry it out before %s; until then %s", until.UTC().Format(time.RFC3339), meanwhile)})
}
