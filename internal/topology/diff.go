package topology

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"redrive.dev/redrive/internal/compile"
)

// PolicyChange is a RabbitMQ policy that exists and is to be written again.
type PolicyChange struct {
	Policy Policy        `json:"policy"`
	Fields []FieldChange `json:"fields"`
}

// Withheld is a binding that is wanted and not made.
type Withheld struct {
	Binding Binding `json:"binding"`
	Reason  string  `json:"reason"`

	// keyed is true where it would get the messages of its key alone, of a direct exchange, and its queue is to be adopted and does not exist.
	keyed bool
}

// Difference is what lies between the desired and the observed objects.
type Difference struct {
	// Wanted are the desired objects, completed by what only the broker knows: how adopted queues are, and which policies of
	// ours others make needless.
	Wanted Objects
	// Missing objects, in the order of the desired ones, without bindings that are withheld.
	Missing Objects
	// Changed policies; everything else cannot be changed in place.
	Changed []PolicyChange
	// Conflicts are objects that only the user can put right.
	Conflicts []Conflict
	// Withheld bindings would lead messages into an object that is in conflict, or come from an exchange that cannot serve.
	Withheld []Withheld
	// Problems keep a part of the spec from working; the rest goes on.
	Problems []Finding
	// Warnings are about what works, but not as the user may believe.
	Warnings []Finding
	// Adopted objects are desired, existed before, and are not ours: they are used and never deleted.
	Adopted []Ref
	// Unmarked are missing objects that will carry no owner mark. That we make them must be written down before they are
	// made, or nobody could tell later whose they are.
	Unmarked []Ref

	// ExtraQueues are ours and not desired any more. They are retired in steps.
	ExtraQueues []QueueState
	// ExtraExchanges are ours and not desired any more. They can go when no queue is left that is on its way out.
	ExtraExchanges []string
	// ExtraBindings are ours, not desired any more, and lead to no extra queue. They can go at once.
	ExtraBindings []Binding
	// FormerWays are ours, not desired any more, and lead back from the lanes into a work queue, by names that no queue has any more: those of a renaming
	// that was taken back, or names that left previousNames. They go once no retry can come by them.
	FormerWays []Binding
	// ExtraPolicies are ours, not desired any more, and apply to nothing that is still ours. They can go at once.
	ExtraPolicies []Policy
	// Migrations are the work queues that are being migrated. What is desired is what their steps ask for.
	Migrations []Migration
	// ForeignBindingRestores are the steps that lead ways of others back from stand-ins of a migration that is given up, in their order.
	ForeignBindingRestores []Step
	// Released are queues that were adopted and are not desired any more. They stay as they were.
	Released []ReleasedQueue
	// Disordered are the Strict work queues, and their stand-ins, whose order the broker would not keep. Workers must not consume them.
	Disordered []string
	// Inherited are those of ExtraQueues of which a work queue of the spec takes all that leads in, also what others have bound.
	Inherited []string
	// doubtful bindings are wanted and there, and a request may still delete them.
	doubtful []Binding
	// Awaited is true where something is not made or bound yet, since a request that is under way may delete it.
	Awaited bool
	// Deferred are those of ExtraQueues and Released that stay for now: a way in comes out of an exchange that lacks another.
	Deferred []string
	// Unproven are queues on their way out, or with ways to them that are to go, of which nothing but a mark says that they are ours.
	Unproven map[string]bool
}

// Lacks is true for a way in beside which a desired binding is withheld, or may go at any time. Then it may not be taken away: what goes by it may be
// meant for the one that is not there. Where that is to be of a queue that its owner has not made yet, and its exchange is direct, this holds for ways
// by its key alone: that may take long, and a migration is not over while a former key leads into the queue that it leaves.
func (d Difference) Lacks(way Binding) bool {
	from := d.Place(way)
	return slices.ContainsFunc(d.Withheld, func(w Withheld) bool {
		return d.Place(w.Binding) == from && (!w.keyed || w.Binding.RoutingKey == way.RoutingKey)
	}) || slices.ContainsFunc(d.doubtful, func(b Binding) bool { return d.Place(b) == from })
}

