package topology

import (
	"maps"
	"slices"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// argMoves, in a binding of the bridge, names the exchange of a binding of somebody else that is led from one queue to another. Such a binding of
// the bridge is its trace: between the removal at the one queue and the creation at the other nothing else tells of it, and whoever made it
// may not do so again.
const argMoves = "redrive-moves"

// traceOf is the trace of a way. One that can be made again by whoever made it needs none, and neither does one that is made at the one queue
// before it is removed at the other.
func (e *queueMigration) traceOf(way Binding) (Binding, bool) {
	trace, bridged := e.d.bridgeOf(way)
	if _, odd := way.Arguments[argMoves]; !bridged || odd || IsMarked(way) || !isListable(way.RoutingKey) {
		return Binding{}, false
	}
	trace = leadingTo(trace, e.Standin)
	trace.Arguments = Arguments{}
	maps.Copy(trace.Arguments, way.Arguments)
	trace.Arguments[OwnerArgument], trace.Arguments[argMoves] = e.d.desired.Owner, way.Source
	return trace, true
}

// tracedBy is the way into the queue of which a binding is the trace.
func (e *queueMigration) tracedBy(trace Binding) (Binding, bool) { return e.d.tracedBy(trace, e.Queue) }

// tracedBy is the way of which a binding is the trace, as it leads into a queue.
func (d *differ) tracedBy(trace Binding, queue string) (Binding, bool) {
	source, traces := trace.Arguments[argMoves].(string)
	if !traces || trace.Arguments.Owner() != d.desired.Owner {
		return Binding{}, false
	}
	way := leadingTo(trace, queue)
	way.Source, way.Arguments = source, maps.Clone(trace.Arguments)
	delete(way.Arguments, OwnerArgument)
	delete(way.Arguments, argMoves)
	if len(way.Arguments) == 0 {
		way.Arguments = nil
	}
	bridge, bridged := d.bridgeOf(way)
	return way, bridged && bridge.Source == trace.Source
}

// isTrace is true for a binding that remembers a way of somebody else.
func isTrace(binding Binding) bool {
	_, traces := binding.Arguments[argMoves]
	return traces
}

// findTraces finds the traces that are to stand, and the ways that stand at neither queue: a run may have ended between two steps of a swap, whatever
// is remembered of it. They are led where the others are. Where the two have changed their parts since, the traces stand at the queue.
func (e *queueMigration) findTraces(last v1alpha1.MigrationStep) {
	d := e.d
	traced := map[identity]bool{}
	for _, queue := range []string{e.Queue, e.Standin} {
		for _, way := range d.waysOfOthers(queue) {
			if trace, ok := e.traceOf(way); ok && !traced[trace.identity()] {
				traced[trace.identity()] = true
				e.traces = append(e.traces, trace)
			}
		}
	}
	if last == v1alpha1.MigrationCleanup {
		return // All ways are where they belong: whoever made one that is missing has taken it away.
	}
	for _, trace := range slices.Concat(d.bound.to(e.Standin, nil), d.bound.to(e.Queue, nil)) {
		way, ok := e.tracedBy(trace)
		if trace = leadingTo(trace, e.Standin); ok && !traced[trace.identity()] {
			traced[trace.identity()] = true
			e.traces, e.ways = append(e.traces, trace), append(e.ways, way)
		}
	}
}

// strayWays are the ways of others, as they are to lead into a work queue of the spec, that a trace at one of its queues tells of, and that stand at none of
// them for sure: a swap was broken off, or a request that had no answer may still remove one, and the spec has changed since.
func (d *differ) strayWays(queue, work string) (ways []Binding) {
	if work == "" {
		return nil
	}
	stands := func(way Binding) bool {
		return slices.ContainsFunc(d.namesOf(work), func(name string) bool {
			way = leadingTo(way, name)
			return d.isObserved(way) && !d.mayGo(way)
		})
	}
	for _, trace := range d.bound.to(queue, nil) {
		if way, ok := d.tracedBy(trace, work); ok && !stands(way) {
			ways = append(ways, way)
		}
	}
	return ways
}

// isNeeded is true for a trace at a queue of the spec that tells of such a way.
func (d *differ) isNeeded(trace Binding) bool {
	if !isTrace(trace) || d.queues[trace.Destination] != RoleWork {
		return false
	}
	way, ok := d.tracedBy(trace, trace.Destination)
	return ok && slices.ContainsFunc(d.strayWays(trace.Destination, trace.Destination), func(stray Binding) bool { return stray.identity() == way.identity() })
}

// namesOf are the names that the queues of a work queue of the spec have or had, with those of their stand-ins.
func (d *differ) namesOf(work string) (names []string) {
	for _, want := range d.works {
		if want.Name != work {
			continue
		}
		for _, name := range append([]string{work}, want.PreviousNames...) {
			names = append(names, name, compile.Names{}.StandinQueue(name))
		}
	}
	return names
}

// untraced is true where a way of somebody else would be swapped whose trace does not stand yet, or in a step that is not written down yet. All wait
// for it, as they do in awaits.
func (e *queueMigration) untraced(ways []Binding, to string) bool {
	return slices.ContainsFunc(ways, func(way Binding) bool {
		trace, ok := e.traceOf(way)
		return ok && (!e.written || !e.d.isObserved(trace)) && !e.d.isObserved(leadingTo(way, to))
	})
}
