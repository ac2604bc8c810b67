package controllers

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/migration"
	"redrive.dev/redrive/internal/outcome"
	"redrive.dev/redrive/internal/quarantinepod"
	"redrive.dev/redrive/internal/status"
	"redrive.dev/redrive/internal/topology"
	"redrive.dev/redrive/internal/workload"
)

// applyTopology brings the broker to what the Transport needs. What must not be forgotten is in the status before
// anything is made: which broker it is, and which of the objects without a mark are ours. It sets Stalled with Invalid,
// BrokerChanged or Conflict, or Reconciling with BrokerUnreachable or BrokerRefused.
func (r *TransportReconciler) applyTopology(ctx context.Context, run *transportRun) error {
	t := run.transport
	needs := r.needs(run)
	if err := run.weigh(ctx, len(needs.Lanes)+len(needs.HighLanes)); err != nil {
		return err
	}
	desired, err := topology.Desired(t, needs, r.owner(t))
	if err != nil {
		return outcome.Stalled(v1alpha1.ReasonInvalid, err)
	}
	observed, prepared, err := r.prepare(ctx, run, desired)
	if err != nil {
		return brokerError(err)
	}
	t.Status.Broker = apply.IdentityOf(t.Status.Broker, &observed)
	t.Status.Created, t.Status.Adopted = prepared.Created, apply.MergeRefs(t.Status.Adopted, prepared.Kept)
	wanted := topology.Fingerprint(prepared.Difference.Wanted, prepared.Difference.Withheld)
	unchanged := t.Status.TopologyHash == wanted
	if len(prepared.Plan) > 0 {
		if !unchanged {
			// Until all is made nobody can tell what was never there from what somebody took away.
			t.Status.TopologyHash = ""
		}
		if err := run.status.WriteStatus(ctx); err != nil {
			return err
		}
	}
	if !prepared.Difference.Empty() {
		if err := outcome.CheckCurrent(ctx, r.Live, t); err != nil {
			return err
		}
	}
	run.report, err = prepared.CarryOut(ctx, run.port)
	r.memories.Keep(client.ObjectKeyFromObject(t), &run.report)
	r.memories.NoteSent(t, run.report.Deletions, r.Options.Waits.Request)
	r.reportTopology(ctx, run, prepared.Difference.Wanted.Queues, unchanged)
	migration.Report(run.status, &t.Status, run.report.Migrations, prepared.Difference.Migrations)
	if err != nil {
		return brokerError(err)
	}
	if len(run.report.Conflicts)+len(run.report.Failures)+len(run.report.Skipped) == 0 {
		t.Status.TopologyHash = wanted
	}
	run.observed = &observed
	run.followQueues()
	return judge(run)
}

// followQueues lets the workers consume what is migrated as it is to be, empty what they consumed and is not wanted any more, go on with what another
// group is to consume that has no pod yet, and leave alone what would lose its order. Those that were made for a former handler keep it.
func (run *transportRun) followQueues() {
	groups := run.compiled.Workers
	for i := range groups {
		groups[i] = groups[i].WithStandIns(run.report.StandIns)
	}
	run.groups = slices.Clone(groups)
	unserved := run.unserved()
	for i := range groups {
		if last, published := run.live.Config(workload.Name(run.transport, groups[i].Worker)); published {
			groups[i] = groups[i].WithHandedOver(&last, run.groups, unserved)
			groups[i] = groups[i].WithLeaving(last, run.report.Leaving)
			if workers := run.live.Deployments[workload.Name(run.transport, groups[i].Worker)]; workers != nil && !workload.HasRolledOut(workers, &groups[i]) {
				groups[i] = groups[i].WithFormerHandlers(&last)
			}
		}
		groups[i], _ = groups[i].Holding(run.holds(groups[i]))
	}
}

// holds are the queues of a worker group that it must not consume, with the reasons.
func (run *transportRun) holds(next compile.Config) map[string]string {
	holds := run.report.Holds(next, run.live.Configs())
	name := workload.Name(run.transport, next.Worker)
	last, published := run.live.Config(name)
	if workers := run.live.Deployments[name]; published && workers != nil && !workload.HasNoFormerPods(workers, &next) {
		maps.Copy(holds, next.NewToPods(&last))
	}
	return holds
}

