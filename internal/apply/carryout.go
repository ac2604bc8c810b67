package apply

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

// run carries out what was prepared.
type run struct {
	Prepared
	port   *deletions
	report Report
	// failed objects take no bindings.
	failed map[topology.Ref]bool
	// undone are the bindings that were not made or removed.
	undone map[topology.Ref]bool
	// lacking places, as Difference.Place names them, have a way that could not be made: no other one is taken away.
	lacking map[string]bool
	// quiet is when queues on their way out were found so: since then nothing comes into one but from lanes.
	quiet map[string]time.Time
	// uncounted are the quorum queues without a count, beside others that have one.
	uncounted []string
	// broken is true when something that failed messages of all queues leave by could not be made, and noReturn has the queues whose own way back from
	// the lanes could not.
	broken   bool
	noReturn map[string]bool
}

// CarryOut does what was prepared, and takes the queues on their way out one step further. Where the error is not nil the
// report holds what was done until then. A *TooYoungError says that queues have just been made, and that the rest is to follow.
func (p Prepared) CarryOut(ctx context.Context, port Port) (report Report, err error) {
	written := newDeletions(port, p.input.State, p.input.Waits, p.clock, p.observed.Age(), p.input.WriteDeletions)
	defer func() { report.Deletions = written.left() }()
	r := &run{Prepared: p, port: written, report: Report{
		Identity:   p.observed.Identity,
		Wanted:     p.Difference.Wanted,
		Conflicts:  p.Difference.Conflicts,
		Withheld:   p.Difference.Withheld,
		Problems:   p.Difference.Problems,
		Warnings:   p.Difference.Warnings,
		Spared:     p.Spared,
		Disordered: p.Difference.Disordered,
		Begun:      true,
		Memory: Memory{
			Known:   maps.Clone(p.known),
			Stuck:   p.input.State.Stuck,
			Counted: p.input.State.Counted,
			Turns:   maps.Collect(maps.All(p.input.State.Turns)),
			Asking:  p.input.State.Asking || !p.input.State.Begun,
			Former:  p.input.State.Former,
		},
		Created:  slices.Clone(p.Created),
		Retiring: p.input.State.Retiring,
		// Where it ends early, the steps before are to be taken again.
		Migrations: p.input.State.Migrations,
		Queues:     counts(&p),
	}}
	r.failed, r.undone, r.lacking, r.quiet = map[topology.Ref]bool{}, map[topology.Ref]bool{}, map[string]bool{}, map[string]time.Time{}
	r.noReturn = map[string]bool{}
	r.report.Adopted = append(refTexts(p.Difference.Adopted), p.Kept...)
	r.uncounted = uncounted(p.Difference.Wanted, p.observed)
	r.warnOfUncounted()
	if p.Difference.Awaited {
		r.report.RequeueAfter = betweenDoubts
	}
	first, rest := topology.Making(append(r.planInTurn(), r.formerDue()...), p.input.Desired.Prefix)
	if err := r.steps(ctx, first, rest); err != nil {
		return r.report, err
	}
	if err := r.young(rest); err != nil {
		r.forget(rest)
		return r.report, err
	}
	if err := r.port.announce(ctx, rest...); err != nil {
		r.forget(rest)
		return r.report, err
	}
	if err := r.steps(ctx, rest, nil); err != nil {
		return r.report, err
	}
	if err := r.retireAll(ctx); err != nil {
		return r.report, err
	}
	r.noteMigrations()
	if err := r.touch(ctx); err != nil {
		return r.report, err
	}
	return r.report, r.dropExchanges(ctx)
}

// steps carries out some steps of the plan, after which others follow; only an error that ends the run is returned.
func (r *run) steps(ctx context.Context, steps, following []topology.Step) error {
	for i, step := range steps {
		if err := r.step(ctx, step); err != nil {
			if ends(err) {
				r.forget(slices.Concat(steps[i+1:], following))
			}
			return err
		}
	}
	return nil
}

