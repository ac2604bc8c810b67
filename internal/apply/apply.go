// Package apply brings a vhost to what a Transport needs: observe, compare, write down what is about to be made, carry
// out, report. It also takes a Transport's objects away again. The operator and the command line share it.
package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// Port is the broker as this package needs it; *broker.Client is one.
type Port interface {
	// Observe returns a snapshot of the vhost; it may be some seconds old.
	Observe(ctx context.Context) (topology.Observed, error)
	// Apply carries out one step; existed is true where what was to be created was there already.
	Apply(ctx context.Context, step topology.Step) (existed bool, err error)
	// Queue and Bindings read one queue, fresh from the broker. Queue gives broker.ErrNotFound where it does not exist.
	Queue(ctx context.Context, name string) (topology.QueueState, error)
	Bindings(ctx context.Context, queue string) ([]topology.Binding, error)
	// DeleteQueue and DeleteExchange take it for success that the object is not there.
	DeleteQueue(ctx context.Context, name string, ifEmpty, ifUnused bool) error
	DeleteExchange(ctx context.Context, name string) error
}

// Input of a run.
type Input struct {
	Desired topology.Objects
	State   State
	// Published are the configurations of the workers that are in force.
	Published []compile.Config
	// Follows tells whether all workers are known to consume a work queue and its stand-in as they are to. nil stands for
	// nobody who consumes.
	Follows func(queue string, reads compile.Reading) bool
	// Others are deletions by other Transports on the same vhost that may still be carried out: what they delete is not made either.
	Others []v1alpha1.Deletion
	Waits  topology.Waits
	Now    time.Time
	// WriteDeletions stores the list of deletions that may still be carried out. It is called before one is sent, and none is where it
	// fails. Where it is nil the list is in the report only.
	WriteDeletions func(context.Context, []v1alpha1.Deletion) error
}

// retiring are the names of the queues on their way out.
func (input *Input) retiring() []string {
	names := make([]string, len(input.State.Retiring))
	for i, state := range input.State.Retiring {
		names[i] = state.Queue
	}
	return names
}

// OvertakenError says that somebody makes the same objects at the same time. Whoever that is, another operator for the
// same Transport or another Transport, shows when the broker is observed again.
type OvertakenError struct{ Object topology.Ref }

// Error names the object.
func (e *OvertakenError) Error() string {
	return fmt.Sprintf("%s %s was just created by another client; retrying", e.Object.Kind, e.Object.Name)
}

// BrokerChangedError says that the connection leads to another broker or vhost than the objects stand on.
type BrokerChangedError struct {
	Want v1alpha1.BrokerIdentity
	Got  topology.Identity
	// Nodes are those of the cluster to which it leads.
	Nodes []string
}

// Error names both.
func (e *BrokerChangedError) Error() string {
	text := fmt.Sprintf("the objects stand on cluster %q, vhost %q; the Secret now leads to cluster %q, vhost %q",
		e.Want.Cluster, e.Want.VHost, e.Got.Cluster, e.Got.VHost)
	switch {
	case topology.IdentityOf(e.Want).Is(e.Got):
		text += fmt.Sprintf(", which has the ID of the first and none of its nodes (%s; those of the first are %s): its definitions were imported; "+
			"where the first is lost and this one takes its place, take status.broker.nodes away",
			strings.Join(e.Nodes, ", "), strings.Join(e.Want.Nodes, ", "))
	case e.Want.Cluster == e.Got.Cluster && e.Want.VHost == e.Got.VHost:
		text += fmt.Sprintf(", which is another one of that name (its ID is %s, and was %s); where the first is lost and this one takes its "+
			"place, take status.broker.clusterID away", e.Got.ClusterID, e.Want.ClusterID)
	}
	return text
}

// Failure is a step that the broker refused; the run went on without it.
type Failure struct {
	Step topology.Step
	Err  error
}

// Blocked is a queue that is to be deleted and holds messages.
type Blocked struct {
	Queue    string
	Messages int64
}

// String is the queue with the number of its messages.
func (b Blocked) String() string { return fmt.Sprintf("%s (%d)", b.Queue, b.Messages) }

