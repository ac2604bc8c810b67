package apply

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// DeleteInput is what a Transport that goes leaves to clean up. It needs no valid spec: what belongs to the Transport is
// told by its marks.
type DeleteInput struct {
	// Owner is the value of the owner mark, Prefix that of the names.
	Owner, Prefix string
	State         State
	// Force deletes queues with the messages in them, without waiting.
	Force bool
	// WorkersGone is true when no worker consumes any more. The caller stops the workers when the report says Drained.
	WorkersGone bool
	Waits       topology.Waits
	Now         time.Time
	// WriteDeletions is as in Input.
	WriteDeletions func(context.Context, []v1alpha1.Deletion) error
}

// DeleteReport says how far the deletion is.
type DeleteReport struct {
	Identity topology.Identity
	// Done is true when nothing is left to do.
	Done bool
	// Drained is true when the workers have nothing left to do and are to be stopped.
	Drained bool
	// Blocked are queues that hold messages; the deletion goes on when they are empty.
	Blocked []Blocked
	// Uncounted are queues whose messages the broker has not counted; the deletion goes on when it has.
	Uncounted []string
	// Rebound are bindings that somebody made again; the counting begins anew.
	Rebound []string
	// Left are objects that stay, because others use them.
	Left []topology.Finding
	// Queues of the Transport that are still there.
	Queues []QueueCount
	// Steps that were carried out, and Failures that the broker refused.
	Steps    []topology.Step
	Failures []Failure
	// Awaited is how long a request that had no answer may still be carried out, where nothing but that is left: a Transport that is made
	// again must not lose its queues to it.
	Awaited time.Duration
	// Created, Retiring and Deletions are the state to keep for the next run.
	Created   []string
	Retiring  []v1alpha1.Retirement
	Deletions []v1alpha1.Deletion
	// RequeueAfter is when the next step is due; zero where Done, or where the caller has to stop the workers.
	RequeueAfter time.Duration
}

// removal is one run of a deletion.
type removal struct {
	DeleteInput
	port   *deletions
	clock  clock
	found  topology.Belongings
	report DeleteReport
}

// again is when to go on where nothing has to be waited for, but the state has to be written down first.
const again = time.Second

// Delete takes a Transport's objects away, one stage at a time, and never what is not its own: first the ways in, then,
// when work queues, quarantine queues and lanes are empty and the workers gone, these, then the failure queue, then
// exchanges and policies.
// The caller calls it again until it is done.
func Delete(ctx context.Context, port Port, input DeleteInput) (report DeleteReport, err error) {
	now := clockFrom(input.Now)
	written := newDeletions(port, input.State, input.Waits, now, 0, input.WriteDeletions)
	defer func() { report.Deletions = written.left() }()
	r := &removal{DeleteInput: input, port: written, clock: now, report: DeleteReport{
		Created: input.State.Created, Retiring: input.State.Retiring,
	}}
	observed, err := port.Observe(ctx)
	if err != nil {
		return r.report, err
	}
	r.report.Identity = observed.Identity
	if err := checkIdentity(input.State.Broker, observed); err != nil {
		return r.report, err
	}
	if observed.Queues, err = r.withUnlisted(ctx, observed.Queues); err != nil {
		return r.report, err
	}
	r.found = r.belongings(observed)
	r.report.Queues = r.counts()
	if len(r.found.Inlets) > 0 && len(input.State.Retiring) > 0 && !input.Force {
		// Somebody has bound a queue since. What was counted before must be forgotten, and that written down, before the
		// binding goes: otherwise whoever goes on after a crash would take the counts for valid.
		r.report.Retiring, r.report.RequeueAfter = nil, again
		for _, binding := range r.found.Inlets {
			r.report.Rebound = append(r.report.Rebound, binding.Name())
		}
		return r.report, nil
	}
	cut, err := r.cutInlets(ctx)
	if err != nil || len(r.report.Failures) > 0 {
		return r.report, err
	}
	if !input.WorkersGone {
		return r.report, r.drain(ctx, cut)
	}
	return r.report, r.takeDown(ctx)
}