// Place is where a binding gets its messages: ways of one place may take each other's. A pattern may match many keys, but a way out of the producers' direct
// exchange is by one key, and the way back from the lanes by one name, by the alternate exchange as well.
func (d Difference) Place(way Binding) string {
	returns := d.Wanted.ExchangeOf(RoleReturn)
	switch {
	case way.Source == returns, way.Source == d.Wanted.ExchangeOf(RoleReturnAlternate):
		return returns + "\x00" + way.RoutingKey
	case slices.ContainsFunc(d.Wanted.Exchanges, func(e Exchange) bool { return e.Name == way.Source && e.Role == RoleProducers && e.Type == TypeDirect }):
		return way.Source + "\x00" + way.RoutingKey
	default:
		return way.Source
	}
}

// Empty is true when there is nothing to write, now or later.
func (d Difference) Empty() bool {
	return len(Plan(d)) == 0 && len(d.FormerWays) == 0 && len(d.ExtraQueues) == 0 && len(d.ExtraExchanges) == 0 && len(d.Released) == 0
}

// differ builds a Difference step by step.
type differ struct {
	desired    Objects
	observed   Observed
	created    []string
	roles      map[string]Role // of desired exchanges by name
	queues     map[string]Role // of desired queues by name
	works      []Queue         // the work queues of the spec
	emptied    []Queue         // stand-ins that workers read to their end
	conflicted map[Ref]bool
	// others are objects that another Transport claims.
	others map[Ref]bool
	// absent are queues that are to be adopted and do not exist.
	absent map[string]bool
	// doubtful are the objects that a request may still delete, each with the time until when.
	doubtful map[string]time.Time
	// unwanted are the bindings of ours that are not desired, by the exchanges that they lead out of; nil until they are needed.
	unwanted map[string][]Binding
	// consumed are the queues that a published configuration of the workers names.
	consumed []string
	// bound are the observed bindings, and asked the destinations of what was desired first, by where the messages come from.
	bound *bound
	asked map[wayIn][]string
	// outgoing are the names of the extra queues, and unseen those of queues on their way out that a list lacks: they may be there all the same.
	outgoing map[string]bool
	unseen   map[string]bool
	// halfLed are queues of outgoing whose heir must not get the ways of others yet. Our own go at once, or messages would come to both.
	halfLed map[string]bool
	// exits are exchanges that queues dead-letter to though they are not wanted any more, each with such a queue.
	exits map[string]string
	// broken is true when an object that messages need to leave by is in conflict.
	broken bool
	// taken is true when another Transport uses the same prefix.
	taken bool
	// ranked are the observed policies; nil until they are needed.
	ranked *rivals
	// patterns of policies, compiled; nil where Go does not understand one.
	patterns map[string]*regexp.Regexp
	// patternWeight is what those that are compiled come to, and patternsFull true once one had no room.
	patternWeight int
	patternsFull  bool
	out           Difference
}

// Diff compares the desired with the observed objects. created are the objects, as Ref strings, that this Transport made
// and that carry no owner mark.
func Diff(desired Objects, observed Observed, created []string) Difference {
	return DiffSince(desired, observed, Past{Created: created})
}