// QueueCount is a queue with its counts, for status and tables.
type QueueCount struct {
	Name string
	Role topology.Role
	// Messages in any state; nil while the broker has not counted them.
	Messages                  *int64
	Ready, Unacked, Consumers int64
	// Expired messages of a lane that wait to leave it.
	Expired int64
	// Published and Acked are the broker's counters since it runs: of what clients published, and of what consumers settled.
	Published, Acked int64
}

// Report says what a run did and found.
type Report struct {
	Identity topology.Identity
	// Steps that were carried out, in their order; none where nothing differed.
	Steps []topology.Step
	// Failures are steps that the broker refused, and Skipped the steps that were not tried because of them.
	Failures []Failure
	Skipped  []topology.Step
	// Wanted is that of the Difference: what is to be there, as far as it can be.
	Wanted topology.Objects
	// Conflicts, Withheld, Problems and Warnings are those of the Difference.
	Conflicts []topology.Conflict
	Withheld  []topology.Withheld
	Problems  []topology.Finding
	Warnings  []topology.Finding
	// Spared are those of Warnings about queues that this first run has found and added to Adopted.
	Spared []topology.Finding
	// Touched are the queues whose policy was changed so that their expired messages leave them.
	Touched []string
	// Created, Adopted, Retiring, Migrations, Deletions, Begun and Memory are the state to keep for the next run.
	Created    []string
	Adopted    []string
	Retiring   []v1alpha1.Retirement
	Migrations []v1alpha1.Migration
	Deletions  []v1alpha1.Deletion
	Begun      bool
	Memory
	// StandIns says of each work queue that is being migrated how the workers are to consume it and its stand-in from now on.
	StandIns map[string]compile.Standin
	// Disordered are the Strict work queues, and their stand-ins, whose order the broker would not keep: workers must not consume them.
	Disordered []string
	// Leaving are the work and quarantine queues that are no longer wanted; who consumes them is to empty them.
	Leaving []string
	// Blocked are queues that are no longer wanted and are not deleted because of their messages.
	Blocked []Blocked
	// Queues are the desired queues that exist, stand-ins and quarantine queues that are about to go, with their counts.
	Queues []QueueCount
	// RequeueAfter is when the next step of a queue on its way out is due; zero where nothing is.
	RequeueAfter time.Duration
}

// There are the work queues that exist.
func (r Report) There() (names []string) {
	for i := range r.Queues {
		if r.Queues[i].Role == topology.RoleWork {
			names = append(names, r.Queues[i].Name)
		}
	}
	return names
}

// Converged is true when everything that can be done is done, and no queue is on its way out.
func (r Report) Converged() bool {
	return len(r.Failures)+len(r.Skipped)+len(r.Conflicts)+len(r.Problems)+len(r.Retiring)+len(r.Migrations) == 0
}

// KeepsWorkers is true where the broker refused a step on which a new configuration of the workers may rely. What was only to be taken away may stay,
// unless it is part of a migration: whoever gives a queue of their own this Transport's mark would keep the workers from every change of the spec.
func (r Report) KeepsWorkers() bool {
	makes := func(step topology.Step) bool { return !deletes(step) && !step.IsUnproven() }
	return slices.ContainsFunc(r.Failures, func(f Failure) bool { return makes(f.Step) || r.migrates(f.Step) }) || slices.ContainsFunc(r.Skipped, makes)
}

// migrates is true for a step on a queue, or on a way into one, that is being migrated.
func (r Report) migrates(step topology.Step) bool {
	queue := step.Ref().Name
	if step.Binding != nil {
		queue = step.Binding.Destination
	}
	return slices.ContainsFunc(r.Migrations, func(m v1alpha1.Migration) bool { return m.Queue == queue || m.Standin == queue })
}

// Unreachable is a quarantine queue into which nothing leads yet, and of which a worker is to be told anew: one of its next configuration, for a work
// queue that it consumes with another one, or none, by its last. What it put there would go to the failure queue untried. It is empty where there is
// none.
func (r Report) Unreachable(last, next compile.Config) string {
	for _, queue := range next.Queues {
		if queue.Quarantine != "" && last.ConsumesWithout(queue) && r.lacksWayInto(queue.Quarantine) {
			return queue.Quarantine
		}
	}
	return ""
}

