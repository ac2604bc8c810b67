package topology

import (
	"cmp"
	"slices"

	"redrive.dev/redrive/internal/compile"
)

// classifyBindings tells the bindings that bridge from those that lead in.
func (e *queueMigration) classifyBindings() {
	d := e.d
	for _, binding := range d.desired.Bindings {
		if binding.Destination != e.Queue {
			continue
		}
		if d.roles[binding.Source] == RoleReturnAlternate {
			e.formers = append(e.formers, binding)
			continue
		}
		e.ways = append(e.ways, binding)
		if bridge, ok := d.bridgeOf(binding); ok {
			bridge.Destination = e.Standin
			e.bridge = append(e.bridge, bridge)
		}
	}
	e.keepFormerWays()
}

// keepFormerWays has ways by names that no queue has any more go with the others: what left the queue by such a name still comes back by them.
func (e *queueMigration) keepFormerWays() {
	d, known := e.d, map[string]bool{e.Standin: true}
	for _, way := range d.desired.Bindings {
		known[way.RoutingKey] = known[way.RoutingKey] || d.leadsBack(way)
	}
	for _, queue := range []string{e.Queue, e.Standin} {
		for _, way := range d.bound.to(queue, nil) {
			if d.leadsBack(way) && !known[way.RoutingKey] && way.Arguments.Owner() == d.desired.Owner && !isTrace(way) {
				known[way.RoutingKey] = true
				way = leadingTo(way, e.Queue)
				e.formers, d.desired.Bindings = append(e.formers, way), append(d.desired.Bindings, way)
			}
		}
	}
}

// bridgeOf is the binding that gets the messages of another one while nothing is bound for them.
func (d *differ) bridgeOf(binding Binding) (Binding, bool) {
	switch role := d.roles[binding.Source]; {
	case role == RoleReturn:
		binding.Source = d.desired.ExchangeOf(RoleReturnAlternate)
	case role == RoleProducers && d.isDirect(binding.Source):
		binding.Source = d.desired.ExchangeOf(RoleAlternate)
	default:
		return Binding{}, false
	}
	return binding, true
}

// isDirect is true also for an exchange of the spec that a list lacks: the bridge stays as it is until the exchange is there again.
func (d *differ) isDirect(exchange string) bool {
	if got, exists := d.observed.Exchanges[exchange]; exists {
		return got.Type == TypeDirect
	}
	return slices.ContainsFunc(d.desired.Exchanges, func(e Exchange) bool { return e.Name == exchange && e.Type == TypeDirect })
}

func (d *differ) isObserved(want Binding) bool { return d.bound.has(want) }

// leadingTo is a binding with another end.
func leadingTo(binding Binding, queue string) Binding {
	binding.Destination, binding.PropertiesKey = queue, ""
	return binding
}

// allLead is true where all ways lead into a queue, and none into the one before it.
func (e *queueMigration) allLead(from, to string) bool {
	if len(e.waysInto(from)) > 0 {
		return false
	}
	return !slices.ContainsFunc(e.ways, func(way Binding) bool {
		way = leadingTo(way, to)
		return e.d.foreignTrouble(way.Source) == "" && (!e.d.isObserved(way) || e.d.mayGo(way))
	})
}

// foreignTrouble says why nothing can be bound to an exchange of others; empty for our own.
func (d *differ) foreignTrouble(exchange string) string {
	if _, own := d.roles[exchange]; own {
		return ""
	}
	return d.foreignObstacle(exchange)
}

// waysInto are the observed bindings into a queue, without the bridge; into one that is not ours, those that we have made.
func (e *queueMigration) waysInto(queue string) []Binding {
	ways := slices.DeleteFunc(e.d.bound.to(queue, identities(e.bridge)), func(way Binding) bool {
		_, traces := e.tracedBy(way)
		return traces
	})
	if queue != e.Queue || !e.alien {
		return ways
	}
	return slices.DeleteFunc(ways, func(way Binding) bool { return way.Arguments.Owner() != e.d.desired.Owner })
}

