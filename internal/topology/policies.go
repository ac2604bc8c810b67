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
	// pinPriority is above what users give their own policies.
	pinPriority = 1000
	// deliveryLimit is how often a message may come back unsettled before the broker moves it to the failure queue.
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
	return policyNames{start: "redrive." + strings.NewReplacer("%", "%25", ":", "%3A").Replace(prefix) + ":"}
}

func (n policyNames) exchange() string         { return n.start + "exchange" }
func (n policyNames) lanes() string            { return n.start + "lanes" }
func (n policyNames) failure() string          { return n.start + "failure" }
func (n policyNames) queue(name string) string { return n.start + "queue:" + name }

// queueOf returns the work queue that a policy of this prefix is for.
func (n policyNames) queueOf(policy string) (string, bool) {
	return strings.CutPrefix(policy, n.start+"queue:")
}

// IsWorkPolicy is true for the RabbitMQ policy of a work queue. What it limits is dead-lettered at once, so it must not be
// written before the way into the failure queue is there.
func IsWorkPolicy(policy, prefix string) bool {
	_, is := policyNamesOf(prefix).queueOf(policy)
	return is
}

// exactly is the pattern that matches one name and no other.
func exactly(name string) string {
	return "^" + regexp.QuoteMeta(name) + "$"
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
	return "^" + regexp.QuoteMeta(names.LanePrefix()) + "[0-9]+[a-z]+$"
}

// desiredPolicies hold what may change; arguments hold what never does.
func desiredPolicies(t *v1alpha1.Transport, names compile.Names) []Policy {
	named := policyNamesOf(names.Prefix)
	failure := Arguments{"delivery-limit": unlimitedDeliveries}
	if t.Spec.Failure != nil && t.Spec.Failure.DropOldestAfter != nil {
		failure["max-length"] = *t.Spec.Failure.DropOldestAfter
		failure["overflow"] = overflowDropHead
	}
	policies := []Policy{
		{
			Name: named.failure(), Pattern: exactly(names.FailureQueue()), ApplyTo: applyToQueues, Priority: pinPriority,
			Definition: failure,
		},
		{
			Name: named.lanes(), Pattern: lanesPattern(names), ApplyTo: applyToQueues, Priority: pinPriority,
			Definition: Arguments{"overflow": overflowRejectPublish},
		},
	}
	for i := range t.Spec.Queues {
		if policy, ok := workPolicy(&t.Spec.Queues[i], named); ok {
			policies = append(policies, policy)
		}
	}
	if t.Spec.Exchange != nil {
		policies = append(policies, Policy{
			Name: named.exchange(), Pattern: exactly(t.Spec.Exchange.Name), ApplyTo: applyToExchanges, Priority: workPriority,
			Definition: Arguments{argAlternateExchange: names.Standin()},
		})
	}
	return policies
}

// workPolicy is the policy of one work queue; a classic queue without limits needs none, and of an adopted one nothing is
// changed but what spec.limits says.
func workPolicy(queue *v1alpha1.Queue, named policyNames) (Policy, bool) {
	definition := Arguments{}
	if queueType(queue) == TypeQuorum && !adopts(queue) {
		definition["delivery-limit"] = deliveryLimit
	}
	if limits := queue.Limits; limits != nil {
		if limits.MessageTTL != nil {
			definition["message-ttl"] = limits.MessageTTL.Milliseconds()
		}
		if limits.DropOldestAfter != nil {
			definition["max-length"] = *limits.DropOldestAfter
			definition["overflow"] = overflowDropHead
		}
	}
	return Policy{
		Name: named.queue(queue.Name), Pattern: exactly(queue.Name), ApplyTo: applyToQueues, Priority: workPriority,
		Definition: definition,
	}, len(definition) > 0
}
