package topology

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// Past is what a Transport remembers of earlier looks at its broker, and knows of its workers.
type Past struct {
	// Created are the objects, as Ref strings, that it made and that carry no owner mark.
	Created []string
	// Migrations are the queues that it exchanges.
	Migrations []v1alpha1.Migration
	// Consumed are the queues that a published configuration of the workers names, and Held those on the broker whose messages these workers take, which
	// may be stand-ins.
	Consumed []string
	Held     map[string]bool
	// Follows tells whether all workers are known to consume a work queue and its stand-in as they are to. nil stands for
	// nobody who consumes.
	Follows func(queue string, reads compile.Reading) bool
	// Doubtful are the objects, as Ref strings, that a request whose answer nobody knows may still delete, each with the
	// time until when.
	Doubtful map[string]time.Time
	// Retiring are the queues on their way out that nobody has found gone yet.
	Retiring []string
}

// Migration is the migration of one work queue, as far as it is now.
type Migration struct {
	Queue   string                 `json:"queue"`
	Standin string                 `json:"standin"`
	Step    v1alpha1.MigrationStep `json:"step"`
	// Reads says which of the two queues the workers are to consume.
	Reads compile.Reading `json:"reads,omitempty"`
	// Fields are what differs; empty once the queue that differed is gone.
	Fields []FieldChange `json:"fields,omitempty"`
	// Doubling are the bindings that cannot be swapped without a moment in which both queues get a message.
	Doubling []Binding `json:"doubling,omitempty"`
	// Renames is true where the stand-in is the queue of a former name.
	Renames bool `json:"renames,omitempty"`
	// Drains is the queue that the workers empty in this step, and that is then deleted; empty in other steps.
	Drains string `json:"drains,omitempty"`
	// swaps lead ways from one queue to the other, in their order.
	swaps []Step
}

// Moves is true where ways are led from one queue to another, or a queue is emptied that they led to: by an old list both queues might lose theirs.
func (d Difference) Moves() bool {
	return slices.ContainsFunc(d.Migrations, func(m Migration) bool { return len(m.swaps) > 0 || m.Drains != "" })
}

// AtFormerEnd is the way that a step would make to the new end of a migration, at its former one. It is false where no migration leads ways there.
func (d Difference) AtFormerEnd(step Step) (way Binding, is bool) {
	if step.Action != ActionCreate || step.Binding == nil || step.Binding.ToExchange {
		return way, false
	}
	for _, m := range d.Migrations {
		switch {
		case m.Step == v1alpha1.MigrationDivert && step.Binding.Destination == m.Standin:
			return leadingTo(*step.Binding, m.Queue), true
		case m.Step == v1alpha1.MigrationRestore && step.Binding.Destination == m.Queue:
			return leadingTo(*step.Binding, m.Standin), true
		}
	}
	return way, false
}

// StepsLeft says what the migration still has before it, for people.
func (m Migration) StepsLeft() []string {
	all := []struct {
		step v1alpha1.MigrationStep
		text string
	}{
		{v1alpha1.MigrationPrepare, "queue " + m.Standin + " is made, and all workers learn of it"},
		{v1alpha1.MigrationDivert, "new messages and retries go to " + m.Standin},
		{v1alpha1.MigrationDrain, "workers empty " + m.Queue + ", and it is deleted"},
		{v1alpha1.MigrationRecreate, "queue " + m.Queue + " is made, as the spec asks for"},
		{v1alpha1.MigrationRestore, "new messages and retries go to " + m.Queue},
		{v1alpha1.MigrationCleanup, "workers empty " + m.Standin + ", and it is deleted"},
	}
	var left []string
	begun := false
	for _, one := range all {
		if begun = begun || one.step == m.Step; begun {
			left = append(left, fmt.Sprintf("%s: %s", one.step, one.text))
		}
	}
	return left
}

// StandinFor names the work queue that a queue of ours stands in for; empty for queues that are none. The name has to say so as well: whoever may declare
// queues of other names can give them our arguments, and what leads into a stand-in is led into its work queue.
func StandinFor(queue Queue) string {
	work, _ := queue.Arguments[argMigrationOf].(string)
	if queue.Name != (compile.Names{}).StandinQueue(work) {
		return ""
	}
	return work
}