// withUnlisted are the listed queues, and those on their way out that the list leaves out and that answer when they are asked
// alone: they must not be taken for gone.
func (r *removal) withUnlisted(ctx context.Context, listed map[string]topology.QueueState) (map[string]topology.QueueState, error) {
	all := listed
	for _, state := range r.State.Retiring {
		if _, is := listed[state.Queue]; is {
			continue
		}
		queue, err := r.port.Queue(ctx, state.Queue)
		if errors.Is(err, broker.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if len(all) == len(listed) {
			all = maps.Clone(listed) // a snapshot is shared
		}
		all[state.Queue] = queue
	}
	return all, nil
}

// belongings are what the Transport may delete: what was adopted is not among it, whatever mark it carries.
func (r *removal) belongings(observed topology.Observed) topology.Belongings {
	observed = observed.Disown(r.Owner, r.State.Adopted)
	return topology.BelongingsOf(r.Owner, r.Prefix, observed, without(r.report.Created, r.State.Adopted))
}

// counts has the queues that are to go, the failure queue first: no more than are counted of any Transport.
func (r *removal) counts() []QueueCount {
	all := tally{known: map[string]bool{}}
	for _, queues := range [][]topology.QueueState{r.found.Failure, r.found.Lanes, r.found.Work, r.found.Quarantine} {
		for _, queue := range queues {
			all.add(queue, topology.RoleOf(queue.Queue))
		}
	}
	return all.counts
}

// cutInlets removes what leads new messages in; cut is true where there was something.
func (r *removal) cutInlets(ctx context.Context) (cut bool, err error) {
	steps := slices.Concat(policyDeletions(r.found.InletPolicies), deletionsOf(r.found.Inlets))
	return len(steps) > 0, r.all(ctx, steps)
}

// all writes down what some steps delete, and carries them out.
func (r *removal) all(ctx context.Context, steps []topology.Step) error {
	if err := r.port.announce(ctx, steps...); err != nil {
		return err
	}
	for _, step := range steps {
		if err := r.apply(ctx, step); err != nil {
			return err
		}
	}
	return nil
}

// apply carries out one step; only an error that ends the run is returned.
func (r *removal) apply(ctx context.Context, step topology.Step) error {
	_, pins, err := applyUnlessPinning(ctx, r.port, step, topology.Objects{Prefix: r.Prefix})
	if pins {
		return nil // the next look sees its queue
	}
	return r.note(step, err)
}

func (r *removal) note(step topology.Step, err error) error {
	switch {
	case err == nil:
		r.report.Steps = append(r.report.Steps, step)
	case ends(err):
		return err
	default:
		r.report.Failures = append(r.report.Failures, Failure{Step: step, Err: err})
	}
	return nil
}

// drain waits for the workers to empty work queues, quarantine queues and lanes. Lanes stay bound: workers still retry.
func (r *removal) drain(ctx context.Context, cut bool) error {
	queues := slices.Concat(r.found.Work, r.found.Quarantine)
	if len(r.found.Work) > 0 {
		// Without, others publish into all work queues, and lanes may never be empty.
		queues = append(queues, r.found.Lanes...)
	}
	if r.Force || len(queues) == 0 {
		r.report.Drained = true
		return nil
	}
	seen, began := map[string]topology.Evidence{}, r.clock()
	for _, queue := range queues {
		state, err := r.port.Queue(ctx, queue.Name)
		if errors.Is(err, broker.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		seen[queue.Name] = state.Evidence
		switch {
		case state.Messages == nil:
			r.report.Uncounted = append(r.report.Uncounted, queue.Name)
		case state.Holds():
			r.report.Blocked = append(r.report.Blocked, Blocked{Queue: queue.Name, Messages: *state.Messages})
		}
	}
	var wait time.Duration
	look := topology.ObservationWindow{Began: began, Ended: r.clock(), Stamps: r.State.Stamps}
	r.report.Retiring, r.report.Drained, wait = topology.Drain(r.State.Retiring, seen, cut, look, r.Waits)
	if !r.report.Drained {
		r.report.RequeueAfter = wait
	}
	return nil
}

// takeDown goes one stage further, now that nobody consumes: lanes, then the work queues that they lead to, then those of
// the quarantined messages, which come from both, then those of replays, of which messages go back to the failure queue, then that, then the rest.
func (r *removal) takeDown(ctx context.Context) error {
	r.report.Drained = true
	r.report.Retiring = nil
	if err := r.all(ctx, policyDeletions(r.found.Released)); err != nil {
		return err
	}
	f := &r.found
	for _, stage := range [][]topology.QueueState{f.Lanes, f.Work, f.Quarantine, f.Staged, f.Logs, f.Failure} {
		if len(stage) == 0 {
			continue
		}
		gone, err := r.retireStage(ctx, stage)
		if err != nil || !gone {
			return err
		}
	}
	return r.dropRest(ctx)
}

// retireStage takes the queues of one stage a step further; gone is true when none of them is left.
func (r *removal) retireStage(ctx context.Context, stage []topology.QueueState) (gone bool, err error) {
	if r.Force || topology.IsLog(stage[0].Queue, r.Prefix) {
		return r.dropQueues(ctx, stage)
	}
	states := map[string]v1alpha1.Retirement{}
	for _, state := range r.State.Retiring {
		states[state.Queue] = state
	}
	waits := r.Waits
	waits.Grace = 0
	retirer := &retirer{port: r.port, owner: r.Owner, prefix: r.Prefix, clock: r.clock, stamps: r.State.Stamps}
	for _, queue := range stage {
		state, known := states[queue.Name]
		if !known {
			state = v1alpha1.Retirement{Queue: queue.Name}
		}
		left := false
		switch {
		case err != nil:
		case r.holds(queue):
			// Its way in stays until somebody has emptied it.
			r.report.Blocked = append(r.report.Blocked, Blocked{Queue: queue.Name, Messages: *queue.Messages})
			state = v1alpha1.Retirement{Queue: queue.Name, Since: state.Since, Messages: queue.Messages}
			retirer.wait = soonest(retirer.wait, waits.Empty)
		default:
			state, left, err = retirer.step(ctx, state, waits)
		}
		if !left {
			r.report.Retiring = append(r.report.Retiring, state)
		}
	}
	r.take(retirer)
	return len(r.report.Retiring) == 0, err
}

// holds is true for a failure queue with messages in it, and for one of a replay, which somebody may still fill.
func (r *removal) holds(queue topology.QueueState) bool {
	role := topology.RoleOf(queue.Queue)
	return (role == topology.RoleFailure || role == topology.RoleReplay) && queue.Holds()
}

func (r *removal) take(retirer *retirer) {
	r.report.Steps = append(r.report.Steps, retirer.steps...)
	r.report.Failures = append(r.report.Failures, retirer.failures...)
	r.report.Blocked = append(r.report.Blocked, retirer.blocked...)
	r.report.Uncounted = append(r.report.Uncounted, retirer.uncounted...)
	r.report.RequeueAfter = soonest(r.report.RequeueAfter, retirer.wait)
	r.report.Created = without(r.report.Created, retirer.gone)
}

// dropQueues deletes queues with the messages in them.
func (r *removal) dropQueues(ctx context.Context, queues []topology.QueueState) (gone bool, err error) {
	steps := make([]topology.Step, len(queues))
	for i, queue := range queues {
		steps[i] = deletion(queue.Name)
	}
	if err := r.port.announce(ctx, steps...); err != nil {
		return false, err
	}
	gone = true
	for i, queue := range queues {
		step := steps[i]
		failures := len(r.report.Failures)
		if err := r.note(step, r.port.DeleteQueue(ctx, queue.Name, false, false)); err != nil {
			return false, err
		}
		if len(r.report.Failures) > failures {
			gone = false
			continue
		}
		r.report.Created = without(r.report.Created, []string{step.Ref().String()})
	}
	return gone, nil
}

// dropRest deletes what holds no messages. An exchange that others have bound to stays.
func (r *removal) dropRest(ctx context.Context) error {
	bindings, policies := deletionsOf(r.found.Bindings), policyDeletions(r.found.Policies)
	steps := slices.Concat(bindings, policies)
	for _, name := range r.found.Exchanges {
		steps = append(steps, exchangeDeletion(name))
	}
	if err := r.port.announce(ctx, steps...); err != nil {
		return err
	}
	if err := r.all(ctx, bindings); err != nil {
		return err
	}
	for _, name := range r.found.Exchanges {
		if err := r.dropExchange(ctx, name); err != nil {
			return err
		}
	}
	if err := r.all(ctx, policies); err != nil {
		return err
	}
	if len(r.report.Failures) > 0 {
		return nil
	}
	return r.conclude(ctx)
}

// conclude looks whether really nothing is left: somebody may have made something while the deletion was on its way.
func (r *removal) conclude(ctx context.Context) error {
	observed, err := r.port.Observe(ctx)
	if err != nil {
		return err
	}
	rest := r.belongings(observed)
	if rest.Leaves != "" {
		ref := topology.Ref{Kind: topology.KindExchange, Name: compile.Names{Prefix: r.Prefix}.Failed()}
		r.report.Left = append(r.report.Left, topology.Finding{
			Object: ref, Message: "it is kept, with the failure queue, because queue " + rest.Leaves + " dead-letters to it",
		})
	}
	for _, queue := range rest.Pinned {
		r.report.Left = append(r.report.Left, topology.Finding{
			Object: topology.Ref{Kind: topology.KindQueue, Name: queue},
			Message: "it was the failure queue and is not Redrive's: its RabbitMQ policy is kept, so that no other one drops its messages; " +
				"delete the policy when you need it no more",
		})
	}
	rest.Exchanges = slices.DeleteFunc(rest.Exchanges, func(name string) bool {
		return slices.ContainsFunc(r.report.Left, func(left topology.Finding) bool { return left.Object.Name == name })
	})
	switch r.report.Awaited = r.port.awaited(); {
	case !rest.Empty():
		r.report.RequeueAfter, r.report.Awaited = again, 0
	case r.report.Awaited > 0:
		r.report.RequeueAfter = r.report.Awaited
	default:
		r.report.Done = true
	}
	return nil
}

func (r *removal) dropExchange(ctx context.Context, name string) error {
	ref := topology.Ref{Kind: topology.KindExchange, Name: name}
	err := r.port.DeleteExchange(ctx, name)
	if errors.Is(err, broker.ErrConflict) {
		r.report.Left = append(r.report.Left, topology.Finding{Object: ref, Message: "it is kept because others have bound to it"})
		return nil
	}
	if err == nil {
		r.report.Created = without(r.report.Created, []string{ref.String()})
	}
	return r.note(exchangeDeletion(name), err)
}
