package topology

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"redrive.dev/redrive/internal/compile"
)

// Belongings are what of a vhost belongs to one Transport, found by owner marks, by the list of what it created, and by
// the names of its policies; whatever its spec says by now.
type Belongings struct {
	// Inlets are the bindings by which new messages come into its queues.
	Inlets []Binding
	// InletPolicies send unroutable messages of the producers' exchange to it.
	InletPolicies []Policy
	// Lanes, Work, Quarantined messages and Failure are its queues.
	Lanes, Work, Quarantine, Failure []QueueState
	// Staged are queues of replays with failed messages, and Logs those that only tell of them.
	Staged, Logs []QueueState
	// Bindings are its bindings to queues that are not its own, without the inlets.
	Bindings []Binding
	// Exchanges in the order in which they can be deleted.
	Exchanges []string
	// Released are its policies for queues that are not its own. Nobody needs them once its workers are gone.
	Released []Policy
	// Policies of its prefix, without the inlet policies and the released ones.
	Policies []Policy
	// Leaves is a queue that is not its own and dead-letters to its failure exchange; empty where none does. That exchange, the failure queue and
	// its policy are then not among the others: dead-lettered to an exchange that leads nowhere, a message is lost.
	Leaves string
	// Pinned are queues that are not its own, are, or were, its failure queue and may hold failed messages. Their policies, which keep others from them, are
	// not among the others.
	Pinned []string
}

// BelongingsOf finds what belongs to a Transport. created are the objects, as Ref strings, that it made and that carry no
// owner mark.
func BelongingsOf(owner, prefix string, observed Observed, created []string) Belongings {
	var found Belongings
	own := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(observed.Queues)) {
		queue := observed.Queues[name]
		if !owned(owner, prefix, created, Ref{Kind: KindQueue, Name: name}, queue.Arguments) || observed.serves(owner, queue.Queue) {
			continue
		}
		own[name] = true
		switch RoleOf(queue.Queue) {
		case RoleLane:
			found.Lanes = append(found.Lanes, queue)
		case RoleFailure:
			found.Failure = append(found.Failure, queue)
		case RoleQuarantine:
			found.Quarantine = append(found.Quarantine, queue)
		case RoleReplay:
			found.addReplay(queue, prefix)
		default:
			found.Work = append(found.Work, queue)
		}
	}
	found.addBindings(owner, prefix, observed, own)
	found.addExchanges(owner, prefix, observed, created)
	found.addPolicies(owner, prefix, observed, own)
	found.keepExit(owner, prefix, observed, own)
	return found
}

func (b *Belongings) addReplay(queue QueueState, prefix string) {
	if IsLog(queue.Queue, prefix) {
		b.Logs = append(b.Logs, queue)
	} else {
		b.Staged = append(b.Staged, queue)
	}
}

// keepExit takes out what messages of a queue that stays leave it by.
func (b *Belongings) keepExit(owner, prefix string, observed Observed, own map[string]bool) {
	failed, named := compile.Names{Prefix: prefix}.Failed(), policyNamesOf(prefix)
	if observed.Exchanges[failed].Arguments.Owner() != owner {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(observed.Queues)) {
		if !own[name] && observed.leavesBy(failed, observed.Queues[name], named) {
			b.Leaves = name
			break
		}
	}
	if b.Leaves == "" {
		return
	}
	b.Failure = nil
	b.Exchanges = slices.DeleteFunc(b.Exchanges, func(name string) bool { return name == failed })
	b.Policies = slices.DeleteFunc(b.Policies, func(policy Policy) bool {
		_, is := named.failureOf(policy.Name)
		return is
	})
}

// leavesBy is true for a queue that dead-letters to an exchange once our policies are gone. One of others that ours hides is believed to apply then if its
// pattern matches, whatever else does.
func (o Observed) leavesBy(exchange string, queue QueueState, ours policyNames) bool {
	if argument := queue.Arguments[argDeadLetterExchange]; argument != nil {
		return argument == exchange
	}
	if !strings.HasPrefix(queue.Policy, ours.start) {
		return o.Policies[queue.Policy].Definition[keyDeadLetterExchange] == exchange
	}
	for _, policy := range o.Policies {
		leads := policy.Definition[keyDeadLetterExchange] == exchange && !strings.HasPrefix(policy.Name, ours.start)
		if leads && policy.ApplyTo != applyToExchanges && mayMatch(policy.Pattern, queue.Name) {
			return true
		}
	}
	return false
}

// mayMatch is true also for a pattern that only the broker's own engine understands, or that is too long to be tried.
func mayMatch(pattern, name string) bool {
	const longest = 1 << 10
	if len(pattern) > longest {
		return true
	}
	compiled, err := regexp.Compile(pattern)
	return err != nil || compiled.MatchString(name)
}

// Empty is true when nothing is left.
func (b *Belongings) Empty() bool {
	return len(b.Inlets)+len(b.InletPolicies)+len(b.Lanes)+len(b.Work)+len(b.Quarantine)+len(b.Failure)+
		len(b.Staged)+len(b.Logs)+len(b.Bindings)+len(b.Exchanges)+len(b.Released)+len(b.Policies) == 0
}

func (b *Belongings) addBindings(owner, prefix string, observed Observed, own map[string]bool) {
	names := compile.Names{Prefix: prefix}
	for _, binding := range observed.Bindings {
		if binding.ToExchange {
			continue
		}
		queue, marked := observed.Queues[binding.Destination].Queue, binding.Arguments.Owner() == owner
		switch {
		case own[queue.Name] && comesBack(queue) && LeadsIn(binding, queue, prefix):
			b.Inlets = append(b.Inlets, binding)
		case own[queue.Name] || !marked:
		case slices.Contains([]string{names.Return(), names.ReturnAlternate(), names.Failed()}, binding.Source):
			b.Bindings = append(b.Bindings, binding)
		default:
			b.Inlets = append(b.Inlets, binding)
		}
	}
}