// Holds are the work queues that workers with a configuration are not to consume, each with the reason: Strict ones whose order the broker would not
// keep, and new ones to which nothing leads back from the lanes yet, or nothing into their quarantine queues: what is retried, or delivered again, would end
// in the failure queue. What one of the published configurations consumes is not new.
func (r Report) Holds(config compile.Config, published []compile.Config) map[string]string {
	holds, cutOff := map[string]string{}, r.withoutWayBack(config.Exchanges.Return)
	var held map[string]bool
	for _, queue := range config.Queues {
		if queue.Strict != "" && slices.ContainsFunc(r.Disordered, func(name string) bool { return name == queue.Name || name == queue.Standin }) {
			holds[queue.Name] = compile.HoldDisordered
			continue
		}
		if !cutOff[queue.Name] && (queue.Quarantine == "" || !r.lacksWayInto(queue.Quarantine)) {
			continue
		}
		if held == nil {
			held = compile.Held(published)
		}
		if !held[queue.Name] {
			holds[queue.Name] = compile.HoldCutOff
		}
	}
	return holds
}

// withoutWayBack are the work queues to which the lanes do not lead yet. While one is migrated they may lead to its stand-in.
func (r Report) withoutWayBack(from string) map[string]bool {
	queues := map[string]bool{}
	for _, way := range r.Unmade() {
		if _, migrates := r.StandIns[way.Destination]; !migrates && way.Source == from {
			queues[way.Destination] = true
		}
	}
	return queues
}

// lacksWayInto is true where a binding to a queue is not made yet.
func (r Report) lacksWayInto(queue string) bool {
	return slices.ContainsFunc(r.Unmade(), func(b topology.Binding) bool { return b.Destination == queue })
}

// Unmade are the bindings that the run was to make and did not try: those that are withheld, and those that are left out because of others, as all are
// that lead into a queue without a count.
func (r Report) Unmade() (bindings []topology.Binding) {
	for _, withheld := range r.Withheld {
		bindings = append(bindings, withheld.Binding)
	}
	for _, step := range r.Skipped {
		if step.Action == topology.ActionCreate && step.Binding != nil {
			bindings = append(bindings, *step.Binding)
		}
	}
	return bindings
}

// Prepared is a run that is decided and not begun.
type Prepared struct {
	Difference topology.Difference
	// Plan is what will be written at once. Queues on their way out are no part of it.
	Plan []topology.Step
	// Created is the state's list with what will be made without an owner mark. It is to be stored before CarryOut.
	Created []string
	// Grew is true where Created holds what the state's list did not.
	Grew bool
	// Kept are queues that are not desired and never deleted, as Ref strings, with a mark that says otherwise: those that were adopted, and
	// those that are spared. Who stores that a run has begun before CarryOut is to store these among the adopted.
	Kept []string
	// Spared are queues of which nobody knows whether they were adopted: it is the first run.
	Spared []topology.Finding

	input    Input
	observed topology.Observed
	// consumed are the queues, quarantine queues too, that a published configuration names.
	consumed []string
	clock    clock
	// age of what was observed when the clock began.
	age time.Duration
	// known is the state's list as it is now.
	known map[string]time.Time
}

// Prepare compares and plans; it changes nothing. The error is a *BrokerChangedError.
func Prepare(input Input, observed topology.Observed) (Prepared, error) {
	if err := checkIdentity(input.State.Broker, observed); err != nil {
		return Prepared{}, err
	}
	kept := keptOf(input, observed)
	var spared []topology.Finding
	if !input.State.Begun {
		for _, queue := range topology.SharedQueues(input.Desired, observed) {
			if ref := queue.Ref().String(); !slices.Contains(kept, ref) {
				kept, spared = append(kept, ref), append(spared, queue.Kept())
			}
		}
	}
	observed = observed.Disown(input.Desired.Owner, kept)
	consumed := compile.NamedBy(input.Published)
	difference := topology.DiffSince(input.Desired, observed, topology.Past{
		Created: input.State.Created, Migrations: input.State.Migrations, Consumed: consumed, Held: compile.Held(input.Published),
		Follows: input.Follows, Doubtful: input.doubtful(observed.Age()), Retiring: input.retiring(),
	})
	difference.Warnings = append(difference.Warnings, spared...)
	created := without(stillThere(input, observed), refTexts(difference.Adopted))
	grew := false
	for _, ref := range difference.Unmarked {
		if !slices.Contains(created, ref.String()) {
			created = append(created, ref.String())
			grew = true
		}
	}
	return Prepared{
		Difference: difference, Plan: topology.Plan(difference), Created: created, Grew: grew,
		Kept: kept, Spared: spared, input: input, observed: observed, consumed: consumed, clock: clockFrom(input.Now), age: observed.Age(),
		known: knownSince(input.State.Known, difference.Wanted, observed, input.Now),
	}, nil
}