// step carries out one step of the plan; only an error that ends the run is returned.
func (r *run) step(ctx context.Context, step topology.Step) error {
	if r.skipped(step) {
		r.leave(step)
		r.report.Skipped = append(r.report.Skipped, step)
		return r.putBack(ctx, step, false)
	}
	existed, pins, err := applyUnlessPinning(ctx, r.port, step, r.input.Desired)
	switch {
	case pins:
		return nil
	case err != nil && ends(err):
		return err
	case err != nil:
		r.report.Failures = append(r.report.Failures, Failure{Step: step, Err: err})
		r.failed[step.Ref()] = true
		r.leave(step)
		r.forget([]topology.Step{step})
		if step.Binding != nil && step.Binding.Source == r.input.Desired.ExchangeOf(topology.RoleReturn) {
			r.noReturn[step.Binding.Destination] = true
		} else {
			r.broken = r.broken || wayOut(step, r.input.Desired)
		}
		return r.putBack(ctx, step, true)
	}
	if step.Queue != nil && isQuorum(*step.Queue) {
		r.report.Known[step.Queue.Name] = r.clock()
	}
	if existed && step.Owner() == r.input.Desired.Owner {
		return &OvertakenError{Object: step.Ref()}
	}
	name := step.Ref().String()
	if existed && slices.Contains(r.Difference.Unmarked, step.Ref()) && !slices.Contains(r.input.State.Created, name) {
		// Somebody made it since the observation: it is not ours after all. What an earlier run wrote down is: its
		// answer was lost, or another operator carries it out at the same time.
		r.report.Created = slices.DeleteFunc(r.report.Created, func(created string) bool { return created == name })
		r.report.Adopted = append(r.report.Adopted, name)
	}
	if step.OverBridge() {
		r.report.RequeueAfter = soonest(r.report.RequeueAfter, again)
	}
	r.report.Steps = append(r.report.Steps, step)
	return nil
}

// putBack makes a way of a queue that is migrated at its former end, where it could not be made at its new one: while it is at neither, whoever binds by
// its key gets everything alone. One that was skipped is made only where this run has taken it away; one that RabbitMQ refused, also where another did.
func (r *run) putBack(ctx context.Context, step topology.Step, refused bool) error {
	way, is := r.Difference.AtFormerEnd(step)
	if !is {
		return nil
	}
	back := topology.Step{Action: topology.ActionCreate, Binding: &way}
	removed := slices.ContainsFunc(r.report.Steps, func(done topology.Step) bool {
		return done.Action == topology.ActionDelete && done.Ref() == back.Ref()
	})
	stands := slices.ContainsFunc(r.observed.BindingsTo(way.Destination), func(b topology.Binding) bool { return b.Name() == way.Name() })
	if !removed && (stands || !refused) {
		return nil
	}
	switch _, err := r.port.Apply(ctx, back); {
	case err == nil:
		r.report.Steps = append(r.report.Steps, back)
	case ends(err):
		return err
	default:
		r.report.Failures = append(r.report.Failures, Failure{Step: back, Err: err})
	}
	return nil
}

// applyUnlessPinning carries out a step, unless it takes the policy away that keeps others off a former failure queue which is there all the same: one list
// that lacks the queue would let them drop all that has failed. One that the spec has as a work queue by now is under the policy of such.
func applyUnlessPinning(ctx context.Context, port Port, step topology.Step, desired topology.Objects) (existed, pins bool, err error) {
	if queue, is := topology.PinOf(step, desired.Prefix); is && !desires(desired, queue) {
		_, err := port.Queue(ctx, queue)
		if !errors.Is(err, broker.ErrNotFound) {
			return false, err == nil, err
		}
	}
	existed, err = port.Apply(ctx, step)
	return existed, false, err
}

// leave notes a step that was not taken.
func (r *run) leave(step topology.Step) {
	r.undone[step.Ref()] = true
	if step.Action == topology.ActionCreate && step.Binding != nil {
		r.lacking[r.Difference.Place(*step.Binding)] = true
	}
}

// forget takes off the list what this run wrote down and did not make: whoever makes it later is its owner.
func (r *run) forget(steps []topology.Step) {
	r.report.Created = slices.DeleteFunc(r.report.Created, func(created string) bool {
		return !slices.Contains(r.input.State.Created, created) &&
			slices.ContainsFunc(steps, func(step topology.Step) bool { return step.Ref().String() == created })
	})
}

