package topology

import (
	"regexp"
	"strings"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

const (
	// workPriority lets a user override the limits of a work queue on purpose.
	workPriority = 100
	// waitingPriority and idlePriority are for the policies of a producers' exchange that several Transports share: that of one which routes unroutable
	// messages while another one does already, and that of one which routes none. They leave room for policies that were touched.
	waitingPriority = 98
	idlePriority    = 96
	// pinPriority is above what users give their own policies.
	pinPriority = 1000
	// deliveryLimit is how often a message may come back unsettled before the broker moves it to the failure queue. Of
	// quarantined messages it stops those whose worker vanishes together with its journal.
	deliveryLimit int64 = 20
	// unlimitedDeliveries stands for no limit: brokers before 4.0 refuse -1, those since 4.0 fall back to 20 without one.
	unlimitedDeliveries int64 = 1<<31 - 1

	applyToQueues    = "queues"
	applyToExchanges = "exchanges"

	overflowRejectPublish = "reject-publish"
	overflowDropHead      = "drop-head"
	strategyAtLeastOnce   = "at-least-once"
	strategyAtMostOnce    = "at-most-once"
)

// policyNames builds the names of one Transport's RabbitMQ policies. The prefix is escaped, so that the policies of one
// prefix can be told from those of every other by their names alone.
type policyNames struct{ start string }

func policyNamesOf(prefix string) policyNames {
	// A Replacer takes longer to make than all else about a queue that is compared.
	escaped := strings.ReplaceAll(strings.ReplaceAll(prefix, "%", "%25"), ":", "%3A")
	return policyNames{start: ourStart + escaped + ":"}
}

func (n policyNames) exchange() string           { return n.start + "exchange" }
func (n policyNames) lanes() string              { return n.start + "lanes" }
func (n policyNames) failure(name string) string { return n.start + "failure:" + name }
func (n policyNames) queue(name string) string   { return n.start + "queue:" + name }

// queueOf returns the work or quarantine queue that a policy of this prefix is for.
func (n policyNames) queueOf(policy string) (string, bool) {
	return strings.CutPrefix(policy, n.start+"queue:")
}

// failureOf returns the failure queue that a policy of this prefix is for: the present one or a former one. Each has a policy of its own, so that
// one which is written late is never that of another queue. Before there were those there was one for all of them, whose pattern changed: commonFailurePolicy
// stands for that.
func (n policyNames) failureOf(policy string) (queue string, is bool) {
	if policy == n.start+"failure" {
		return commonFailurePolicy, true
	}
	return strings.CutPrefix(policy, n.start+"failure:")
}

// PinOf is the failure queue that a step takes the policy from which keeps others off; it is false for other steps.
func PinOf(step Step, prefix string) (queue string, is bool) {
	if step.Action != ActionDelete || step.Policy == nil {
		return "", false
	}
	queue, is = policyNamesOf(prefix).failureOf(step.Policy.Name)
	return queue, is && queue != commonFailurePolicy
}

// commonFailurePolicy is no queue's name.
const commonFailurePolicy = ""

// failurePolicy pins a failure queue, also one that is not wanted any more until it is empty and gone: without one a broad policy of others would drop
// what is in it.
func failurePolicy(queue string, named policyNames) Policy {
	return Policy{
		Name: named.failure(queue), Pattern: exactly(queue), ApplyTo: applyToQueues, Priority: pinPriority,
		Definition: Arguments{keyDeliveryLimit: unlimitedDeliveries},
	}
}

// IsWorkPolicy is true for the RabbitMQ policy of a work queue or its quarantine queue. What it limits is dead-lettered at
// once, so it must not be written before the way into the failure queue is there.
func IsWorkPolicy(policy, prefix string) bool {
	_, is := policyNamesOf(prefix).queueOf(policy)
	return is
}

// exactly is the pattern that matches one name and no other.
func exactly(name string) string {
	return "^" + regexp.QuoteMeta(name) + "$"
}

// exactName is the one name that a pattern matches, where it is one that exactly gives.
func exactName(pattern string) (name string, exact bool) {
	quoted, begins := strings.CutPrefix(pattern, "^")
	quoted, ends := strings.CutSuffix(quoted, "$")
	if !begins || !ends {
		return "", false
	}
	plain := make([]byte, 0, len(quoted))
	for i := 0; i < len(quoted); i++ {
		if quoted[i] == '\\' && i+1 < len(quoted) {
			i++
		}
		plain = append(plain, quoted[i])
	}
	name = string(plain)
	return name, exactly(name) == pattern
}

// anyOf is the pattern that matches some names and no other.
func anyOf(names []string) string {
	if len(names) == 1 {
		return exactly(names[0])
	}
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}

// lanesPattern matches all lanes of a prefix, those on their way out too.
func lanesPattern(names compile.Names) string {
	return "^" + regexp.QuoteMeta(names.LanePrefix()) + `[0-9]+[a-z]+(\.high)?$`
}

// ourStart is what the names of all Transports' policies start with.
const ourStart = "redrive."

// IsOurName is true for a policy that is some Transport's by its name.
func IsOurName(policy string) bool { return strings.HasPrefix(policy, ourStart) }

// touchedPriority is the other of the two priorities that a policy of ours may have. It is the smaller one, so that it wins over no policy
// that is to win over ours.
func touchedPriority(priority int) int { return priority - 1 }

// Touched is a policy as it is wanted, with the other priority than it has. RabbitMQ ignores a policy that is written as it is.
func (p Policy) Touched(wanted Policy) Policy {
	if p.Priority == wanted.Priority {
		wanted.Priority = touchedPriority(wanted.Priority)
	}
	return wanted
}

// desiredPolicies hold what may change; arguments hold what never does.
func desiredPolicies(t *v1alpha1.Transport, needs compile.Needs, names compile.Names) []Policy {
	named := policyNamesOf(names.Prefix)
	failure := failurePolicy(names.FailureQueue(), named)
	if t.Spec.Failure != nil && t.Spec.Failure.DropOldestAfter != nil {
		failure.Definition[keyMaxLength] = *t.Spec.Failure.DropOldestAfter
		failure.Definition[keyOverflow] = overflowDropHead
	}
	policies := []Policy{
		failure,
		{
			Name: named.lanes(), Pattern: lanesPattern(names), ApplyTo: applyToQueues, Priority: pinPriority,
			Definition: Arguments{keyOverflow: overflowRejectPublish},
		},
	}
	for _, work := range quarantined(t) {
		policies = append(policies, quarantinePolicy(names.Quarantine(work), named))
	}
	for i := range t.Spec.Queues {
		if policy, ok := workPolicy(&t.Spec.Queues[i], needs, named); ok {
			policies = append(policies, policy)
		}
	}
	if t.Spec.Exchange != nil {
		policy := Policy{
			Name: named.exchange(), Pattern: exactly(t.Spec.Exchange.Name), ApplyTo: applyToExchanges, Priority: idlePriority,
			Definition: Arguments{argAlternateExchange: names.Alternate()},
		}
		if t.Spec.Exchange.UnroutedTo != nil {
			policy.Priority = workPriority
		}
		policies = append(policies, policy)
	}
	return policies
}

// quarantinePolicy pins one quarantine queue. Each has its own, because RabbitMQ 4.3 takes patterns of at most 1,024 bytes, and
// a pattern by their common ending would match queues of others.
func quarantinePolicy(queue string, named policyNames) Policy {
	return Policy{
		Name: named.queue(queue), Pattern: exactly(queue), ApplyTo: applyToQueues, Priority: pinPriority,
		Definition: Arguments{keyDeliveryLimit: deliveryLimit, keyOverflow: overflowRejectPublish},
	}
}

// workPolicy is the policy of one work queue; a classic queue without limits needs none, and of an adopted one nothing is
// changed but what spec.limits says.
func workPolicy(queue *v1alpha1.Queue, needs compile.Needs, named policyNames) (Policy, bool) {
	definition := Arguments{}
	switch {
	case compile.IsStrict(queue):
		definition[keyDeliveryLimit] = strictLimit(queue, needs)
	case queueType(queue) == TypeQuorum && !adopts(queue):
		definition[keyDeliveryLimit] = deliveryLimit
	}
	if limits := queue.Limits; limits != nil {
		if limits.MessageTTL != nil {
			definition[keyMessageTTL] = limits.MessageTTL.Milliseconds()
		}
		if limits.DropOldestAfter != nil {
			definition[keyMaxLength] = *limits.DropOldestAfter
			definition[keyOverflow] = overflowDropHead
		}
	}
	return Policy{
		Name: named.queue(queue.Name), Pattern: exactly(queue.Name), ApplyTo: applyToQueues, Priority: workPriority,
		Definition: definition,
	}, len(definition) > 0
}

// strictLimit is the delivery limit of a strictly ordered queue. Its messages come back unsettled for each retry, and keep
// their place only under a limit: RabbitMQ 3.10 without one, and 4.0 with -1, put them behind all others. A message that
// blocks its queue is never to be moved away.
func strictLimit(queue *v1alpha1.Queue, needs compile.Needs) int64 {
	if needed, known := needs.Deliveries[queue.Name]; known && queue.Ordering.OnFailure != v1alpha1.OnFailureBlock {
		return needed
	}
	return unlimitedDeliveries
}