// DiffSince is Diff by what is remembered of earlier looks.
func DiffSince(desired Objects, observed Observed, past Past) Difference {
	d := &differ{
		desired: desired, observed: observed,
		created: past.Created, roles: map[string]Role{}, queues: map[string]Role{}, conflicted: map[Ref]bool{}, others: map[Ref]bool{}, absent: map[string]bool{},
		patterns: map[string]*regexp.Regexp{}, doubtful: past.Doubtful, consumed: past.Consumed,
		bound: boundBy(observed.Bindings), asked: map[wayIn][]string{}, outgoing: map[string]bool{}, unseen: map[string]bool{},
		halfLed: map[string]bool{}, exits: map[string]string{},
		out: Difference{Missing: Objects{Owner: desired.Owner, Prefix: desired.Prefix}, Unproven: map[string]bool{}},
	}
	for _, exchange := range desired.Exchanges {
		d.roles[exchange.Name] = exchange.Role
	}
	for _, queue := range desired.Queues {
		d.queues[queue.Name] = queue.Role
		if queue.Role == RoleWork {
			d.works = append(d.works, queue)
		}
	}
	for _, queue := range past.Retiring {
		_, listed := observed.Queues[queue]
		d.unseen[queue] = !listed && d.queues[queue] == ""
		d.unseen[commonFailurePolicy] = d.unseen[commonFailurePolicy] || d.unseen[queue]
	}
	for _, binding := range desired.Bindings {
		from := wayIn{binding.Source, binding.RoutingKey}
		d.asked[from] = append(d.asked[from], binding.Destination)
	}
	d.resolveAdopted()
	d.migrate(past)
	d.keepDeliveryLimits()
	d.keepClassicPolicies()
	d.out.Wanted = d.desired
	d.exchangesDiff()
	d.queuesDiff()
	d.abortIfPrefixTaken()
	d.holdMigrations()
	d.extraObjects()
	d.findExits()
	d.restoreForeignBindings()
	d.releaseAdopted()
	d.policiesDiff()
	d.bindingsDiff()
	d.extraBindings()
	d.findUnproven(past)
	d.deferDeletions()
	d.adoptedWarnings()
	d.warnings()
	return d.out
}

func (d *differ) exchangesDiff() {
	for _, want := range d.desired.Exchanges {
		ref := Ref{Kind: KindExchange, Name: want.Name}
		got, exists := d.observed.Exchanges[want.Name]
		if d.await(ref); !exists && d.isDoubtful(ref) {
			d.broken = d.broken || want.Role != RoleProducers
			continue
		}
		if !exists {
			d.out.Missing.Exchanges = append(d.out.Missing.Exchanges, want)
			d.unmarked(ref, want.Arguments)
			continue
		}
		if owner := got.Arguments.Owner(); owner != "" && owner != d.desired.Owner {
			d.taken = d.taken || want.Role != RoleProducers
			d.disputed(ownerConflict(ref, owner, d.desired.Owner), want.Role != RoleProducers)
			continue
		}
		d.judge(ref, got.Arguments, compareExchange(want, got.Exchange), remedyFor(want.Role), want.Role != RoleProducers)
	}
}

func (d *differ) queuesDiff() {
	for _, want := range d.desired.Queues {
		ref := Ref{Kind: KindQueue, Name: want.Name}
		if want.Adopt {
			d.adopt(ref)
			continue
		}
		got, exists := d.observed.Queues[want.Name]
		if d.await(ref); !exists && d.isDoubtful(ref) {
			d.broken = d.broken || want.Role == RoleFailure
			continue
		}
		if !exists {
			d.out.Missing.Queues = append(d.out.Missing.Queues, want)
			d.unmarked(ref, want.Arguments)
			continue
		}
		fields, remedy := compareQueue(want, got.Queue), remedyForQueue(want, got.Queue)
		claim, claimed := d.claimOn(got.Queue)
		if claimed && got.Arguments.Owner() != "" {
			d.disputed(claim.conflict(ref, d.desired.Owner), want.Role == RoleFailure)
			continue
		}
		if claimed && len(fields) > 0 {
			remedy = fmt.Sprintf("%s seems to use it (by the %s): choose another name", ownerText(claim.owner, d.desired.Owner), claim.sign)
		}
		d.judge(ref, got.Arguments, fields, remedy, want.Role == RoleFailure)
	}
}

// abortIfPrefixTaken makes nothing where another Transport uses the same prefix: half a topology among the objects of another serves
// nobody.
func (d *differ) abortIfPrefixTaken() {
	if d.taken {
		d.out.Missing.Exchanges, d.out.Missing.Queues, d.out.Unmarked = nil, nil, nil
	}
}

// unmarked notes an object that is to be made without an owner mark.
func (d *differ) unmarked(ref Ref, want Arguments) {
	if want.Owner() == "" {
		d.out.Unmarked = append(d.out.Unmarked, ref)
	}
}