// skipped is true for a binding that would lead messages to where they cannot go on, and for a policy that would; and for the removal
// of one by which messages go that may be meant for one that could not be made.
func (r *run) skipped(step topology.Step) bool {
	if r.undone[step.After()] || step.Action == topology.ActionDelete && step.Binding != nil && r.lacking[r.Difference.Place(*step.Binding)] {
		return true
	}
	if step.Action == topology.ActionDelete && step.Binding != nil && slices.ContainsFunc(r.Plan, func(next topology.Step) bool {
		return next.Action == topology.ActionCreate && next.After() == step.Ref() && r.skipped(next)
	}) {
		return true // half of a swap: whoever binds by that key meanwhile would get everything alone
	}
	if step.Action != topology.ActionDelete && step.Policy != nil {
		return r.broken && topology.IsWorkPolicy(step.Policy.Name, r.input.Desired.Prefix)
	}
	if step.Action != topology.ActionCreate || step.Binding == nil {
		return false
	}
	source := topology.Ref{Kind: topology.KindExchange, Name: step.Binding.Source}
	destination := topology.Ref{Kind: topology.KindQueue, Name: step.Binding.Destination}
	quarantine := topology.Ref{Kind: topology.KindQueue, Name: compile.Names{}.Quarantine(destination.Name)}
	noReturn := r.noReturn[destination.Name] || r.noReturn[quarantine.Name]
	leadsIn := !wayOut(step, r.input.Desired)
	return r.failed[source] || r.failed[destination] || leadsIn && (r.broken || noReturn || r.failed[quarantine])
}

// wayOut is true for what failed messages need to leave by.
func wayOut(step topology.Step, desired topology.Objects) bool {
	private := []string{
		desired.ExchangeOf(topology.RoleFailed), desired.ExchangeOf(topology.RoleReturnAlternate),
		desired.ExchangeOf(topology.RoleReturn), desired.ExchangeOf(topology.RoleFallback),
	}
	switch {
	case step.Exchange != nil:
		return slices.Contains(private, step.Exchange.Name)
	case step.Queue != nil:
		return step.Queue.Role == topology.RoleFailure
	case step.Binding != nil:
		return slices.Contains(private, step.Binding.Source)
	default:
		return false
	}
}

// retireAll takes every queue that is no longer wanted one step further.
func (r *run) retireAll(ctx context.Context) error {
	states := map[string]v1alpha1.Retirement{}
	for _, queue := range r.Difference.ExtraQueues {
		states[queue.Name] = v1alpha1.Retirement{Queue: queue.Name}
	}
	letGo := map[string]topology.ReleasedQueue{}
	for _, queue := range r.Difference.Released {
		letGo[queue.Queue] = queue
		states[queue.Queue] = v1alpha1.Retirement{Queue: queue.Queue}
	}
	for _, state := range r.input.State.Retiring {
		_, extra := states[state.Queue]
		_, exists := r.observed.Queues[state.Queue]
		if extra || !exists && (r.drains(state.Queue) || !desires(r.input.Desired, state.Queue)) {
			states[state.Queue] = state
		}
	}
	r.report.Retiring = nil
	r.count(states)
	retirer := &retirer{
		port: r.port, owner: r.input.Desired.Owner, prefix: r.input.Desired.Prefix, clock: r.clock, stamps: r.input.State.Stamps,
		feeds: r.feeds, unproven: r.Difference.Unproven,
	}
	left, order := map[string]bool{}, r.retiringOrder(states)
	waiting := r.waiting(order)
	spared, untold := r.spare(ctx, order, waiting, states)
	var ended error
	for _, name := range order {
		state, gone := states[name], false
		queue, adopted := letGo[name]
		switch {
		case ended != nil, waiting[name]:
		case untold[name] != nil:
			ended = retirer.fail(deletion(name), untold[name])
		case spared[name]:
			gone = true
		case r.held(name):
			state = v1alpha1.Retirement{Queue: name, Messages: r.observed.Queues[name].Messages}
		case adopted:
			state, gone, ended = r.letGo(ctx, retirer, queue, state)
		case slices.Contains(r.Kept, topology.Ref{Kind: topology.KindQueue, Name: name}.String()):
			gone, ended = r.isGone(ctx, retirer, name)
		case r.stillNeeded(name, left):
			state = r.hold(name)
			r.warnOfQuarantined(name, left)
		default:
			state, gone, ended = r.retire(ctx, retirer, state)
		}
		if !gone {
			left[name] = true
			r.report.Retiring = append(r.report.Retiring, state)
		}
	}
	slices.SortFunc(r.report.Retiring, func(a, b v1alpha1.Retirement) int { return cmp.Compare(a.Queue, b.Queue) })
	r.take(retirer)
	return ended
}