// prepare looks at the broker and decides what is to be done there. Where something is in the way on a snapshot that may lack what
// other Transports have done since, it looks again; and also where a look finds queues that are to go, for it decides whose they are and takes their ways
// away, and where ways are swapped: whoever has bound a queue by the same key since would be the only one to get what comes meanwhile.
func (r *TransportReconciler) prepare(
	ctx context.Context, run *transportRun, desired topology.Objects,
) (observed topology.Observed, prepared apply.Prepared, err error) {
	t := run.transport
	state := apply.StateOf(t)
	state.Memory, state.Restarted = r.memories.Of(client.ObjectKeyFromObject(t)), run.restarted
	workers := r.followers(ctx, run)
	input := apply.Input{
		Desired: desired, State: state, Published: run.live.Configs(),
		Follows: func(queue string, reads compile.Reading) bool { return workers.Follow(ctx, queue, reads) },
		Waits:   r.Options.Waits, WriteDeletions: r.writeDeletions(run),
	}
	if input.Others, err = r.memories.DeletionsOfOthers(ctx, r.Client, t); err != nil {
		return observed, prepared, err
	}
	input.State.Doubts = r.memories.Doubt(client.ObjectKeyFromObject(t), slices.Concat(state.Deletions, input.Others))
	input.State.Stamps = r.memories.Stamp(client.ObjectKeyFromObject(t), state.Retiring, state.Migrations)
	for {
		if observed, err = run.port.Observe(ctx); err != nil {
			return observed, prepared, err
		}
		input.Now = time.Now() // not before: what is made is no older than this
		if prepared, err = apply.Prepare(input, observed); err != nil {
			return observed, prepared, err
		}
		difference := prepared.Difference
		obstructed := run.port.Behind() && len(difference.Conflicts)+len(difference.Problems) > 0
		decides := !run.port.IsOwn() && (input.State.BeginsToRetire(difference) || difference.Moves())
		if !obstructed && !decides || run.port.IsFresh() {
			if workers.Err != nil {
				run.partly(workers.Err)
			}
			run.awaited = workers.Awaited
			return observed, prepared, nil
		}
		run.port.Refresh()
	}
}

const (
	// mostLanes is how many lanes there are with those that published configurations name. Of these whoever may write ConfigMaps may make any
	// number; a plan has 128 at most.
	mostLanes = 1024
	// perWay is what a binding that a spec asks for takes in memory while it is looked at, in bytes.
	perWay = 1 << 10
	// costlyPause is when a Transport comes back for which there was no memory.
	costlyPause = 30 * time.Second
)

// weigh counts what follows from the spec, and from the lanes.
func (run *transportRun) weigh(ctx context.Context, lanes int) error {
	ways := 2 * lanes // a lane is a queue and a binding
	for i := range run.transport.Spec.Queues {
		queue := &run.transport.Spec.Queues[i]
		ways += len(queue.BindingKeys)
		for _, foreign := range queue.Bindings {
			ways += len(foreign.Keys)
		}
	}
	if err := run.weighed.TakeNow(ctx, perWay*ways); err != nil {
		return outcome.Waiting(v1alpha1.ReasonProgressing, costlyPause, fmt.Errorf("the Transport takes %d queues and bindings: %w", ways, err))
	}
	return nil
}

// needs of the topology, with all lanes that have to be on the broker: those of the new configuration, and those that a published one still names. So the
// way out of a lane begins when no configuration names it any more, however long publishing takes.
func (r *TransportReconciler) needs(run *transportRun) compile.Needs {
	needs := run.compiled.Needs
	for _, config := range run.live.Configs() {
		if len(needs.Lanes)+len(config.Lanes) > mostLanes {
			continue // its lanes go as those do that nobody names: once they are empty
		}
		needs.Lanes = needs.Lanes.With(config.Lanes)
		if config.HighLanes {
			needs.HighLanes = needs.HighLanes.With(config.Lanes)
		}
	}
	return needs
}