// judge decides whether an existing object that no other Transport owns is ours, adopted or in conflict.
func (d *differ) judge(ref Ref, got Arguments, fields []FieldChange, remedy string, wayOut bool) {
	switch {
	case len(fields) > 0:
		d.conflict(Conflict{Object: ref, Fields: fields, Remedy: remedy}, wayOut)
	case !d.ours(ref, got):
		d.out.Adopted = append(d.out.Adopted, ref)
	}
}

func (d *differ) conflict(conflict Conflict, wayOut bool) {
	d.out.Conflicts = append(d.out.Conflicts, conflict)
	d.conflicted[conflict.Object] = true
	d.broken = d.broken || wayOut
}

// disputed notes an object that another Transport claims.
func (d *differ) disputed(conflict Conflict, wayOut bool) {
	d.others[conflict.Object] = true
	d.conflict(conflict, wayOut)
}

func (d *differ) ours(ref Ref, got Arguments) bool {
	return owned(d.desired.Owner, d.desired.Prefix, d.created, ref, got)
}

func (d *differ) policiesDiff() {
	if d.taken {
		// They carry the prefix in their names and belong to the other Transport.
		return
	}
	desired, strange := map[string]bool{}, map[int]bool{}
	for name, policy := range d.observed.Policies {
		strange[policy.Priority] = strange[policy.Priority] || !IsOurName(name)
	}
	for _, want := range slices.Concat(d.formerPolicies(), d.desired.Policies) {
		if covers(d.others, want) {
			continue // and goes where it is there: the other Transport has its own
		}
		desired[want.Name] = true
		if covers(d.conflicted, want) || d.broken && IsWorkPolicy(want.Name, d.desired.Prefix) {
			continue
		}
		got, exists := d.observed.Policies[want.Name]
		// It is made all the same: without it messages would go astray at once, and where it goes again the next look makes it.
		d.out.Awaited = d.out.Awaited || d.isDoubtful(Ref{Kind: KindPolicy, Name: want.Name})
		if !exists {
			d.out.Missing.Policies = append(d.out.Missing.Policies, want)
		} else if fields := comparePolicy(want, got, strange[got.Priority]); len(fields) > 0 {
			d.out.Changed = append(d.out.Changed, PolicyChange{Policy: want, Fields: fields})
		}
	}
	d.extraPolicies(desired)
}

// keepDeliveryLimits leaves a queue that is, or was, in Strict order the higher delivery limit: a message that has come back more often than the lower one
// allows would go to the failure queue the next time, by a worker that has not read of the change yet. Which queue was in order is not to be seen any more
// once its stand-in is gone, but for its limit. Without an order that hardly matters, since workers put what comes back into quarantine.
func (d *differ) keepDeliveryLimits() {
	named := policyNamesOf(d.desired.Prefix)
	for i, want := range d.desired.Policies {
		name, _ := named.queueOf(want.Name)
		queue := d.observed.Queues[name]
		limit, limited := WholeNumber(want.Definition[keyDeliveryLimit])
		policy, listed := d.observed.Policies[want.Name]
		before, _ := WholeNumber(policy.Definition[keyDeliveryLimit])
		if !listed { // the list lacks it, or it was just deleted: the queue may still show what it says
			before, _ = WholeNumber(queue.EffectiveDefinition[keyDeliveryLimit])
		}
		ordered := isSingle(queue.Queue) || before > compile.BrokersSpare
		if ordered && limited && before > limit && RoleOf(queue.Queue) == RoleWork {
			d.desired.Policies[i].Definition = maps.Clone(want.Definition)
			d.desired.Policies[i].Definition[keyDeliveryLimit] = before
		}
	}
}

// keepClassicPolicies leaves out what no classic queue knows, as long as one has the name of a queue that is to be of type Quorum: RabbitMQ does not apply a
// policy with such a key, and one of others that ours keeps away would take its place. That may expire the queue with its messages. What says nothing else
// then says what holds anyway.
func (d *differ) keepClassicPolicies() {
	named := policyNamesOf(d.desired.Prefix)
	for i, want := range d.desired.Policies {
		name, _ := named.queueOf(want.Name)
		_, limited := want.Definition[keyDeliveryLimit]
		before, stands := d.observed.Policies[want.Name]
		if !limited || d.observed.Queues[name].Type != TypeClassic || !stands && len(want.Definition) == 1 {
			continue
		}
		definition := maps.Clone(want.Definition)
		if delete(definition, keyDeliveryLimit); len(definition) == 0 {
			if _, unknown := before.Definition[keyDeliveryLimit]; unknown {
				continue // It keeps nothing away.
			}
			definition[keyOverflow] = overflowDropHead
		}
		d.desired.Policies[i].Definition = definition
	}
}