// spare keeps queues that others have bound, also where the list of bindings lacks that: whether one is theirs is decided before its first step out, for good.
// Only of a Transport without a history this is asked, once for each queue that has not begun to leave: whoever has the operator remove one later means it.
// Untold are queues whose bindings the broker does not tell.
func (r *run) spare(
	ctx context.Context, order []string, waiting map[string]bool, states map[string]v1alpha1.Retirement,
) (spared map[string]bool, untold map[string]error) {
	if !r.report.Asking {
		return nil, nil
	}
	spared, untold, r.report.Asking = map[string]bool{}, map[string]error{}, false
	for _, name := range order {
		queue, exists := r.observed.Queues[name]
		switch {
		case states[name].Since != nil, !exists, slices.Contains(r.input.State.Adopted, topology.Ref{Kind: topology.KindQueue, Name: name}.String()):
			continue
		case waiting[name]:
			r.report.Asking = true
			continue
		}
		bindings, err := r.port.Bindings(ctx, name)
		if err != nil {
			untold[name], r.report.Asking = err, true
			continue
		}
		shared := topology.SharedQueues(r.input.Desired, topology.Observed{Queues: map[string]topology.QueueState{name: queue}, Bindings: bindings})
		for _, queue := range shared {
			spared[name] = true
			r.report.Adopted = append(slices.Clip(r.report.Adopted), queue.Ref().String())
			r.report.Spared = append(slices.Clip(r.report.Spared), queue.Kept())
			r.report.Warnings = append(slices.Clip(r.report.Warnings), queue.Kept())
		}
	}
	return spared, untold
}

// isGone is true for a queue that is not there any more, whatever a list says.
func (r *run) isGone(ctx context.Context, retirer *retirer, queue string) (bool, error) {
	_, err := r.port.Queue(ctx, queue)
	if errors.Is(err, broker.ErrNotFound) {
		return true, nil
	}
	return false, retirer.fail(deletion(queue), err)
}

// drains is true for a queue that is emptied to be migrated.
func (r *run) drains(queue string) bool {
	return slices.ContainsFunc(r.Difference.Migrations, func(m topology.Migration) bool { return m.Drains == queue })
}

// quarantineOf names the work queue of a quarantine queue; empty for other queues.
func (r *run) quarantineOf(name string) string {
	return topology.QuarantineOf(r.observed.Queues[name].Queue)
}

// retiringOrder has quarantine queues last, so that one begins when its work queue has ended.
func (r *run) retiringOrder(states map[string]v1alpha1.Retirement) []string {
	names := slices.Sorted(maps.Keys(states))
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Compare(min(1, len(r.quarantineOf(a))), min(1, len(r.quarantineOf(b))))
	})
	return names
}

// stillNeeded is true for a quarantine queue into which workers may publish: its work queue is not gone yet, or is in
// conflict, which leaves the workers as they are, or a configuration names it.
func (r *run) stillNeeded(name string, left map[string]bool) bool {
	work := r.quarantineOf(name)
	if work == "" {
		return false
	}
	return left[work] || slices.Contains(r.consumed, name) || slices.ContainsFunc(r.Difference.Conflicts, func(c topology.Conflict) bool {
		return c.Object == topology.Ref{Kind: topology.KindQueue, Name: work}
	})
}

// held is true for a queue by which messages go that may be meant for one that could not be made or bound.
func (r *run) held(name string) bool {
	return slices.Contains(r.Difference.Deferred, name) || slices.ContainsFunc(r.observed.BindingsTo(name), func(b topology.Binding) bool {
		return r.lacking[r.Difference.Place(b)]
	})
}

// hold leaves a queue as it is for now, and tells what is in it.
func (r *run) hold(name string) v1alpha1.Retirement {
	messages := r.observed.Queues[name].Messages
	if messages != nil && *messages > 0 {
		r.report.Blocked = append(r.report.Blocked, Blocked{Queue: name, Messages: *messages})
	}
	return v1alpha1.Retirement{Queue: name, Messages: messages}
}

// quarantinedFor are the quarantine queues whose messages are retried in a queue that is not wanted any more: that of its own, and those of its former names
// by which the lanes lead back to it. Each has to have the name of one: a mark alone, which anybody can write, keeps no queue.
func (r *run) quarantinedFor(seen topology.Queue) (queues []topology.QueueState) {
	works, names := []string{seen.Name, topology.StandinFor(seen)}, compile.Names{Prefix: r.input.Desired.Prefix}
	for _, way := range r.observed.BindingsTo(seen.Name) {
		if way.Source == names.Return() || way.Source == names.ReturnAlternate() {
			works = append(works, way.RoutingKey)
		}
	}
	slices.Sort(works)
	for _, work := range slices.Compact(works) {
		queue := r.observed.Queues[names.Quarantine(work)]
		if work != "" && topology.QuarantineOf(queue.Queue) == work && !desires(r.input.Desired, work) {
			queues = append(queues, queue)
		}
	}
	return queues
}

