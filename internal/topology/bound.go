package topology

import "slices"

// bound are observed bindings, of which there may be tens of thousands, found without a look at all of them. The identity of each is
// worked out once.
type bound struct {
	all []Binding
	ids []identity
	// known are their identities, and into and by their numbers: by the queue into which they lead, and by where they come from.
	known map[identity]bool
	into  map[string][]int32
	by    map[wayIn][]int32
}

// wayIn is where messages come from: an exchange, and a routing key.
type wayIn struct{ source, key string }

func boundBy(bindings []Binding) *bound {
	b := &bound{
		all: bindings, ids: make([]identity, len(bindings)), known: make(map[identity]bool, len(bindings)),
		into: map[string][]int32{}, by: map[wayIn][]int32{},
	}
	for i, binding := range bindings {
		id, from := binding.identity(), wayIn{binding.Source, binding.RoutingKey}
		b.ids[i], b.known[id] = id, true
		b.by[from] = append(b.by[from], int32(i))
		if !binding.ToExchange {
			b.into[binding.Destination] = append(b.into[binding.Destination], int32(i))
		}
	}
	return b
}

// has is true for a binding that is among them.
func (b *bound) has(binding Binding) bool { return b.known[binding.identity()] }

// to are those that lead into a queue, without some.
func (b *bound) to(queue string, without map[identity]bool) []Binding {
	var found []Binding
	for _, i := range b.into[queue] {
		if !without[b.ids[i]] {
			found = append(found, b.all[i])
		}
	}
	return found
}

// anyInto is true where one of those that lead into a queue is such.
func (b *bound) anyInto(queue string, such func(Binding) bool) bool {
	return slices.ContainsFunc(b.into[queue], func(i int32) bool { return such(b.all[i]) })
}

// anyFrom is true where one of those with a source and a key is such.
func (b *bound) anyFrom(from wayIn, such func(Binding) bool) bool {
	return slices.ContainsFunc(b.by[from], func(i int32) bool { return such(b.all[i]) })
}

// identities of some bindings.
func identities(bindings []Binding) map[identity]bool {
	ids := make(map[identity]bool, len(bindings))
	for _, binding := range bindings {
		ids[binding.identity()] = true
	}
	return ids
}