// extraPolicies are those of the prefix that are not desired, and are needed by nothing that is there.
func (d *differ) extraPolicies(desired map[string]bool) {
	named := policyNamesOf(d.desired.Prefix)
	for _, name := range slices.Sorted(maps.Keys(d.observed.Policies)) {
		queue, isQueue := named.queueOf(name)
		ref := Ref{Kind: KindQueue, Name: queue}
		stays := d.retiring(queue) || d.lettingGo(queue) || d.absent[queue] || d.conflicted[ref] && !d.others[ref]
		stays = stays || d.leavesByExchange(queue) || d.unseen[queue]
		failure, isFailure := named.failureOf(name)
		if _, exists := d.observed.Queues[failure]; isFailure && !desired[name] && d.queues[failure] == "" && exists {
			// Its count may be from before the last messages that came, and it is not ours to be counted as a deletion needs.
			d.warnf(KindQueue, failure, "", "it was the failure queue and is not Redrive's: the RabbitMQ policy %q, which keeps other policies from it, "+
				"stays with it: delete the policy when you need it no more", name)
			continue
		}
		if isFailure && failure == commonFailurePolicy && d.lacksPins() {
			continue // until those that take its place are there
		}
		if !desired[name] && (name == named.exchange() || isFailure && !d.unseen[failure] || isQueue && !stays) {
			d.out.ExtraPolicies = append(d.out.ExtraPolicies, d.observed.Policies[name])
		}
	}
}

// leavesByExchange is true for a queue that another one is to take the place of, and that is still there: without its policy a weaker one of
// others would apply, which may expire it with its messages.
func (d *differ) leavesByExchange(queue string) bool {
	return slices.ContainsFunc(d.out.Migrations, func(m Migration) bool { return m.Queue == queue && len(m.Fields) > 0 })
}

// formerPolicies are those of the failure queues that are not wanted any more: each that is there, and those that are missing where failed messages may
// be lost without. The bound of the one that took their place is not theirs.
func (d *differ) formerPolicies() (policies []Policy) {
	for _, queue := range d.out.ExtraQueues {
		policy := failurePolicy(queue.Name, policyNamesOf(d.desired.Prefix))
		_, stands := d.observed.Policies[policy.Name]
		if RoleOf(queue.Queue) == RoleFailure && (stands || d.mayHoldFailed(queue)) {
			policies = append(policies, policy)
		}
	}
	return policies
}

// lacksPins is true where a policy by which lanes or failure queues keep those of others off is still to be made.
func (d *differ) lacksPins() bool {
	return slices.ContainsFunc(d.out.Missing.Policies, func(p Policy) bool { return policyStage(p, d.desired.Prefix) == stagePins })
}

// covers is true for a policy of one of some objects: of one that is in conflict it may be somebody else's.
func covers(objects map[Ref]bool, policy Policy) bool {
	for ref := range objects {
		if policy.Pattern == exactly(ref.Name) && (policy.ApplyTo == applyToExchanges) == (ref.Kind == KindExchange) {
			return true
		}
	}
	return false
}

// retiring is true for a queue that is on its way out; its policy holds until it is gone.
func (d *differ) retiring(queue string) bool { return d.outgoing[queue] }

func (d *differ) bindingsDiff() {
	reported := map[string]bool{}
	for _, want := range d.desired.Bindings {
		if !d.bound.has(want) {
			if reason := d.obstacle(want, reported); reason != "" {
				d.await(want.ref())
				d.out.Withheld = append(d.out.Withheld, Withheld{
					Binding: want, Reason: reason, keyed: d.absent[want.Destination] && d.isDirect(want.Source),
				})
				continue
			}
			d.out.Missing.Bindings = append(d.out.Missing.Bindings, want)
		}
		d.awaitSo(want.ref(), "the operator looks every few seconds, and makes it again if it is gone")
		if d.mayGo(want) {
			d.out.doubtful = append(d.out.doubtful, want)
		}
	}
}