// migrate rewrites what is desired for each work queue that is being migrated, as its step asks for.
func (d *differ) migrate(past Past) {
	for _, want := range slices.Clone(d.desired.Queues) {
		if want.Role != RoleWork || want.Adopt {
			continue
		}
		if e := d.migrationOf(want, past); e != nil {
			e.apply()
			d.out.Migrations = append(d.out.Migrations, e.Migration)
		}
	}
	clear(d.queues)
	for _, queue := range d.desired.Queues {
		d.queues[queue.Name] = queue.Role
	}
}

// holdMigrations leads nothing from one queue to another where what leaves a queue again would find no way on, or where another
// Transport uses the same prefix.
func (d *differ) holdMigrations() {
	if d.broken || d.taken {
		for i := range d.out.Migrations {
			d.out.Migrations[i].swaps = nil
		}
	}
}

// queueMigration is a work queue between two shapes.
type queueMigration struct {
	Migration

	d *differ
	// want is the queue as the spec asks for it, and standin the queue beside it.
	want, standin Queue
	// alien is true where a queue of the wanted name is not ours, and hostile where it cannot be used either: nothing is done to it.
	alien, hostile bool
	// remake is true where the queue is to be made in this step, bridged where all of the bridge stands, and written where the step is that of the
	// look before.
	remake, bridged, written bool
	// succeeds is true where the step of an earlier migration is still written down: no stand-in is made that would be taken for the one of that.
	succeeds bool
	// removes and creates swap ways over the bridge, and pairs the others.
	removes, creates, pairs []Step
	// ways are the desired bindings into the work queue, formers those by its former names, and bridge those by which the stand-in
	// gets what is unroutable.
	ways, formers, bridge []Binding
	// traces are bindings of the bridge, each of which remembers a way of somebody else.
	traces []Binding
}

// migrationOf is nil for a queue that is not migrated: it is as it is wanted, or not ours to change.
func (d *differ) migrationOf(want Queue, past Past) *queueMigration {
	e := &queueMigration{d: d, want: want, Migration: Migration{Queue: want.Name, Standin: compile.Names{}.StandinQueue(want.Name)}}
	got, exists := d.observed.Queues[want.Name]
	beside, taken := d.observed.Queues[e.Standin]
	made := taken && beside.Arguments.Owner() == d.desired.Owner && StandinFor(beside.Queue) == want.Name
	ours := exists && e.judge(got, made)
	if former, there := d.formerOf(want); there && !made {
		e.Standin, e.Renames, beside, made = former.Name, true, former, true
	}
	if !made && (len(e.Fields) == 0 || !ours) || e.hostile && past.stepOf(want.Name) == "" {
		return nil // where that is a conflict, it is told, and the queue of a former name stays as it is
	}
	if taken && !made {
		d.conflict(standinConflict(e.Standin, want.Name), false)
		return nil
	}
	seen := MigrationObservation{Standin: made, Follows: func(reads compile.Reading) bool { return past.Follows == nil || past.Follows(want.Name, reads) }}
	seen.Untold = e.Renames && past.Held[e.Standin] && !slices.Contains(past.Consumed, want.Name)
	seen.Ordered = isSingle(want) || isSingle(got.Queue) || isSingle(beside.Queue)
	seen.Queue = e.likeness(exists, ours, past)
	seen.Alien = exists && !ours && !e.hostile
	e.standin = d.standinOf(want, seen.Ordered)
	if made {
		e.standin.Name, e.standin.Type, e.standin.Arguments = e.Standin, beside.Type, beside.Arguments
	}
	e.classifyBindings()
	e.findTraces(past.stepOf(want.Name))
	e.bridged = !slices.ContainsFunc(e.bridge, func(b Binding) bool { return !d.isObserved(b) })
	seen.Bridged = e.bridged
	seen.Away, seen.Home = e.allLead(want.Name, e.Standin), e.allLead(e.Standin, want.Name)
	last := past.stepOfPair(want.Name, e.Standin, seen.Home)
	e.Step, e.Reads, e.remake = Migrate(last, seen)
	e.written = e.Step == last
	e.succeeds = !made && last != "" && !e.written
	// Nobody is to look for a queue that must not be made yet.
	switch {
	case e.succeeds, !made && d.isDoubtful(Ref{Kind: KindQueue, Name: e.Standin}):
		e.Reads = compile.ReadsQueue
	case !exists && d.isDoubtful(Ref{Kind: KindQueue, Name: want.Name}):
		e.Reads = compile.ReadsStandin
	}
	return e
}

