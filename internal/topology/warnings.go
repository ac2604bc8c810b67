package topology

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
)

func (d *differ) warnings() {
	for _, exchange := range d.desired.Exchanges {
		d.exchangeWarnings(exchange)
	}
	for _, queue := range d.desired.Queues {
		d.queueWarnings(queue)
		d.delayedRetryWarnings(queue, d.winnerOf(queue.Name, d.observed.Queues[queue.Name]))
	}
	for _, standin := range d.emptied {
		d.delayedRetryWarnings(standin, d.winnerOf(standin.Name, d.observed.Queues[standin.Name]))
	}
	d.unmarkedLeft(d.formersLeft())
	d.disordered()
	d.stalls()
	d.foreignBindings()
}

// formersLeft tells of queues of former names that are there and not taken over, and returns them.
func (d *differ) formersLeft() map[string]bool {
	former := map[string]bool{}
	for _, want := range d.desired.Queues {
		for _, name := range want.PreviousNames {
			got, exists := d.observed.Queues[name]
			if _, wanted := d.queues[name]; !exists || wanted || d.retiring(name) {
				continue
			}
			why := "it carries no mark of this Transport and is not in status.created, so it may belong to someone else"
			if claim, claimed := d.claimOn(got.Queue); claimed {
				why = "it belongs to " + ownerText(claim.owner, d.desired.Owner)
			} else if d.lettingGo(name) {
				why = "it was adopted"
			}
			d.warnf(KindQueue, name, "", "previousNames of queue %s names it, but Redrive does not take it over: %s. Its messages have no consumer. If it is yours, "+
				"put it into spec.queues until it is empty; else take its name out of previousNames", want.Name, why)
			d.out.Warnings[len(d.out.Warnings)-1].Unread = true
			former[name] = true
		}
	}
	return former
}

// unmarkedLeft tells of queues that look as if this Transport had made them and that nobody remembers: classic queues carry no mark.
func (d *differ) unmarkedLeft(told map[string]bool) {
	exchange := compile.Names{Prefix: d.desired.Prefix}.Failed()
	if d.observed.Exchanges[exchange].Arguments.Owner() != d.desired.Owner {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(d.observed.Queues)) {
		got := d.observed.Queues[name]
		_, wanted := d.queues[name]
		if wanted || told[name] || d.retiring(name) || got.Arguments.Owner() != "" || got.Arguments[argDeadLetterExchange] != exchange {
			continue
		}
		if holds := got.Messages != nil && *got.Messages > 0; holds && got.Consumers == 0 {
			d.warnf(KindQueue, name, "", "it dead-letters to %s, as the classic queues of this Transport do, and is not in spec.queues. Its messages have no "+
				"consumer: put it into spec.queues until it is empty, or delete it", exchange)
			d.out.Warnings[len(d.out.Warnings)-1].Unread = true
		}
	}
}

func (d *differ) warnf(kind Kind, name, reason, format string, arguments ...any) {
	d.out.Warnings = append(d.out.Warnings, Finding{
		Object: Ref{Kind: kind, Name: name}, Reason: reason, Message: fmt.Sprintf(format, arguments...),
	})
}

func (d *differ) exchangeWarnings(exchange Exchange) {
	got := d.observed.Exchanges[exchange.Name]
	ours, hasOurs := d.ownPolicy(KindExchange, exchange.Name)
	winner, found := d.rival(KindExchange, exchange.Name, got.Policy, ours)
	if exchange.Role != RoleProducers {
		_, alternate := winner.Definition[argAlternateExchange]
		if found && alternate && exchange.Arguments[argAlternateExchange] == nil {
			d.warnf(KindExchange, exchange.Name, v1alpha1.ReasonConflictingBrokerPolicy, "the RabbitMQ policy %q gives it an alternate "+
				"exchange: messages that it cannot route would vanish there instead of coming back to the worker: narrow its pattern",
				winner.Name)
		}
		return
	}
	if alternate, ok := got.Arguments[argAlternateExchange]; ok {
		d.warnf(KindExchange, exchange.Name, "", "its argument %s=%v wins over spec.exchange.unroutedTo: unroutable messages go there",
			argAlternateExchange, alternate)
	}
	if _, shared := alternateOf(winner); hasOurs && found && !shared {
		d.rivalry(KindExchange, exchange.Name, ours, winner)
	}
}

func (d *differ) queueWarnings(queue Queue) {
	got := d.observed.Queues[queue.Name]
	ours, hasOurs := d.ownPolicy(KindQueue, queue.Name)
	rival, found := d.rival(KindQueue, queue.Name, got.Policy, ours)
	if found && hasOurs && (queue.Role == RoleWork || wins(rival, ours)) {
		d.rivalry(KindQueue, queue.Name, ours, rival)
	}
	effective := got.EffectiveDefinition
	source := "an operator policy"
	remedy := "narrow its pattern (rabbitmqctl list_operator_policies shows it)"
	switch {
	case found && (!hasOurs || wins(rival, ours)):
		effective, source = rival.Definition, fmt.Sprintf("the RabbitMQ policy %q", rival.Name)
		remedy = "narrow its pattern"
		if hasOurs {
			remedy += fmt.Sprintf(", or give it a priority below %d", ours.Priority)
		}
	case !hasOurs || got.Policy != ours.Name || len(comparePolicy(ours, d.observed.Policies[ours.Name], false)) > 0:
		// The broker shows a change of policies some seconds late; until then its figure says nothing.
		effective = nil
	}
	if harm := harmOf(queue, ours.Definition, effective); harm != "" {
		d.warnf(KindQueue, queue.Name, v1alpha1.ReasonConflictingBrokerPolicy, "%s %s: %s", source, harm, remedy)
	}
	counts := queue.Type != TypeClassic // One that is to become Strict has no limit before.
	if harm := strictHarm(ours.Definition, effective); queue.Strict && counts && effective != nil && harm != "" {
		d.warnf(KindQueue, queue.Name, v1alpha1.ReasonConflictingBrokerPolicy, "%s %s: %s", source, harm, remedy)
		// Where ours has just been raised, the broker's figure may still be the one from before.
		d.out.Warnings[len(d.out.Warnings)-1].Passing = got.Policy == ours.Name
	}
}

