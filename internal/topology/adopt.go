package topology

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

// Keys of RabbitMQ policies about dead-lettering.
const (
	keyDeadLetterExchange = "dead-letter-exchange"
	keyDeadLetterStrategy = "dead-letter-strategy"
	keyOverflow           = "overflow"
	keyDeliveryLimit      = "delivery-limit"
	keyMaxLength          = "max-length"
	keyMaxLengthBytes     = "max-length-bytes"
	keyMessageTTL         = "message-ttl"
	keyExpires            = "expires"
)

// adopts is true for a queue of the spec that is taken as it is.
func adopts(queue *v1alpha1.Queue) bool { return queue.Adopt != nil && *queue.Adopt }

// Disown returns the snapshot as if some queues, given as Ref strings, did not carry an owner's mark. What was adopted is
// never deleted, also where the mark says that its Transport made it once; the mark itself cannot be taken off a queue.
func (o Observed) Disown(owner string, refs []string) Observed {
	shared := o.Queues
	o.Queues = maps.Clone(shared)
	for name, state := range shared {
		ref := Ref{Kind: KindQueue, Name: name}
		if state.Arguments.Owner() == owner && slices.Contains(refs, ref.String()) {
			state.Arguments = maps.Clone(state.Arguments)
			delete(state.Arguments, OwnerArgument)
			o.Queues[name] = state
		}
	}
	return o
}

// resolveAdopted completes what is desired by what only the broker knows: an adopted queue is wanted as it is, and a policy of
// ours only where it does not displace one of others without need.
func (d *differ) resolveAdopted() {
	d.desired.Queues, d.desired.Policies = slices.Clone(d.desired.Queues), slices.Clone(d.desired.Policies)
	for i, want := range d.desired.Queues {
		got, exists := d.observed.Queues[want.Name]
		if !want.Adopt {
			continue
		}
		if !exists {
			d.settleAbsent(want.Name)
			continue
		}
		d.desired.Queues[i] = got.Queue
		d.desired.Queues[i].Role, d.desired.Queues[i].Adopt, d.desired.Queues[i].PreviousNames = want.Role, true, want.PreviousNames
		d.settleQueuePolicy(got)
	}
	d.settleExchangePolicy()
}

// settleAbsent gives the limits of a queue that is to be adopted and does not exist yet a way out: its owner may make it at
// any moment, and what they remove is not to be lost until we see it.
func (d *differ) settleAbsent(queue string) {
	name := policyNamesOf(d.desired.Prefix).queue(queue)
	for i, policy := range d.desired.Policies {
		if policy.Name == name {
			policy.Definition = maps.Clone(policy.Definition)
			policy.Definition[keyDeadLetterExchange] = d.desired.ExchangeOf(RoleFailed)
			d.desired.Policies[i] = policy
		}
	}
}

// settleQueuePolicy gives an adopted queue without a dead-letter exchange ours, by policy: otherwise what expires in it,
// and what a worker cannot carry on, would be lost. A policy of others that applies to the queue is displaced only if
// spec.limits ask for one of ours; one that comes later must not take the way out again. A queue that we made keeps the delivery limit that it has.
func (d *differ) settleQueuePolicy(got QueueState) {
	policy := Policy{
		Name: policyNamesOf(d.desired.Prefix).queue(got.Name), Pattern: exactly(got.Name), ApplyTo: applyToQueues,
		Priority: workPriority, Definition: Arguments{},
	}
	at := slices.IndexFunc(d.desired.Policies, func(p Policy) bool { return p.Name == policy.Name })
	rival, found := d.rival(KindQueue, got.Name, got.Policy, policy)
	_, stands := d.observed.Policies[policy.Name]
	_, leads := rival.Definition[keyDeadLetterExchange]
	displaces := found && (leads || !stands)
	if at >= 0 {
		maps.Copy(policy.Definition, d.desired.Policies[at].Definition)
		displaces = false
	}
	if got.Arguments.Owner() == d.desired.Owner && got.Type == TypeQuorum {
		policy.Definition[keyDeliveryLimit] = deliveryLimit
		displaces = false
	}
	if _, has := got.Arguments[argDeadLetterExchange]; !has && !displaces {
		policy.Definition[keyDeadLetterExchange] = d.desired.ExchangeOf(RoleFailed)
		if got.Type == TypeQuorum && !bounded(got, policy.Definition) {
			// Both are needed for at-least-once. Refusing messages matters only to a queue with a bound.
			policy.Definition[keyDeadLetterStrategy], policy.Definition[keyOverflow] = strategyAtLeastOnce, overflowRejectPublish
		}
	}
	switch {
	case at >= 0:
		d.desired.Policies[at] = policy
	case len(policy.Definition) > 0:
		d.desired.Policies = append(d.desired.Policies, policy)
	}
}