// keptOf are the adopted queues that left the spec and carry our mark, because the Transport made them once. One that a list lacks may be there all the
// same: forgotten, it would be taken for ours by the next list.
func keptOf(input Input, observed topology.Observed) []string {
	var kept []string
	for _, ref := range input.State.Adopted {
		name, isQueue := strings.CutPrefix(ref, topology.Ref{Kind: topology.KindQueue}.String())
		state, listed := observed.Queues[name]
		if isQueue && !desires(input.Desired, name) && (!listed || state.Arguments.Owner() == input.Desired.Owner) {
			kept = append(kept, ref)
		}
	}
	return kept
}

func refTexts(refs []topology.Ref) []string {
	texts := make([]string, len(refs))
	for i, ref := range refs {
		texts[i] = ref.String()
	}
	return texts
}

// stillThere is the list of created objects without those that are not wanted, and not there as we made them: whoever makes one of that
// name is its owner.
func stillThere(input Input, observed topology.Observed) []string {
	names := map[string]bool{}
	for _, exchange := range input.Desired.Exchanges {
		names[topology.Ref{Kind: topology.KindExchange, Name: exchange.Name}.String()] = true
	}
	for _, queue := range input.Desired.Queues {
		names[topology.Ref{Kind: topology.KindQueue, Name: queue.Name}.String()] = true
	}
	for name, exchange := range observed.Exchanges {
		if topology.Unmarked(input.Desired.Prefix, topology.KindExchange, exchange.Arguments) {
			names[topology.Ref{Kind: topology.KindExchange, Name: name}.String()] = true
		}
	}
	for name, queue := range observed.Queues {
		if topology.Unmarked(input.Desired.Prefix, topology.KindQueue, queue.Arguments) {
			names[topology.Ref{Kind: topology.KindQueue, Name: name}.String()] = true
		}
	}
	for _, name := range input.retiring() {
		if _, listed := observed.Queues[name]; !listed {
			names[topology.Ref{Kind: topology.KindQueue, Name: name}.String()] = true // until it has been asked for alone
		}
	}
	return slices.DeleteFunc(slices.Clone(input.State.Created), func(created string) bool { return !names[created] })
}

// Once runs from the observation to the report. record stores the list of created objects; it is called only where the
// list grew, before anything is made. Where the error is not nil the run ended early; the report holds what was done
// until then, and its Created, Adopted and Retiring are to be kept all the same.
func Once(ctx context.Context, port Port, input Input, record func(context.Context, []string) error) (Report, error) {
	state := input.State
	unchanged := Report{
		Created: state.Created, Adopted: state.Adopted, Retiring: state.Retiring, Migrations: state.Migrations, Deletions: state.Deletions,
		Begun: state.Begun, Memory: state.Memory,
	}
	began := time.Now()
	observed, err := port.Observe(ctx)
	if err != nil {
		return unchanged, err
	}
	input.Now = input.Now.Add(time.Since(began)) // what is made now is no older than this
	unchanged.Identity = observed.Identity
	prepared, err := Prepare(input, observed)
	if err != nil {
		return unchanged, err
	}
	if prepared.Grew {
		if err := record(ctx, prepared.Created); err != nil {
			return unchanged, fmt.Errorf("write down what is to be created: %w", err)
		}
	}
	return prepared.CarryOut(ctx, port)
}

func checkIdentity(want *v1alpha1.BrokerIdentity, got topology.Observed) error {
	if want == nil || got.StandsOn(*want) {
		return nil
	}
	return &BrokerChangedError{Want: *want, Got: got.Identity, Nodes: got.Nodes}
}

// ends is true for errors after which no further step can succeed.
func ends(err error) bool {
	var unwritten *unwrittenError
	return errors.As(err, &unwritten) || errors.Is(err, broker.ErrUnreachable) || errors.Is(err, broker.ErrUnauthorized) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
