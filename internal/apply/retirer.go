package apply

import (
	"context"
	"errors"
	"slices"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

// retirer takes queues one step further on their way out, and gathers what came of it.
type retirer struct {
	port *deletions
	// owner is the mark of the Transport: a queue that somebody else has made since is not ours to take.
	owner  string
	prefix string
	clock  clock
	stamps topology.Stamps
	// feeds tells of a queue what may still come back into it. With it the way back from the lanes stays bound until the queue is empty; it is nil
	// where no message may wait in a lane.
	feeds func(topology.QueueState) topology.Feed
	// bequeaths is true where another queue gets what leads in, also by bindings of others: what was bound since the broker was looked at is not
	// unbound, but led on by the next look.
	bequeaths bool
	// known is the queue as it was seen when it was decided that it goes; nil where whatever has its name goes.
	known *topology.Queue
	// unproven are queues of which only a mark says that they are ours: only a few of their ways are taken away at once.
	unproven map[string]bool

	steps    []topology.Step
	failures []Failure
	blocked  []Blocked
	// gone are the Ref strings of queues that are no more.
	gone []string
	// uncounted are queues whose messages the broker has not counted, or not lately.
	uncounted []string
	// wait is when the next step is due.
	wait time.Duration
}

// step takes one queue further. It returns the state to keep, or that the queue is gone. An error that does not end the
// run is among the failures, and the state stays as it was.
func (r *retirer) step(
	ctx context.Context, state v1alpha1.Retirement, waits topology.Waits,
) (kept v1alpha1.Retirement, gone bool, err error) {
	began := r.clock()
	queue, seen, ways, err := r.look(ctx, state.Queue)
	if err != nil {
		return state, false, r.fail(deletion(state.Queue), err)
	}
	next, decision, wait := topology.Retire(state, seen, topology.ObservationWindow{Began: began, Ended: r.clock(), Stamps: r.stamps}, waits)
	if decision == topology.DecisionDelete {
		// That it goes is written down first, which only an operator can do that knows all that was written before. Then the queue is
		// looked at once more, so that nothing is between what was seen and the deletion.
		if err := r.port.announce(ctx, deletion(state.Queue)); err != nil {
			return state, false, err
		}
		began = r.clock()
		if queue, seen, ways, err = r.look(ctx, state.Queue); err != nil {
			return state, false, r.fail(deletion(state.Queue), err)
		}
		next, decision, wait = topology.Retire(state, seen, topology.ObservationWindow{Began: began, Ended: r.clock(), Stamps: r.stamps}, waits)
	}
	if seen != nil && r.known != nil && !topology.SameQueue(*r.known, queue) {
		r.wait = soonest(r.wait, again) // somebody has made it anew
		return v1alpha1.Retirement{Queue: state.Queue}, false, nil
	}
	if seen != nil && !r.isOurs(queue) {
		decision = topology.DecisionDone
	}
	if decision == topology.DecisionUnbind && r.bequeaths && slices.ContainsFunc(ways, func(way topology.Binding) bool {
		return way.Arguments.Owner() != r.owner
	}) {
		r.wait = soonest(r.wait, again)
		return v1alpha1.Retirement{Queue: state.Queue, Since: next.Since, Messages: next.Messages}, false, nil
	}
	switch decision {
	case topology.DecisionDone:
		r.gone = append(r.gone, topology.Ref{Kind: topology.KindQueue, Name: state.Queue}.String())
		return state, true, nil
	case topology.DecisionUnbind:
		if kept, done, err := r.unbind(ctx, state, next, ways); !done {
			return kept, false, err
		}
		// The next look is to tell a count from those that were made by now. Where this is not known, it notes the tick itself.
		after, _ := r.port.Queue(ctx, state.Queue)
		next.Unbound, next.Tick = topology.Stamp(r.clock()), after.Noted()
	case topology.DecisionHold:
		r.blocked = append(r.blocked, Blocked{Queue: state.Queue, Messages: *seen.Messages})
	case topology.DecisionUncounted:
		r.uncounted = append(r.uncounted, state.Queue)
	case topology.DecisionDelete:
		return r.remove(ctx, state, queue, waits)
	case topology.DecisionWait:
	}
	r.wait = soonest(r.wait, wait)
	return next, false, nil
}

// unbind takes away ways into a queue. Where it did not take all of them it returns the state to keep.
func (r *retirer) unbind(
	ctx context.Context, state, next v1alpha1.Retirement, ways []topology.Binding,
) (kept v1alpha1.Retirement, done bool, err error) {
	most := len(ways)
	if r.unproven[state.Queue] {
		most = min(most, mostInTurn)
	}
	unbinding := deletionsOf(ways[:most])
	if err := r.port.announce(ctx, unbinding...); err != nil {
		return state, false, err
	}
	for _, step := range unbinding {
		if _, err := r.port.Apply(ctx, step); err != nil {
			return state, false, r.fail(step, err)
		}
		r.steps = append(r.steps, step)
	}
	if most < len(ways) {
		r.wait = soonest(r.wait, betweenTurns)
		return v1alpha1.Retirement{Queue: state.Queue, Since: next.Since, Messages: next.Messages}, false, nil
	}
	return next, true, nil
}

// isOurs is true for a queue that carries our mark, or none and looks as we made it.
func (r *retirer) isOurs(queue topology.Queue) bool {
	return queue.Arguments.Owner() == r.owner || topology.Unmarked(r.prefix, topology.KindQueue, queue.Arguments)
}

// remove deletes a queue that was found empty. Only a classic queue can be asked to refuse if it is not.
func (r *retirer) remove(
	ctx context.Context, state v1alpha1.Retirement, queue topology.Queue, waits topology.Waits,
) (kept v1alpha1.Retirement, gone bool, err error) {
	step := deletion(state.Queue)
	err = r.port.DeleteQueue(ctx, state.Queue, queue.Type == topology.TypeClassic, false)
	if errors.Is(err, broker.ErrConflict) {
		state.Empty, state.Published = nil, nil
		r.wait = soonest(r.wait, waits.Empty)
		return state, false, nil
	}
	if err != nil {
		return state, false, r.fail(step, err)
	}
	r.steps = append(r.steps, step)
	r.gone = append(r.gone, topology.Ref{Kind: topology.KindQueue, Name: state.Queue}.String())
	return state, true, nil
}

// look reads a queue and what leads into it, and gives the bindings that are to go next; seen is nil where the queue does
// not exist.
func (r *retirer) look(
	ctx context.Context, name string,
) (queue topology.Queue, seen *topology.QueueObservation, ways []topology.Binding, err error) {
	// The count comes last, as what is nearest to what is done about it.
	bindings, err := r.port.Bindings(ctx, name)
	if err != nil {
		return topology.Queue{}, nil, nil, err
	}
	state, err := r.port.Queue(ctx, name)
	if errors.Is(err, broker.ErrNotFound) {
		return topology.Queue{}, nil, nil, nil
	}
	if err != nil {
		return topology.Queue{}, nil, nil, err
	}
	var inlets, returns []topology.Binding
	for _, binding := range bindings {
		if r.feeds != nil && !topology.LeadsIn(binding, state.Queue, r.prefix) {
			returns = append(returns, binding)
		} else {
			inlets = append(inlets, binding)
		}
	}
	seen = &topology.QueueObservation{
		Evidence: state.Evidence, Bound: len(inlets) > 0, Returning: len(returns) > 0,
	}
	if r.feeds != nil {
		seen.Feed = r.feeds(state)
	}
	if seen.Bound {
		return state.Queue, seen, inlets, nil
	}
	return state.Queue, seen, returns, nil
}

// fail notes a failed step; it returns the error where it ends the run.
func (r *retirer) fail(step topology.Step, err error) error {
	if ends(err) {
		return err
	}
	r.failures = append(r.failures, Failure{Step: step, Err: err})
	return nil
}

// deletionsOf are the steps that remove some bindings.
func deletionsOf(bindings []topology.Binding) []topology.Step {
	steps := make([]topology.Step, len(bindings))
	for i := range bindings {
		steps[i] = topology.Step{Action: topology.ActionDelete, Binding: &bindings[i]}
	}
	return steps
}

func policyDeletions(policies []topology.Policy) []topology.Step {
	steps := make([]topology.Step, len(policies))
	for i := range policies {
		steps[i] = topology.Step{Action: topology.ActionDelete, Policy: &policies[i]}
	}
	return steps
}

func exchangeDeletion(name string) topology.Step {
	return topology.Step{Action: topology.ActionDelete, Exchange: &topology.Exchange{Name: name}}
}

func deletion(queue string) topology.Step {
	return topology.Step{Action: topology.ActionDelete, Queue: &topology.Queue{Name: queue}}
}

// soonest of two waits, of which zero means none.
func soonest(a, b time.Duration) time.Duration {
	if a == 0 || (b > 0 && b < a) {
		return b
	}
	return a
}

// without returns a list without some of its items.
func without(list, gone []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(item string) bool { return slices.Contains(gone, item) })
}

// clock tells the time as the caller of a run sees it.
type clock func() time.Time

// clockFrom makes a clock from what the caller's clock says now. A run takes a while where the broker is slow.
func clockFrom(now time.Time) clock {
	started := time.Now()
	return func() time.Time { return now.Add(time.Since(started)) }
}