// bounded is true for a queue with a limit of its length, by argument, by our policy, or by an operator policy.
func bounded(got QueueState, ours Arguments) bool {
	for _, limit := range []string{keyMaxLength, keyMaxLengthBytes} {
		if got.Arguments["x-"+limit] != nil || ours[limit] != nil || got.EffectiveDefinition[limit] != nil {
			return true
		}
	}
	return false
}

// settleExchangePolicy withdraws our policy from the producers' exchange where another one takes care of its unroutable messages and ours would send them
// nowhere. Where another Transport was first to route them, ours waits behind its policy, and applies as soon as that one goes.
func (d *differ) settleExchangePolicy() {
	name := d.desired.ExchangeOf(RoleProducers)
	ours, has := d.ownPolicy(KindExchange, name)
	rival, found := d.rival(KindExchange, name, d.observed.Exchanges[name].Policy, ours)
	if !has || !found {
		return
	}
	at := slices.IndexFunc(d.desired.Policies, func(p Policy) bool { return p.Name == ours.Name })
	if ours.Priority == workPriority && !d.lacksUnrouted() {
		stands, is := d.observed.Policies[ours.Name]
		if d.routesUnrouted(rival) && (!is || byStrength(rival, stands) < 0) {
			d.desired.Policies[at].Priority = waitingPriority
			d.warnf(KindExchange, name, v1alpha1.ReasonPolicyOverridden, "another Transport routes its unroutable messages already, by "+
				"the RabbitMQ policy %q: spec.exchange.unroutedTo has no effect here: set it in one Transport only", rival.Name)
		}
		return
	}
	// Of two Transports that both route nothing only one withdraws, or they would take turns for ever.
	_, is := alternateOf(rival)
	if idle := is && !d.routesUnrouted(rival) && ours.Name < rival.Name; !idle {
		d.desired.Policies = slices.Delete(d.desired.Policies, at, at+1)
	}
}

// lacksUnrouted is true where the queue for unroutable messages is to be adopted and does not exist yet: ours would drop them until then.
func (d *differ) lacksUnrouted() bool {
	return slices.ContainsFunc(d.desired.Bindings, func(b Binding) bool {
		_, exists := d.observed.Queues[b.Destination]
		return b.Source == d.desired.ExchangeOf(RoleUnrouted) && !exists && slices.ContainsFunc(d.desired.Queues, func(q Queue) bool {
			return q.Name == b.Destination && q.Adopt
		})
	})
}

// routesUnrouted is true for a policy by which another Transport leads an exchange's unroutable messages to a queue.
func (d *differ) routesUnrouted(policy Policy) bool {
	prefix, is := alternateOf(policy)
	names := compile.Names{Prefix: prefix}
	return is && slices.ContainsFunc(d.observed.Bindings, func(b Binding) bool { return b.Source == names.Unrouted() })
}

// alternateOf returns the prefix of the Transport whose policy for its producers' exchange this is.
func alternateOf(policy Policy) (prefix string, is bool) {
	alternate, _ := policy.Definition[argAlternateExchange].(string)
	prefix, is = strings.CutSuffix(alternate, (compile.Names{}).Alternate())
	return prefix, is && policy.Name == policyNamesOf(prefix).exchange()
}

// adopt judges a queue that is to be taken as it is.
func (d *differ) adopt(ref Ref) {
	got, exists := d.observed.Queues[ref.Name]
	if !exists {
		d.absent[ref.Name] = true
		d.out.Problems = append(d.out.Problems, Finding{Object: ref, Message: "there is no queue to adopt: it is bound and consumed " +
			"once its owner has made it; without adopt, Redrive makes it"})
		return
	}
	if claim, claimed := d.claimOn(got.Queue); claimed {
		d.disputed(claim.conflict(ref, d.desired.Owner), false)
		return
	}
	if fields, remedy := unfit(got.Queue); len(fields) > 0 {
		d.conflict(Conflict{Object: ref, Fields: fields, Remedy: remedy}, false)
		return
	}
	d.out.Adopted = append(d.out.Adopted, ref)
}