// strictHarm says what an effective policy does to a strictly ordered queue, whose messages come back to it unsettled for
// each retry, or nothing.
func strictHarm(ours, effective Arguments) string {
	needed, _ := WholeNumber(ours[keyDeliveryLimit])
	limit, set := WholeNumber(effective[keyDeliveryLimit])
	switch {
	case !set || limit < 0:
		return "leaves it without a delivery limit: a message that fails goes behind all others, or to the failure queue before its last retry"
	case limit < needed:
		return fmt.Sprintf("sets delivery-limit %d where %d is needed: messages go to the failure queue before their last retry", limit, needed)
	default:
		return ""
	}
}

// rivalry names the policy that stops applying, and the one that does.
func (d *differ) rivalry(kind Kind, name string, ours, rival Policy) {
	if wins(rival, ours) {
		d.warnf(kind, name, v1alpha1.ReasonPolicyOverridden, "the RabbitMQ policy %q (priority %d) applies instead of %q (priority "+
			"%d), whose settings have no effect: lower its priority or narrow its pattern",
			rival.Name, rival.Priority, ours.Name, ours.Priority)
		return
	}
	d.warnf(kind, name, v1alpha1.ReasonPolicyOverridden, "the RabbitMQ policy %q does not apply to it, because %q does: its settings "+
		"(%s) have no effect here: narrow its pattern, and set in the Transport what you need of them",
		rival.Name, ours.Name, strings.Join(argumentTexts(rival.Definition), ", "))
}

// wins is true where another policy applies instead of ours. At equal priority the broker's choice is undefined.
func wins(rival, ours Policy) bool { return rival.Priority >= ours.Priority }

// ownPolicy returns the desired policy for an object.
func (d *differ) ownPolicy(kind Kind, name string) (Policy, bool) {
	for _, policy := range d.desired.Policies {
		if (policy.ApplyTo == applyToExchanges) == (kind == KindExchange) && d.matches(policy, name) {
			return policy, true
		}
	}
	return Policy{}, false
}

func (d *differ) typeOf(queue string) string {
	for _, want := range d.desired.Queues {
		if want.Name == queue {
			return want.Type
		}
	}
	return ""
}

func (d *differ) matches(policy Policy, name string) bool {
	if only, exact := exactName(policy.Pattern); exact {
		return only == name
	}
	pattern := d.patternOf(policy.Pattern)
	return pattern != nil && pattern.MatchString(name)
}

func (d *differ) patternOf(text string) *regexp.Regexp {
	pattern, known := d.patterns[text]
	if !known {
		pattern = d.compiled(text)
		d.patterns[text] = pattern
	}
	return pattern
}

// maxPatternSteps bounds the weight of all patterns of a vhost that are compiled in one look. Anybody who may make policies there writes them.
const maxPatternSteps = 20_000

// compiled is a pattern of somebody else's policy. One that Go does not understand, or that would take much memory, is none: it is
// judged by what the broker says. So are all that follow the first one without room: each look at a text costs time, too.
func (d *differ) compiled(text string) *regexp.Regexp {
	if d.patternsFull {
		return nil
	}
	steps, weight, err := retry.PatternSteps(text)
	if err != nil || steps > retry.MaxPattern {
		return nil
	}
	if d.patternsFull = d.patternWeight+weight > maxPatternSteps; d.patternsFull {
		return nil
	}
	d.patternWeight += weight
	pattern, _ := regexp.Compile(text)
	return pattern
}

// harmOf says what an effective policy does to a queue beside what ours asks for, or nothing.
func harmOf(queue Queue, ours, effective Arguments) string {
	foreign := func(key string) bool {
		value, set := effective[key]
		return set && !same(value, ours[key])
	}
	bounded := foreign(keyMaxLength) || foreign(keyMaxLengthBytes)
	overflow := effective[keyOverflow]
	if overflow == nil {
		overflow = argumentOr(queue.Arguments, argOverflow)
	}
	rejects := strings.HasPrefix(fmt.Sprint(overflow), overflowRejectPublish)
	switch {
	case foreign(keyExpires):
		return "sets expires: the broker deletes the queue with its messages when it is unused"
	case queue.Role == RoleLane && foreign(keyMessageTTL):
		return "sets message-ttl: retries come back too early"
	case queue.Role == RoleLane && bounded && !rejects:
		return "bounds its length: retries come back too early when it is full"
	case queue.Role == RoleLane && bounded:
		return "bounds its length: retries are refused when it is full"
	case queue.Role == RoleQuarantine && foreign(keyMessageTTL):
		return "sets message-ttl: messages go to the failure queue when they are that old, and are not tried"
	case queue.Role == RoleQuarantine && bounded && !rejects:
		return "bounds its length: the oldest messages go to the failure queue when it is full, and are not tried"
	case queue.Role == RoleFailure && foreign(keyMessageTTL):
		return "sets message-ttl: failed messages are dropped when they are that old"
	case queue.Role == RoleFailure && bounded && !rejects:
		return "bounds its length: the oldest failed messages are dropped when it is full"
	case bounded && rejects:
		return "bounds its length and refuses what is over: a full queue stops the lanes that lead to it"
	default:
		return ""
	}
}