// lead moves the desired ways from one queue to another. What stands is swapped in pairs; what does not is made where it is to
// be.
func (e *queueMigration) lead(from, to string) {
	d, standing := e.d, e.waysInto(from)
	var ways, absent []Binding
	for _, way := range e.ways {
		before, after := leadingTo(way, from), leadingTo(way, to)
		stands, arrived := d.isObserved(before), d.isObserved(after)
		if stands {
			ways = append(ways, before)
		}
		switch {
		case arrived, !stands && !e.shares(before, standing):
			ways = append(ways, after)
		case !stands:
			absent = append(absent, before)
		}
	}
	if e.awaits(slices.Concat(ways, standing), to) || e.awaitsBridge() || e.untraced(standing, to) || d.unshown(standing, to) {
		standing, absent = nil, nil
	}
	wanted := identities(ways)
	for _, way := range standing {
		if wanted[way.identity()] || way.Arguments.Owner() != d.desired.Owner || d.keepsFormer(way) {
			e.swap(way, leadingTo(way, to))
		}
	}
	for _, way := range absent {
		e.create(way, leadingTo(way, to))
	}
	// Before those of other queues: where one of them gets the same key, the stand-in must not wait for what is unroutable.
	d.desired.Bindings = slices.Concat(ways, e.formersTo(to), slices.DeleteFunc(slices.Clone(d.desired.Bindings), func(b Binding) bool {
		return b.Destination == e.Queue
	}))
	if to == e.Standin {
		e.keepReturnBindings()
	}
}

// keepsFormer is true for a way that, wanted or not, stays until another queue can be bound: what goes by it may be meant for that one.
func (d *differ) keepsFormer(way Binding) bool {
	return slices.ContainsFunc(d.desired.Bindings, func(b Binding) bool {
		mayTake := b.Source == way.Source && (!d.isDirect(b.Source) || b.RoutingKey == way.RoutingKey)
		return mayTake && !d.isObserved(b) && d.cannotBeBound(b.Destination)
	})
}

// cannotBeBound is true for a queue that is to be adopted and does not exist, and for one that is in conflict, or whose quarantine queue is.
func (d *differ) cannotBeBound(queue string) bool {
	quarantine := compile.Names{}.Quarantine(queue)
	return slices.ContainsFunc(d.desired.Queues, func(want Queue) bool {
		return (want.Name == queue || want.Name == quarantine && want.Role == RoleQuarantine) && d.isUnusable(want)
	})
}

// isUnusable is true for a queue that is not there, or not as it is wanted, and that no migration will change.
func (d *differ) isUnusable(want Queue) bool {
	got, exists := d.observed.Queues[want.Name]
	if !exists {
		return want.Adopt
	}
	fields := compareQueue(want, got.Queue)
	if want.Adopt {
		fields, _ = unfit(got.Queue)
	}
	migrated := want.Role == RoleWork && d.ours(Ref{Kind: KindQueue, Name: want.Name}, got.Arguments)
	return len(fields) > 0 && !migrated || d.isClaimed(got.Queue) && (want.Adopt || got.Arguments.Owner() != "")
}

// shares is true for a way over the bridge beside which another one of the same key stands: while that leads into the one queue, it must not
// lead into the other, or messages would come to both.
func (e *queueMigration) shares(way Binding, standing []Binding) bool {
	return e.hasAlternateRoute(way) && slices.ContainsFunc(standing, func(other Binding) bool {
		return other.Source == way.Source && other.RoutingKey == way.RoutingKey
	})
}

// awaits is true where a request may still delete one of the ways into a queue. All wait for it, since messages that come by two ways
// meanwhile would lose their order.
func (e *queueMigration) awaits(ways []Binding, to string) (awaits bool) {
	for _, way := range ways {
		if way = leadingTo(way, to); e.d.mayGo(way) {
			e.d.await(way.ref())
			awaits = true
		}
	}
	return awaits
}