func (b *Belongings) addExchanges(owner, prefix string, observed Observed, created []string) {
	names := compile.Names{Prefix: prefix}
	// What others lead to goes after them.
	last := []string{
		names.Alternate(), names.Unrouted(), names.Fallback(), names.Return(), names.ReturnAlternate(), names.Failed(),
	}
	for name, exchange := range observed.Exchanges {
		if owned(owner, prefix, created, Ref{Kind: KindExchange, Name: name}, exchange.Arguments) {
			b.Exchanges = append(b.Exchanges, name)
		}
	}
	slices.SortFunc(b.Exchanges, func(x, y string) int {
		return cmp.Or(cmp.Compare(slices.Index(last, x), slices.Index(last, y)), cmp.Compare(x, y))
	})
}

func (b *Belongings) addPolicies(owner, prefix string, observed Observed, own map[string]bool) {
	names := compile.Names{Prefix: prefix}
	for _, name := range []string{names.Failed(), names.ReturnAlternate(), names.Return(), names.Fallback()} {
		if other := observed.Exchanges[name].Arguments.Owner(); other != "" && other != owner {
			// Another Transport uses the same prefix, and the policies of that name are its own.
			return
		}
	}
	named := policyNamesOf(prefix)
	for _, name := range slices.Sorted(maps.Keys(observed.Policies)) {
		queue, ofQueue := named.queueOf(name)
		_, exists := observed.Queues[queue]
		switch {
		case named.pinned(name, observed, own) != "":
			b.Pinned = append(b.Pinned, named.pinned(name, observed, own))
		case ofQueue && exists && !own[queue]:
			b.Released = append(b.Released, observed.Policies[name])
		case name == named.exchange():
			b.InletPolicies = append(b.InletPolicies, observed.Policies[name])
		case named.staged(name, observed, prefix):
			// It goes with what it keeps others from.
		case strings.HasPrefix(name, named.start):
			b.Policies = append(b.Policies, observed.Policies[name])
		}
	}
}

// pinned is the failure queue of a policy that has to stay, since the queue does, whatever is counted in it; empty for other policies.
func (n policyNames) pinned(policy string, observed Observed, own map[string]bool) string {
	queue, is := n.failureOf(policy)
	if _, exists := observed.Queues[queue]; !is || own[queue] || !exists {
		return ""
	}
	return queue
}

// staged is true for the policy of a staging queue that exists, whatever is counted in it.
func (n policyNames) staged(policy string, observed Observed, prefix string) bool {
	id, is := n.replayOf(policy)
	_, exists := observed.Queues[compile.Names{Prefix: prefix}.Staging(id)]
	return is && exists
}

// serves is true for a queue without a mark that dead-letters to an exchange of another Transport, and so is that one's.
func (o Observed) serves(owner string, queue Queue) bool {
	exchange, _ := queue.Arguments[argDeadLetterExchange].(string)
	other := o.Exchanges[exchange].Arguments.Owner()
	return queue.Arguments.Owner() == "" && other != "" && other != owner
}

// owned is true for what may be deleted one day: it carries the mark, or the Transport wrote down that it made it, and it still looks so.
func owned(owner, prefix string, created []string, ref Ref, arguments Arguments) bool {
	return arguments.Owner() == owner || Unmarked(prefix, ref.Kind, arguments) && slices.Contains(created, ref.String())
}

// Unmarked is true for arguments as a Transport gives them to an object without an owner mark: to the producers' exchange none, and to a
// classic queue its own dead-letter exchange. Who deletes such an object and declares it with other arguments has made it his own.
func Unmarked(prefix string, kind Kind, arguments Arguments) bool {
	switch {
	case arguments.Owner() != "":
		return false
	case kind == KindExchange:
		return len(arguments) == 0
	default:
		return arguments[argDeadLetterExchange] == compile.Names{Prefix: prefix}.Failed()
	}
}

// RoleOf tells the role of a queue of ours by its arguments: only lanes have a TTL, only the failure queue has no
// dead-letter exchange, and quarantine queues name their work queue. Queues of replays name their replay.
func RoleOf(queue Queue) Role {
	switch {
	case queue.Arguments[argReplay] != nil:
		return RoleReplay
	case queue.Arguments[argMessageTTL] != nil:
		return RoleLane
	case QuarantineOf(queue) != "":
		return RoleQuarantine
	case queue.Arguments[argDeadLetterExchange] == nil:
		return RoleFailure
	default:
		return RoleWork
	}
}

// QuarantineOf names the work queue of a quarantine queue of ours; empty for queues that are none.
func QuarantineOf(queue Queue) string {
	work, _ := queue.Arguments[argQuarantineOf].(string)
	return work
}

// LeadsIn is true for a binding that must go before its queue is counted. The way back from the lanes into a work queue or
// to its quarantined messages stays until the queue is deleted: what waits in lanes comes back by it.
func LeadsIn(binding Binding, queue Queue, prefix string) bool {
	names := compile.Names{Prefix: prefix}
	return !comesBack(queue) || binding.Source != names.Return() && binding.Source != names.ReturnAlternate()
}

// comesBack is true for a queue into which lanes bring back messages.
func comesBack(queue Queue) bool {
	role := RoleOf(queue)
	return role == RoleWork || role == RoleQuarantine
}

// LaneDelay is how long messages wait in a lane; zero for queues that are none.
func LaneDelay(queue Queue) time.Duration {
	milliseconds, _ := normalise(queue.Arguments[argMessageTTL]).(int64)
	return time.Duration(milliseconds) * time.Millisecond
}