// obstacle says why a binding must not be made, or nothing.
func (d *differ) obstacle(want Binding, reported map[string]bool) string {
	role, own := d.roles[want.Source]
	if !own {
		if reason := d.foreignObstacle(want.Source); reason != "" {
			if !reported[want.Source] {
				reported[want.Source] = true
				ref := Ref{Kind: KindExchange, Name: want.Source}
				d.out.Problems = append(d.out.Problems, Finding{Object: ref, Message: reason})
			}
			return reason
		}
	}
	leadsIn := !own || role == RoleProducers || role == RoleUnrouted
	switch {
	case d.taken:
		return "another Transport uses the same prefix"
	case d.absent[want.Destination]:
		return "queue " + want.Destination + " does not exist"
	case d.conflicted[Ref{Kind: KindExchange, Name: want.Source}]:
		return "exchange " + want.Source + " is in conflict"
	case d.conflicted[Ref{Kind: KindQueue, Name: want.Destination}]:
		return "queue " + want.Destination + " is in conflict"
	case d.mayGo(want) && !d.remakes(want):
		return "a request to delete it, or queue " + want.Destination + ", may still be carried out"
	case leadsIn && d.broken:
		return "an exchange or queue that failed messages need is in conflict"
	case leadsIn && d.lacksQuarantine(want.Destination):
		return "its quarantine queue is in conflict, or may still be deleted"
	default:
		return ""
	}
}

// lacksQuarantine is true for a work queue whose quarantine queue is in conflict, or may go at any time, and for one that needs none any more, while
// workers know of one into which nothing leads yet: what a worker publishes there would end in the failure queue.
func (d *differ) lacksQuarantine(work string) bool {
	ref := Ref{Kind: KindQueue, Name: compile.Names{}.Quarantine(work)}
	if d.queues[ref.Name] == RoleQuarantine {
		return d.conflicted[ref] || d.isDoubtful(ref)
	}
	leadsBack := func(b Binding) bool { return d.roles[b.Source] == RoleReturn }
	return slices.Contains(d.consumed, ref.Name) && !slices.ContainsFunc(d.bound.to(ref.Name, nil), leadsBack)
}

// foreignObstacle says why an exchange of others cannot be bound to, or nothing.
func (d *differ) foreignObstacle(name string) string {
	exchange, exists := d.observed.Exchanges[name]
	switch {
	case !exists:
		return "it does not exist; spec.queues[].bindings binds to existing exchanges and never creates them"
	case exchange.Type == TypeHeaders || exchange.Arguments["x-delayed-type"] == TypeHeaders:
		return "it is a headers exchange, which routes by headers and not by keys"
	default:
		return ""
	}
}