// awaitsBridge is true where a request may still delete a binding of the bridge that is there: between the removal of a way and the creation of the next
// nothing else takes the messages, also where whoever swaps them is killed in between.
func (e *queueMigration) awaitsBridge() (awaits bool) {
	for _, bridge := range e.bridge {
		if e.d.isObserved(bridge) && e.d.mayGo(bridge) {
			e.d.await(bridge.ref())
			awaits = true
		}
	}
	return awaits
}

// formersTo are the ways by former names while another queue than before has all else. The queue of a former name needs none by that one as long as it
// has a way of its own, which it had before the first Restore.
func (e *queueMigration) formersTo(to string) []Binding {
	if to == e.Queue || e.Renames && e.remake {
		return e.formers
	}
	var ways []Binding
	for _, way := range e.formers {
		way = leadingTo(way, to)
		own := way
		own.Source = e.d.desired.ExchangeOf(RoleReturn)
		if way.RoutingKey != to || !e.d.isObserved(own) {
			ways = append(ways, way)
		}
	}
	return ways
}

// keepReturnBindings lets what left a queue under its former name come back to it as long as it has all other ways too.
func (e *queueMigration) keepReturnBindings() {
	d := e.d
	for _, way := range d.bound.to(e.Standin, nil) {
		if e.Renames && d.roles[way.Source] == RoleReturn && way.RoutingKey == e.Standin {
			d.desired.Bindings = append(d.desired.Bindings, way)
		}
	}
}

// swap leads one way from a queue to another: over the bridge, so that each message goes to exactly one of the two; or else,
// where another queue gets the same messages and nothing is unroutable, with a moment in which both get them.
func (e *queueMigration) swap(before, after Binding) {
	remove, create := Step{Action: ActionDelete, Binding: &before}, Step{Action: ActionCreate, Binding: &after}
	if e.d.isObserved(after) {
		e.removes = append(e.removes, remove)
		return
	}
	if e.hasAlternateRoute(before) {
		e.removes = append(e.removes, remove)
		e.create(before, after)
		return
	}
	e.Doubling = append(e.Doubling, before)
	remove.after = create.Ref()
	e.pairs = append(e.pairs, create, remove)
}

// create makes a way over the bridge at its new end, once those of its key at the former one are gone.
func (e *queueMigration) create(before, after Binding) {
	remove := Step{Action: ActionDelete, Binding: &before}
	e.creates = append(e.creates, Step{Action: ActionCreate, Binding: &after, after: remove.Ref()})
}

// doubling are the ways that will not be swapped over the bridge.
func (e *queueMigration) doubling() []Binding {
	var found []Binding
	for _, way := range e.waysInto(e.Queue) {
		if !e.canDivert(way) {
			found = append(found, way)
		}
	}
	return found
}

// hasAlternateRoute is true for a way whose messages go to the stand-in while neither queue is bound.
func (e *queueMigration) hasAlternateRoute(way Binding) bool {
	bridge, _ := e.d.bridgeOf(way)
	return e.canDivert(way) && e.d.bound.anyFrom(wayIn{bridge.Source, bridge.RoutingKey}, func(b Binding) bool {
		return !b.ToExchange && b.Destination == e.Standin
	})
}

// canDivert is true for a way whose messages are unroutable while it is not there: its exchange has ours for them, and leads them
// nowhere else.
func (e *queueMigration) canDivert(way Binding) bool {
	bridge, has := e.d.bridgeOf(way)
	if !has || e.d.alternateOf(way.Source) != bridge.Source {
		return false
	}
	from, other := wayIn{way.Source, way.RoutingKey}, func(queue string) bool { return queue != e.Queue && queue != e.Standin }
	shared := e.d.bound.anyFrom(from, func(b Binding) bool { return b.ToExchange || other(b.Destination) })
	return !shared && !slices.ContainsFunc(e.d.asked[from], other)
}

// alternateOf is where an exchange leads what it cannot route, as far as the broker shows it.
func (d *differ) alternateOf(name string) string {
	exchange := d.observed.Exchanges[name]
	if alternate, ok := exchange.Arguments[argAlternateExchange].(string); ok {
		return alternate
	}
	alternate, _ := d.observed.Policies[exchange.Policy].Definition[argAlternateExchange].(string)
	return alternate
}