// judge tells how a queue of the wanted name differs, and whose it is. made is true where a stand-in of ours stands for it: that is made for our queues
// only, and a classic one that is to get another type, and of which nobody remembers that we made it (redrive run began anew, a status was restored), is
// ours by that.
func (e *queueMigration) judge(got QueueState, made bool) (ours bool) {
	claimed := e.d.isClaimed(got.Queue)
	e.Fields = compareQueue(e.want, got.Queue)
	ref := Ref{Kind: KindQueue, Name: e.Queue}
	if made && !claimed && len(e.Fields) > 0 && Unmarked(e.d.desired.Prefix, KindQueue, got.Arguments) && !slices.Contains(e.d.created, ref.String()) {
		e.d.created = append(slices.Clip(e.d.created), ref.String())
	}
	ours = !claimed && e.d.ours(ref, got.Arguments)
	e.alien, e.hostile = !ours, !ours && (claimed || len(e.Fields) > 0)
	return ours
}

// likeness is that of the queue of the wanted name. A list that lacks one which is emptied is not believed.
func (e *queueMigration) likeness(exists, ours bool, past Past) QueueMatch {
	switch {
	case e.hostile:
		return MatchNone // whatever it is like
	case len(e.Fields) > 0 && ours, !exists && slices.Contains(past.Retiring, e.Queue):
		return MatchOther
	case exists && len(e.Fields) == 0:
		return MatchEqual
	default:
		return MatchNone
	}
}

// stepOf is the step of a migration that was written down before; empty where none was.
func (p Past) stepOf(queue string) v1alpha1.MigrationStep {
	for _, known := range p.Migrations {
		if known.Queue == queue {
			return known.Step
		}
	}
	return ""
}

// stepOfPair is the step of the migration of a queue with a stand-in. Where that stand-in is the queue of a name to which the first was renamed, and back
// now, the two have changed their parts, and which of them has the older messages follows from the step of the renaming.
//
// home is true where all ways lead into the queue.
func (p Past) stepOfPair(queue, standin string, home bool) v1alpha1.MigrationStep {
	if step := p.stepOf(queue); step != "" {
		return step
	}
	for _, known := range p.Migrations {
		if known.Queue != standin || known.Standin != queue {
			continue
		}
		switch known.Step {
		case v1alpha1.MigrationPrepare, v1alpha1.MigrationDivert, v1alpha1.MigrationDrain:
			return v1alpha1.MigrationRestore
		case v1alpha1.MigrationRecreate, v1alpha1.MigrationRestore, v1alpha1.MigrationCleanup:
			if !home { // Otherwise nothing has come into the other one.
				return v1alpha1.MigrationDrain
			}
		}
	}
	return ""
}

// formerOf is the queue of a former name that still stands, or its stand-in, if only that does. The queue of the new name takes over from it as from a
// stand-in. One that stands in for another queue already gives its messages to that one.
func (d *differ) formerOf(want Queue) (QueueState, bool) {
	for _, former := range want.PreviousNames {
		got, exists := d.observed.Queues[former]
		if beside := d.observed.Queues[compile.Names{}.StandinQueue(former)]; !exists && StandinFor(beside.Queue) == former {
			got, exists = beside, true
		}
		name, standsFor := got.Name, StandinFor(got.Queue)
		ours := exists && d.ours(Ref{Kind: KindQueue, Name: name}, got.Arguments) && !d.isClaimed(got.Queue)
		elsewhere := standsFor != "" && standsFor != want.Name && standsFor != former
		if ours && !elsewhere && d.queues[name] == "" && RoleOf(got.Queue) == RoleWork {
			return got, true
		}
	}
	return QueueState{}, false
}

func isSingle(queue Queue) bool { return queue.Arguments[argSingleActive] == true }

func (d *differ) isClaimed(queue Queue) bool {
	_, claimed := d.claimOn(queue)
	return claimed
}

func standinConflict(standin, queue string) Conflict {
	return Conflict{
		Object: Ref{Kind: KindQueue, Name: standin}, Fields: []FieldChange{{Field: argMigrationOf, To: queue}},
		Remedy: "it would stand in for queue " + queue + ", which has to be migrated to other arguments: delete it once it is " +
			"empty, or rename one of the two",
	}
}