// warnOfQuarantined tells of a work queue that stays for what its quarantine queue has: whose worker group is paused never ends that.
func (r *run) warnOfQuarantined(quarantine string, left map[string]bool) {
	work := r.quarantineOf(quarantine)
	if r.observed.Queues[quarantine].Empty() || !left[work] || r.drains(work) {
		return
	}
	text := "it is not wanted any more, and its way back from the lanes stays until its quarantine queue " + quarantine + " is empty, because messages " +
		"in that are retried here: look whether the worker group that had it is paused, or its quarantine pod cannot run"
	if r.observed.Queues[quarantine].Messages == nil {
		text = "it is not wanted any more, and stays, since the broker has not counted the messages in its quarantine queue " + quarantine +
			": look whether its statistics are switched off or a node is down"
	}
	r.report.Warnings = append(slices.Clip(r.report.Warnings), topology.Finding{
		Object: topology.Ref{Kind: topology.KindQueue, Name: work}, Passing: true, Message: text,
	})
}

// letGo takes from a queue that was adopted what we added to it, once workers had the time to read that they do not consume
// it any more, its quarantine queue is empty, and what they put into lanes until then had the time to come back.
func (r *run) letGo(
	ctx context.Context, retirer *retirer, queue topology.ReleasedQueue, state v1alpha1.Retirement,
) (kept v1alpha1.Retirement, gone bool, err error) {
	now := r.clock()
	consumed := r.laneStalls() || slices.Contains(r.consumed, queue.Queue) || slices.ContainsFunc(
		r.quarantinedFor(topology.Queue{Name: queue.Queue}), func(q topology.QueueState) bool { return !q.Empty() })
	if state.Since == nil || consumed {
		state = v1alpha1.Retirement{Queue: queue.Queue, Since: topology.Stamp(now)}
	}
	left := r.input.Waits.Grace + r.returning() - r.input.State.Stamps.SinceLeft(state, now)
	if consumed {
		state.Since = nil // The wait has not begun.
	}
	if left > 0 {
		retirer.wait = soonest(retirer.wait, left)
		return state, false, nil
	}
	if err := r.port.announce(ctx, queue.Steps...); err != nil {
		return state, false, err
	}
	for _, step := range queue.Steps {
		if _, err := r.port.Apply(ctx, step); err != nil {
			return state, false, retirer.fail(step, err)
		}
		retirer.steps = append(retirer.steps, step)
	}
	return state, true, nil
}

// waits for a queue: workers publish into a lane until they have read the new configuration, so it has a grace. So has the
// quarantine queue of a work queue that goes on without one, also while that is renamed. Others have none, but what waits in lanes may still come back
// into them.
func (r *run) waits(queue string) topology.Waits {
	waits := r.input.Waits
	if topology.RoleOf(r.observed.Queues[queue].Queue) == topology.RoleLane {
		return waits
	}
	work := r.quarantineOf(queue)
	renamed := work != "" && slices.ContainsFunc(r.Difference.Migrations, func(m topology.Migration) bool { return m.Standin == work })
	if !renamed && !desires(r.input.Desired, work) {
		waits.Grace = 0
	}
	waits.Return = r.returning()
	return waits
}

// feeds tells of a queue, as it is seen now, whether workers have messages to consume whose retries come back into it, and how many of such were
// acknowledged: those in itself, and those of queues beside it. All that is quarantined counts: what fails without a crash is retried in its work queue.
func (r *run) feeds(seen topology.QueueState) topology.Feed {
	feed := topology.Feed{
		Feeding: seen.Holds() || !seen.Empty() && slices.Contains(r.consumed, seen.Name) || r.laneStalls(), Acked: seen.Acked,
	}
	others := r.quarantinedFor(seen.Queue)
	for _, queue := range others {
		feed.Feeding = feed.Feeding || !queue.Empty()
	}
	beside, now := r.beside(seen.Queue)
	for _, queue := range beside {
		feed.Feeding = feed.Feeding || queue.Unacked > 0 || now[queue.Name] && !queue.Empty()
	}
	others = append(others, beside...)
	for _, queue := range others {
		feed.Acked += queue.Acked
	}
	feed.Counted = r.isCounted(seen, others)
	return feed
}