// successorOf names the work queue of the spec that gets what came into a queue that goes: that of a stand-in, or the one that had its name before, also
// where that name is the one of a stand-in's queue. It is empty where there is none.
func (d *differ) successorOf(queue Queue) string {
	name := cmp.Or(StandinFor(queue), queue.Name)
	for _, want := range d.works {
		if want.Name == name && name != queue.Name || slices.Contains(want.PreviousNames, name) {
			return want.Name
		}
	}
	return ""
}

// restoreForeignBindings leads ways of others from a queue that goes to its heir, where that is adopted, or gets yet another name, in the middle of
// an exchange. Whoever has bound the queue does not do so again. Both are bound for a moment: that loses nothing.
func (d *differ) restoreForeignBindings() {
	for _, extra := range d.out.ExtraQueues {
		work := d.successorOf(extra.Queue)
		strays := d.strayWays(extra.Name, work)
		d.halfLed[extra.Name] = len(strays) > 0
		if work == "" || d.hasNoSuccessor(extra.Queue) {
			continue
		}
		d.out.Inherited = append(d.out.Inherited, extra.Name)
		for _, way := range d.waysOfOthers(extra.Name) {
			remove, home := Step{Action: ActionDelete, Binding: &way}, leadingTo(way, work)
			if d.awaitsWay(home) { // nobody but us would make it again
				d.halfLed[extra.Name] = true
				continue
			}
			if !d.isObserved(home) {
				create := Step{Action: ActionCreate, Binding: &home}
				remove.after = create.Ref()
				d.out.ForeignBindingRestores = append(d.out.ForeignBindingRestores, create)
			}
			d.out.ForeignBindingRestores = append(d.out.ForeignBindingRestores, remove)
		}
		d.restoreStrays(strays)
	}
	for _, want := range d.works {
		migrates := slices.ContainsFunc(d.out.Migrations, func(m Migration) bool { return m.Queue == want.Name })
		closed := d.taken || d.broken || d.conflicted[Ref{Kind: KindQueue, Name: want.Name}] || d.lacksQuarantine(want.Name)
		if !migrates && !closed && d.queues[want.Name] == RoleWork {
			d.restoreStrays(d.strayWays(want.Name, want.Name))
		}
	}
}

// restoreStrays makes ways of others again, once no request can remove them any more.
func (d *differ) restoreStrays(ways []Binding) {
	for _, way := range ways {
		if !d.awaitsWay(way) && !d.isObserved(way) {
			d.out.ForeignBindingRestores = append(d.out.ForeignBindingRestores, Step{Action: ActionCreate, Binding: &way})
		}
	}
}

// awaitsWay is true for a way that a request may still delete, and tells of it.
func (d *differ) awaitsWay(way Binding) bool {
	if !d.mayGo(way) {
		return false
	}
	d.await(way.ref())
	return true
}

// hasNoSuccessor is true for a queue whose heir is somebody else's, and for one that gets messages of others and whose heir is not there, or must not
// get any.
func (d *differ) hasNoSuccessor(queue Queue) bool {
	work := d.successorOf(queue)
	switch {
	case work == "":
		return false
	case d.conflicted[Ref{Kind: KindQueue, Name: work}]:
		return true
	case len(d.waysOfOthers(queue.Name))+len(d.strayWays(queue.Name, work)) == 0:
		return false
	}
	_, exists := d.observed.Queues[work]
	return !exists || d.queues[work] != RoleWork || d.taken || d.broken || d.lacksQuarantine(work) || d.unshown(d.waysOfOthers(queue.Name), work)
}

// waysOfOthers are the observed bindings into a queue that are not ours.
func (d *differ) waysOfOthers(queue string) []Binding {
	return slices.DeleteFunc(d.bound.to(queue, nil), func(b Binding) bool { return b.Arguments.Owner() == d.desired.Owner })
}
