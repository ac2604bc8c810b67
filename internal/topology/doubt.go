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
	to := Ref{Kind: KindQueue, Name: binding.Destination}
	if binding.ToExchange {
		to.Kind = KindExchange
	}
	return d.isDoubtful(binding.ref()) || d.isDoubtful(to) || d.isDoubtful(Ref{Kind: KindExchange, Name: binding.Source})
}

// await tells of an object that is wanted, and waits until no request can delete it any more.
func (d *differ) await(ref Ref) {
	until, doubtful := d.doubtful[ref.Key()]
	if !doubtful {
		return
	}
	if d.out.Awaited = true; slices.ContainsFunc(d.out.Problems, func(f Finding) bool { return f.Object == ref }) {
		return
	}
	d.out.Problems = append(d.out.Problems, Finding{Object: ref, Message: fmt.Sprintf(
		"a request to delete it had no answer and may still be carried out, so nothing is made of that name or led by it before %s",
		until.UTC().Format(time.RFC3339))})
}