// isAdopted is true for a desired queue that is taken as it is.
func (d *differ) isAdopted(queue string) bool {
	return slices.ContainsFunc(d.desired.Queues, func(q Queue) bool { return q.Name == queue && q.Adopt })
}

// unfit says what keeps a queue from being a work queue.
func unfit(got Queue) (fields []FieldChange, remedy string) {
	switch {
	case got.Exclusive:
		return []FieldChange{{Field: "exclusive", From: true, To: false}},
			"only the connection that declared it can consume it: let its owner declare it without exclusive, or take it out of spec.queues"
	case got.AutoDelete:
		return []FieldChange{{Field: "auto-delete", From: true, To: false}},
			"RabbitMQ deletes it with its messages when its last consumer leaves, as a worker does for each new prefetch: let its owner declare it without " +
				"auto-delete, or have Redrive make another queue by the same binding"
	case got.Type != TypeQuorum && got.Type != TypeClassic:
		return []FieldChange{{Field: "type", From: got.Type, To: TypeQuorum + " or " + TypeClassic}},
			"workers cannot consume it: take it out of spec.queues"
	default:
		return nil, ""
	}
}

// claim is a sign that another Transport uses a queue.
type claim struct {
	owner string
	// sign is what carries the owner's mark; way is a binding that the user can remove, if that is it.
	sign, way string
}

func (c claim) conflict(ref Ref, own string) Conflict {
	conflict := ownerConflict(ref, c.owner, own)
	conflict.Fields[0].Field = c.sign
	if c.way != "" {
		conflict.Remedy = fmt.Sprintf("%s consumes it: name it in one Transport only; if that one is gone for good, remove the binding %s",
			ownerText(c.owner, own), c.way)
	}
	return conflict
}

// claimOn finds a sign that another Transport uses a queue: its mark on it; for classic queues, which carry none, that on
// its dead-letter exchange; and for those that it adopted, its way back into it. Of two that adopt a queue at the same
// time the one whose mark comes first keeps it.
func (d *differ) claimOn(queue Queue) (claim, bool) {
	other := func(owner string) bool { return owner != "" && owner != d.desired.Owner }
	if owner := queue.Arguments.Owner(); owner != "" {
		return claim{owner: owner, sign: OwnerArgument}, other(owner)
	}
	exchange, _ := queue.Arguments[argDeadLetterExchange].(string)
	if owner := d.observed.Exchanges[exchange].Arguments.Owner(); other(owner) {
		return claim{owner: owner, sign: OwnerArgument + " of its dead-letter exchange " + exchange}, true
	}
	var ours bool
	var first claim
	for _, binding := range d.bound.to(queue.Name, nil) {
		owner := binding.Arguments.Owner()
		if owner == "" || binding.RoutingKey != queue.Name || d.observed.Exchanges[binding.Source].Arguments.Owner() != owner {
			continue
		}
		ours = ours || owner == d.desired.Owner
		if other(owner) && (first.owner == "" || owner < first.owner) {
			first = claim{owner: owner, sign: OwnerArgument + " of the binding " + binding.Name(), way: binding.Name()}
		}
	}
	return first, first.owner != "" && (!ours || first.owner < d.desired.Owner)
}

// adoptedWarnings tells of what may go wrong with a queue that is taken as it is.
func (d *differ) adoptedWarnings() {
	for _, ref := range d.out.Adopted {
		if ref.Kind != KindQueue || !d.isAdopted(ref.Name) {
			continue
		}
		got := d.observed.Queues[ref.Name]
		for _, hazard := range hazards(got) {
			d.warnf(KindQueue, ref.Name, "", "%s", hazard)
		}
		if harm := d.deadLetterWarning(got); harm != "" {
			d.warnf(KindQueue, ref.Name, "", "%s", harm)
		}
	}
}

// hazards are what a queue has that a work queue of ours never has.
func hazards(got QueueState) []string {
	var found []string
	add := func(format string, arguments ...any) { found = append(found, fmt.Sprintf(format, arguments...)) }
	if got.Type == TypeClassic {
		add("%s", atMostOnce)
	}
	if !got.Durable {
		add("it is not durable: it is gone with its messages when the broker restarts")
	}
	if expires, ok := got.Arguments["x-expires"]; ok {
		add("its argument x-expires is %s: the broker deletes it with its messages when it has no consumer for that many milliseconds",
			valueText(expires))
	}
	for _, limit := range []string{"x-max-length", "x-max-length-bytes"} {
		switch value, ok := got.Arguments[limit]; {
		case !ok:
		case strings.HasPrefix(overflowOf(got), overflowRejectPublish):
			add("its argument %s is %s, and it refuses what is over: a full queue stops the lanes that lead to it", limit, valueText(value))
		default:
			add("its argument %s is %s: over that its oldest messages are dead-lettered", limit, valueText(value))
		}
	}
	return found
}