// beside are the queues that hold messages of the same work queue as another one: its stand-in, the queue for which it stands in, if that leaves too, and
// what a configuration names in place of these, as that of a former name. Those that are consumed now are so while that other one is there; others may
// have their turn only when it is gone. No configuration has to name a stand-in: that of the workers that empty a quarantine queue does not, and it has one
// under the name of its work queue.
func (r *run) beside(seen topology.Queue) (queues []topology.QueueState, now map[string]bool) {
	now = map[string]bool{}
	named := map[string]bool{}
	for _, config := range r.input.Published {
		for _, queue := range config.Queues {
			if other := queue.Beside(seen.Name); other != "" {
				named[other] = true
				now[other] = now[other] || slices.Contains(queue.Consumed(), other)
			}
		}
	}
	for name, queue := range r.observed.Queues {
		work := topology.StandinFor(seen) == name && !desires(r.input.Desired, name)
		if work || topology.StandinFor(queue.Queue) == seen.Name || named[name] && !desires(r.input.Desired, name) {
			queues = append(queues, queue)
		}
	}
	return queues, now
}

// isLane is true for a lane of this Transport.
func (r *run) isLane(queue topology.QueueState) bool {
	return queue.Arguments.Owner() == r.input.Desired.Owner && topology.RoleOf(queue.Queue) == topology.RoleLane
}

// laneStalls is true where expired messages do not leave a lane: what is in it comes back when it goes on, whenever that is.
func (r *run) laneStalls() bool {
	for name, known := range r.input.State.Stuck.queues {
		lane := r.observed.Queues[name]
		if r.isLane(lane) && lane.MessagesDLX > 0 && known.look(lane, r.clock()).still > 0 {
			return true
		}
	}
	return false
}

// returning is how long messages in lanes may take to come back into their queues; zero where no lane holds any. A list may lack a lane that is on its way out,
// to which no binding leads any more: what that holds is not known.
func (r *run) returning() time.Duration {
	var longest time.Duration
	lanes := compile.Names{Prefix: r.input.Desired.Prefix}.LanePrefix()
	for _, state := range r.input.State.Retiring {
		key, isLane := strings.CutPrefix(state.Queue, lanes)
		if _, listed := r.observed.Queues[state.Queue]; !listed && isLane {
			longest = max(longest, retry.LaneDelay(key))
		}
	}
	for _, queue := range r.observed.Queues {
		ours := queue.Arguments.Owner() == r.input.Desired.Owner
		if ours && (queue.Messages == nil || *queue.Messages > 0) {
			longest = max(longest, topology.LaneDelay(queue.Queue))
		}
	}
	return longest
}

// dropExchanges deletes exchanges that are no longer wanted, once no queue is left that they may serve.
func (r *run) dropExchanges(ctx context.Context) error {
	if len(r.report.Retiring) > 0 {
		return nil
	}
	for _, name := range inTurn(r, topology.KindExchange, r.Difference.ExtraExchanges, strings.Clone) {
		err := r.port.DeleteExchange(ctx, name)
		step := exchangeDeletion(name)
		ref := step.Ref()
		switch {
		case err == nil:
			r.report.Steps = append(r.report.Steps, step)
			r.report.Created = slices.DeleteFunc(r.report.Created, func(created string) bool { return created == ref.String() })
		case ends(err):
			return err
		case errors.Is(err, broker.ErrConflict):
			r.report.Warnings = append(r.report.Warnings, topology.Finding{
				Object: ref, Message: "it is no longer in the spec, and is kept because others have bound to it",
			})
		default:
			r.report.Failures = append(r.report.Failures, Failure{Step: step, Err: err})
		}
	}
	return nil
}

// take moves what a retirer did into the report.
func (r *run) take(retirer *retirer) {
	r.report.Steps = append(r.report.Steps, retirer.steps...)
	r.report.Failures = append(r.report.Failures, retirer.failures...)
	r.report.Blocked = append(r.report.Blocked, retirer.blocked...)
	r.report.RequeueAfter = soonest(r.report.RequeueAfter, retirer.wait)
	r.report.Created = without(r.report.Created, retirer.gone)
	for _, queue := range retirer.uncounted {
		r.report.Warnings = append(slices.Clip(r.report.Warnings), topology.Finding{
			Object: topology.Ref{Kind: topology.KindQueue, Name: queue}, Passing: true,
			Message: "it is not wanted any more, and stays, since the broker has not counted the messages in it, or in a lane, lately: look whether " +
				"statistics are switched off or a node is down",
		})
	}
}

func desires(desired topology.Objects, queue string) bool {
	return slices.ContainsFunc(desired.Queues, func(q topology.Queue) bool { return q.Name == queue })
}