// reportTopology puts into the status what a run on the broker did and found, also one that ended early. wanted are the queues that are to be
// there, and unchanged is true where all that is wanted had been made before.
func (r *TransportReconciler) reportTopology(ctx context.Context, run *transportRun, wanted []topology.Queue, unchanged bool) {
	its, report, name := &run.transport.Status, run.report, client.ObjectKeyFromObject(run.transport)
	reportAdoption(run)
	its.Created, its.Adopted, its.Deletions = report.Created, report.Adopted, report.Deletions
	its.Retiring = r.counts.Retiring(name, its.Retiring, report.Retiring, time.Now())
	its.Queues = new(int32(len(run.transport.Spec.Queues))) //nolint:gosec // the schema allows 64
	its.Lanes = nil
	for _, lane := range run.compiled.LaneKeys() {
		its.Lanes = append(its.Lanes, lane.Key)
	}
	run.due = outcome.Sooner(run.due, report.RequeueAfter)
	run.warn(r.drift.Staying(name, slices.Concat(topology.Advice(run.transport), report.Warnings), time.Now()))
	if len(report.Blocked) > 0 {
		text := "queues are no longer in the spec and are kept while they hold messages: " +
			status.Listed(holding(its.Retiring, report.Blocked), apply.Blocked.String)
		if unread := run.unread(report.Blocked); len(unread) > 0 {
			text += fmt.Sprintf("; no worker reads %s: put them back into spec.queues until they are empty, or take the messages out", status.JoinedBy(", ", unread))
		}
		run.warnings = append(run.warnings, text)
	}
	r.reportSteps(ctx, run, unchanged)
	r.drift.See(name, quarantinepod.CountsOf(report.Queues), wanted)
	r.reportCounts(run)
}

// unread are those of some queues that no published configuration names, because it was deleted, or restored from a backup, or none of a group that has
// pods. Lanes empty by themselves.
func (run *transportRun) unread(blocked []apply.Blocked) []string {
	lanes := compile.NamesOf(run.transport).LanePrefix()
	var queues []string
	for _, queue := range blocked {
		if !strings.HasPrefix(queue.Queue, lanes) {
			queues = append(queues, queue.Queue)
		}
	}
	read := slices.DeleteFunc(run.live.Configs(), func(c compile.Config) bool {
		return !run.live.MayHavePods(run.transport, workload.Name(run.transport, c.Worker))
	})
	return compile.Unread(queues, read)
}

// judge turns what could not be done on the broker into an error. A conflict keeps the workers as they are: whoever owns
// the object in question must not get their messages.
func judge(run *transportRun) error {
	report := run.report
	if len(report.Conflicts) > 0 {
		return outcome.Stalled(v1alpha1.ReasonConflict, errors.New(status.Listed(report.Conflicts, topology.Conflict.String)))
	}
	if len(report.Failures) > 0 {
		err := refused(report.Failures)
		if report.KeepsWorkers() {
			return err
		}
		run.partly(err)
	}
	if queue := run.unreachable(); queue != "" {
		return outcome.Waiting(v1alpha1.ReasonProgressing, report.RequeueAfter, fmt.Errorf("workers keep their configuration, because nothing leads into "+
			"queue %s yet, where they would put what is delivered again: %s", queue, status.Listed(report.Problems, findingText)))
	}
	if len(report.Problems) > 0 {
		run.partly(outcome.Waiting(v1alpha1.ReasonProgressing, 0, errors.New(status.Listed(report.Problems, findingText))))
	}
	if err := migration.Waiting(report, &run.transport.Status); err != nil {
		run.partly(err)
		if run.awaited != "" {
			run.partlyBeside(errors.New(run.awaited))
		}
	}
	return nil
}

// unreachable is a quarantine queue that keeps the configurations of workers from being published; empty where there is none.
func (run *transportRun) unreachable() string {
	for _, next := range slices.Concat(run.compiled.Workers, run.former()) {
		if last, published := run.live.Config(workload.Name(run.transport, next.Worker)); published {
			if queue := run.report.Unreachable(last, next); queue != "" {
				return queue
			}
		}
	}
	return ""
}

// writeDeletions writes down what is about to be deleted. The write fails where anybody has written the Transport since it was read, so
// that none but the operator that works on it deletes; where nothing is to be written, the API server is asked.
func (r *TransportReconciler) writeDeletions(run *transportRun) func(context.Context, []v1alpha1.Deletion) error {
	return func(ctx context.Context, deletions []v1alpha1.Deletion) error {
		t := run.transport
		before := t.ResourceVersion
		t.Status.Deletions = deletions
		r.memories.NoteSent(t, deletions, r.Options.Waits.Request)
		if err := run.status.WriteStatus(ctx); err != nil || t.ResourceVersion != before {
			return err
		}
		return outcome.CheckCurrent(ctx, r.Live, t)
	}
}