// standinOf is a queue of type Quorum whatever the work queue is: nothing that passes through it may get lost.
func (d *differ) standinOf(want Queue, single bool) Queue {
	arguments := Arguments{
		argQueueType:          TypeQuorum,
		argDeadLetterExchange: d.desired.ExchangeOf(RoleFailed),
		argDeadLetterStrategy: strategyAtLeastOnce,
		argOverflow:           overflowRejectPublish,
		argMigrationOf:        want.Name,
		OwnerArgument:         d.desired.Owner,
	}
	if single {
		arguments[argSingleActive] = true
	}
	return Queue{
		Name: compile.Names{}.StandinQueue(want.Name), Type: TypeQuorum, Durable: true, Arguments: arguments, Role: RoleWork,
		Strict: want.Strict,
	}
}

// apply makes desired what the step asks for.
func (e *queueMigration) apply() {
	if e.Step == v1alpha1.MigrationCleanup {
		e.keepCurrent()
		e.policies()         // Workers read it as the spec is now: it may have become Strict, or have more retries.
		e.Drains = e.Standin // which so is not wanted any more
		e.d.emptied = append(e.d.emptied, e.standin)
		return
	}
	if e.succeeds {
		e.keepCurrent()
		return
	}
	e.d.desired.Queues = append(e.d.desired.Queues, e.standin)
	e.d.desired.Bindings = slices.Concat(e.bridge, e.traces, e.d.desired.Bindings)
	e.policies()
	switch e.Step {
	case v1alpha1.MigrationPrepare:
		e.keepCurrent()
		e.Doubling = e.doubling()
	case v1alpha1.MigrationDivert:
		e.keepCurrent()
		e.lead(e.Queue, e.Standin)
	case v1alpha1.MigrationDrain:
		e.leave()
		e.lead(e.Queue, e.Standin)
		e.Drains = e.Queue
	case v1alpha1.MigrationRecreate:
		if _, exists := e.d.observed.Queues[e.Queue]; !e.remake {
			e.leave()
		} else if exists {
			e.keepCurrent() // The spec may have changed since it was created.
		}
		e.lead(e.Queue, e.Standin)
	case v1alpha1.MigrationRestore:
		e.keepCurrent()
		e.lead(e.Standin, e.Queue)
		if !e.bridged {
			e.removes, e.creates, e.pairs, e.Doubling = nil, nil, nil, nil // the bridge first
		}
	case v1alpha1.MigrationCleanup:
	}
	// All that leads into the one goes before anything leads into the other: clients may have bound a queue by the same way again.
	e.swaps = slices.Concat(e.removes, e.creates, e.pairs)
}

// keepCurrent keeps the queue from being a conflict, unless it is somebody else's. One that is not listed, and may be there all the same, is not made: as
// it is, nobody knows.
func (e *queueMigration) keepCurrent() {
	if e.hostile {
		return
	}
	state, exists := e.d.observed.Queues[e.Queue]
	if !exists {
		e.leave()
		return
	}
	got := state.Queue
	for i := range e.d.desired.Queues {
		if queue := &e.d.desired.Queues[i]; queue.Name == e.Queue {
			queue.Type, queue.Arguments = got.Type, got.Arguments
			queue.Durable, queue.AutoDelete, queue.Exclusive = got.Durable, got.AutoDelete, got.Exclusive
		}
	}
}

// leave lets the queue not be desired for now. Somebody else's stays a conflict, so that no policy for ours is written over it.
func (e *queueMigration) leave() {
	if e.hostile {
		return
	}
	e.d.desired.Queues = slices.DeleteFunc(e.d.desired.Queues, func(q Queue) bool { return q.Name == e.Queue })
}

// policies give the stand-in what the work queue has.
func (e *queueMigration) policies() {
	d, named := e.d, policyNamesOf(e.d.desired.Prefix)
	policy := Policy{ApplyTo: applyToQueues, Priority: workPriority, Definition: Arguments{keyDeliveryLimit: deliveryLimit}}
	if at := slices.IndexFunc(d.desired.Policies, func(p Policy) bool { return p.Name == named.queue(e.Queue) }); at >= 0 {
		maps.Copy(policy.Definition, d.desired.Policies[at].Definition)
	}
	policy.Name, policy.Pattern = named.queue(e.Standin), exactly(e.Standin)
	d.desired.Policies = append(d.desired.Policies, policy)
}