// deadLetterWarning says where the messages of an adopted queue go that expire in it or cannot be carried on, if that is
// not the failure queue.
func (d *differ) deadLetterWarning(got QueueState) string {
	const what = "what expires in it, is rejected, or cannot be published again by a worker "
	failed := d.desired.ExchangeOf(RoleFailed)
	exchange, by, has := d.deadLetterExchange(got)
	_, exists := d.observed.Exchanges[exchange]
	switch {
	case !has:
		return fmt.Sprintf("it has no dead-letter exchange, and the RabbitMQ policy %q, which Redrive does not displace, gives it none: "+
			"%sis lost: add dead-letter-exchange: %s to that policy", by, what, failed)
	case exchange == failed:
		return ""
	case exchange == "":
		return "its dead-letter exchange is the default exchange: " + what + "is routed by its key, and not to the failure queue"
	case !exists:
		return fmt.Sprintf("its dead-letter exchange %q does not exist: %sis lost: make it", exchange, what)
	default:
		return fmt.Sprintf("its dead-letter exchange is %q: %sgoes there, and not to the failure queue", exchange, what)
	}
}

// deadLetterExchange of an adopted queue, by argument or else by the policy that applies once ours stands. by is the
// policy of others that decides.
func (d *differ) deadLetterExchange(got QueueState) (exchange, by string, has bool) {
	if argument, set := got.Arguments[argDeadLetterExchange]; set {
		return fmt.Sprint(argument), "", true
	}
	ours, hasOurs := d.ownPolicy(KindQueue, got.Name)
	rival, found := d.rival(KindQueue, got.Name, got.Policy, ours)
	if found && (!hasOurs || wins(rival, ours)) {
		exchange, has = rival.Definition[keyDeadLetterExchange].(string)
		return exchange, rival.Name, has
	}
	exchange, has = ours.Definition[keyDeadLetterExchange].(string)
	return exchange, "", has
}

// ReleasedQueue is a queue that was adopted and is not desired any more: it stays, and what we added to it goes once no worker
// consumes it any more.
type ReleasedQueue struct {
	Queue string
	// Steps that take away the way back from the lanes and our policy.
	Steps []Step
}

// leadsBack is true for a way back from the lanes, by a queue's own name or by a former one.
func (d *differ) leadsBack(binding Binding) bool {
	role := d.roles[binding.Source]
	return role == RoleReturn || role == RoleReturnAlternate
}

// releaseAdopted finds the queues that are not ours, are not desired any more, and still have what we added to them.
func (d *differ) releaseAdopted() {
	steps := map[string][]Step{}
	add := func(queue string, step Step) {
		if _, exists := d.observed.Queues[queue]; exists && d.queues[queue] == "" && !d.retiring(queue) {
			steps[queue] = append(steps[queue], step)
		}
	}
	for _, binding := range d.observed.Bindings {
		if !binding.ToExchange && binding.Arguments.Owner() == d.desired.Owner && d.leadsBack(binding) && !d.ofReplay(binding) {
			add(binding.Destination, Step{Action: ActionDelete, Binding: &binding})
		}
	}
	if !d.taken {
		named := policyNamesOf(d.desired.Prefix)
		for _, policy := range d.observed.Policies {
			if queue, ok := named.queueOf(policy.Name); ok {
				add(queue, Step{Action: ActionDelete, Policy: &policy})
			}
		}
	}
	for _, queue := range slices.Sorted(maps.Keys(steps)) {
		d.out.Released = append(d.out.Released, ReleasedQueue{Queue: queue, Steps: steps[queue]})
	}
}

// lettingGo is true for a queue that was adopted and still has what we added to it.
func (d *differ) lettingGo(queue string) bool {
	_, found := slices.BinarySearchFunc(d.out.Released, queue, func(l ReleasedQueue, queue string) int { return strings.Compare(l.Queue, queue) })
	return found
}