func (d *differ) extraObjects() {
	for _, name := range slices.Sorted(maps.Keys(d.observed.Queues)) {
		queue := d.observed.Queues[name]
		_, desired := d.queues[name]
		// One without a mark may be another Transport's: status.created may be that of a backup, or of another cluster.
		if !desired && d.ours(Ref{Kind: KindQueue, Name: name}, queue.Arguments) && !d.isClaimed(queue.Queue) && !isOfReplay(queue.Queue, d.desired.Prefix) {
			d.out.ExtraQueues = append(d.out.ExtraQueues, queue)
			d.outgoing[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.observed.Exchanges)) {
		exchange := d.observed.Exchanges[name]
		if _, desired := d.roles[name]; !desired && d.ours(Ref{Kind: KindExchange, Name: name}, exchange.Arguments) {
			d.out.ExtraExchanges = append(d.out.ExtraExchanges, name)
		}
	}
}

func (d *differ) extraBindings() {
	desired, taken, returns := make(map[identity]bool, len(d.desired.Bindings)), map[wayIn]bool{}, map[string]bool{}
	for _, binding := range d.desired.Bindings {
		desired[binding.identity()] = !d.amongOthers(binding)
		taken[wayIn{binding.Source, binding.RoutingKey}] = true
		returns[binding.RoutingKey] = returns[binding.RoutingKey] || d.leadsBack(binding)
	}
	for i, binding := range d.observed.Bindings {
		if desired[d.bound.ids[i]] || binding.ToExchange || binding.Arguments.Owner() != d.desired.Owner || d.ofReplay(binding) {
			continue
		}
		wayBack := d.leadsBack(binding) && d.lettingGo(binding.Destination)
		needed := (d.out.Lacks(binding) || d.standsIn(binding)) && !d.amongOthers(binding) || d.isNeeded(binding)
		// A way back by the name of a queue that has its own would give each retry of that one to both, and the other one would never be empty.
		doubles := d.leadsBack(binding) && taken[wayIn{binding.Source, binding.RoutingKey}]
		leaves := doubles || !d.retiring(binding.Destination) || d.halfLed[binding.Destination] && !isTrace(binding)
		switch {
		case !leaves || wayBack && !doubles || needed || d.isExit(binding):
		case !returns[binding.RoutingKey] && d.isFormerWay(binding):
			d.out.FormerWays = append(d.out.FormerWays, binding)
		default:
			d.out.ExtraBindings = append(d.out.ExtraBindings, binding)
		}
	}
	slices.SortFunc(d.out.ExtraBindings, func(a, b Binding) int {
		return cmp.Or(cmp.Compare(a.Name(), b.Name()), cmp.Compare(a.PropertiesKey, b.PropertiesKey))
	})
}

// isFormerWay is true for a way back into a work queue that stays, by a name that leads nowhere else.
func (d *differ) isFormerWay(binding Binding) bool {
	return d.leadsBack(binding) && d.queues[binding.Destination] == RoleWork &&
		!d.bound.anyFrom(wayIn{binding.Source, binding.RoutingKey}, func(b Binding) bool { return b.ToExchange || b.Destination != binding.Destination })
}

// deferDeletions keeps what is to go as it is, while the broker lacks what may be to take its place.
func (d *differ) deferDeletions() {
	hold := func(queue string, homeless bool) {
		if !homeless && !slices.ContainsFunc(d.bound.to(queue, nil), func(b Binding) bool {
			return b.Arguments.Owner() == d.desired.Owner && (d.out.Lacks(b) || d.standsIn(b))
		}) {
			return
		}
		d.out.Deferred = append(d.out.Deferred, queue)
		d.out.Warnings = append(d.out.Warnings, Finding{
			Object:  Ref{Kind: KindQueue, Name: queue},
			Message: "it is not wanted any more, and stays for now: what goes into it may be meant for a queue that cannot be bound",
		})
	}
	exits := d.lastExits()
	for _, queue := range d.out.ExtraQueues {
		if from := exits[queue.Name]; from != "" {
			d.out.Deferred = append(d.out.Deferred, queue.Name)
			d.warnf(KindQueue, queue.Name, "", "it is not wanted any more, and stays for now: queue %q still dead-letters into it, and nowhere else", from)
			continue
		}
		hold(queue.Name, d.hasNoSuccessor(queue.Queue) || len(d.strayWays(queue.Name, d.successorOf(queue.Queue))) > 0)
	}
	for _, queue := range d.out.Released {
		hold(queue.Queue, false)
	}
}

// standsIn is true for a binding of a bridge by which messages come whose own way is not there for sure: an exchange was broken off, and the spec has
// changed since. Without it they would be unroutable until that way can be made.
func (d *differ) standsIn(bridge Binding) bool {
	way := wayIn{d.desired.ExchangeOf(RoleProducers), bridge.RoutingKey}
	return d.roles[bridge.Source] == RoleAlternate && len(d.asked[way]) > 0 && !d.bound.anyFrom(way, func(b Binding) bool { return !d.mayGo(b) })
}

// amongOthers is true for a binding out of or into an object that another Transport claims. Where both made everything at
// the same time, ours is there too, and would lead messages on when the other has taken away its own.
func (d *differ) amongOthers(binding Binding) bool {
	return d.others[Ref{Kind: KindExchange, Name: binding.Source}] || d.others[Ref{Kind: KindQueue, Name: binding.Destination}]
}