// brokerError tells what an error of the broker means for the Transport.
func brokerError(err error) error {
	var moved *apply.BrokerChangedError
	var young *apply.TooYoungError
	switch {
	case errors.As(err, &young):
		return outcome.Waiting(v1alpha1.ReasonProgressing, young.After, err)
	case errors.As(err, &moved):
		return outcome.Stalled(v1alpha1.ReasonBrokerChanged, fmt.Errorf(
			"%w; nothing was changed. Restore the Secret, or delete the Transport with deletionPolicy Retain and create it again", err))
	case errors.Is(err, broker.ErrUnreachable):
		return outcome.Transient(v1alpha1.ReasonBrokerUnreachable, err)
	case errors.Is(err, broker.ErrUnauthorized), errors.Is(err, broker.ErrForbidden), errors.Is(err, broker.ErrNotFound),
		errors.Is(err, broker.ErrRefused), errors.Is(err, broker.ErrConflict):
		return outcome.Transient(v1alpha1.ReasonBrokerRefused, err)
	default:
		return err
	}
}

// refused tells of the steps that the broker refused.
func refused(failures []apply.Failure) error {
	return outcome.Transient(v1alpha1.ReasonBrokerRefused, errors.New(status.Listed(failures, failureText)))
}

// failureText says what was refused. A queue that the login may not take away may be somebody else's, who gave it this Transport's mark: rights on it,
// or on all names, are not the cure then.
func failureText(f apply.Failure) string {
	text := f.Err.Error()
	if f.Step.Action != topology.ActionDelete || f.Step.Policy != nil || !errors.Is(f.Err, broker.ErrForbidden) {
		return text
	}
	object := f.Step.Ref()
	if f.Step.Binding != nil {
		object = topology.Ref{Kind: topology.KindQueue, Name: f.Step.Binding.Destination}
	}
	return text + fmt.Sprintf("; if %s %s is this Transport's, grant the login rights on the names of this step; if somebody else has made it with this "+
		"Transport's mark, have it deleted", object.Kind, object.Name)
}

func findingText(f topology.Finding) string { return f.String() }

func stepsText(steps []topology.Step) string {
	return status.Listed(steps, func(step topology.Step) string {
		return fmt.Sprintf("%s %s %s", step.Action, step.Ref().Kind, step.Ref().Name)
	})
}

// reportCounts shows how many messages the queues hold: exactly as metrics, and roughly in status.failed.
func (r *TransportReconciler) reportCounts(run *transportRun) {
	name := client.ObjectKeyFromObject(run.transport)
	r.queueMetrics.Set(name, run.report.Queues, time.Now())
	var bound *int64
	if failure := run.transport.Spec.Failure; failure != nil {
		bound = failure.DropOldestAfter
	}
	r.dropMetrics.Set(name, bound, run.report.Queues, time.Now())
	for _, step := range run.report.Steps {
		if step.Action == topology.ActionCreate && step.Queue != nil && step.Queue.Role == topology.RoleFailure {
			run.transport.Status.Failed = new(int64(0)) // the broker counts it only later, but it has just been made
		}
	}
	for _, queue := range run.report.Queues {
		if queue.Role == topology.RoleFailure && queue.Messages != nil {
			run.transport.Status.Failed = r.counts.Failed(name, run.transport.Status.Failed, *queue.Messages, time.Now())
		}
	}
}

// holding are the queues with messages as status.retiring tells of them, so that a text with them changes no more often; those
// that were just seen where it knows of none.
func holding(retiring []v1alpha1.Retirement, seen []apply.Blocked) []apply.Blocked {
	var holding []apply.Blocked
	for _, state := range retiring {
		if state.Messages != nil && *state.Messages > 0 {
			holding = append(holding, apply.Blocked{Queue: state.Queue, Messages: *state.Messages})
		}
	}
	if len(holding) == 0 {
		return seen
	}
	return holding
}
