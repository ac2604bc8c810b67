package failurequeue

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"

	"redrive.dev/redrive/internal/topology"
)

// leastDeliveries is the delivery limit without which no failure queue is read. Each reading is a delivery of every message in it: with
// RabbitMQ's own limit of 20 the twenty-first would drop them all.
const leastDeliveries = 1_000_000

const (
	keyDeliveryLimit = "delivery-limit"
	keyDelayedRetry  = "delayed-retry-type"
)

// ErrUnpinned says that a look at the failure queue could drop its messages.
var ErrUnpinned = errors.New("the failure queue is not read")

// Pinned is nil where a failure queue may be read as often as anybody likes. Else the error says what is in the way. The broker tells of the
// definition that applies to a queue some seconds late, and of its policies at once: both have to be right.
func Pinned(queue topology.QueueState, policies map[string]topology.Policy) error {
	refused := func(by string) error {
		return fmt.Errorf("%w: the failure queue %q needs a delivery-limit of at least %d, since each look at a message is a delivery, and %s: "+
			"let Redrive's own policy apply", ErrUnpinned, queue.Name, leastDeliveries, by)
	}
	if queue.Type != topology.TypeQuorum {
		return fmt.Errorf("%w: %q is a %s queue, and only a quorum queue gives all its messages back in their order", ErrUnpinned, queue.Name, queue.Type)
	}
	if own, is := topology.WholeNumber(queue.Arguments["x-"+keyDeliveryLimit]); is && own < leastDeliveries {
		return refused("its argument x-delivery-limit is lower")
	}
	first := strongest(queue.Name, policies)
	if by := holdsBack(queue, first); by != "" {
		return fmt.Errorf("%w: RabbitMQ holds back what comes back to the failure queue %q, since %s sets delayed-retry-type: take that away",
			ErrUnpinned, queue.Name, by)
	}
	if len(first) == 0 {
		return refused("no RabbitMQ policy gives it one")
	}
	for _, policy := range first {
		if !isEnough(policy.Definition) {
			return refused(fmt.Sprintf("the RabbitMQ policy %q applies", policy.Name))
		}
	}
	switch {
	case isEnough(queue.EffectiveDefinition):
		return nil
	case queue.OperatorPolicy != "":
		return refused(fmt.Sprintf("the operator policy %q applies", queue.OperatorPolicy))
	default:
		return refused("RabbitMQ does not show yet that it has one, which takes some seconds")
	}
}

// holdsBack names what makes RabbitMQ 4.3 hold back each message that is given back; empty where nothing does. The queue would seem empty
// after a look, and with a bound drop what fails meanwhile.
func holdsBack(queue topology.QueueState, first []topology.Policy) string {
	holds := func(value any) bool { return value != nil && value != "disabled" }
	for _, policy := range first {
		if holds(policy.Definition[keyDelayedRetry]) {
			return fmt.Sprintf("the RabbitMQ policy %q", policy.Name)
		}
	}
	switch {
	case holds(queue.Arguments["x-"+keyDelayedRetry]):
		return "its declaration"
	case !holds(queue.EffectiveDefinition[keyDelayedRetry]):
		return ""
	case queue.OperatorPolicy != "":
		return fmt.Sprintf("the operator policy %q", queue.OperatorPolicy)
	default:
		return fmt.Sprintf("the RabbitMQ policy %q", queue.Policy)
	}
}

func isEnough(definition topology.Arguments) bool {
	limit, is := topology.WholeNumber(definition[keyDeliveryLimit])
	return is && limit >= leastDeliveries
}

// strongest are the policies of the highest priority among those that may apply to a queue; of several, any may. A pattern that only
// RabbitMQ's own engine understands may.
func strongest(queue string, policies map[string]topology.Policy) (first []topology.Policy) {
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		policy := policies[name]
		pattern, err := regexp.Compile(policy.Pattern)
		forQueues := slices.Contains([]string{"all", "queues", "quorum_queues"}, policy.ApplyTo)
		if !forQueues || err == nil && !pattern.MatchString(queue) || len(first) > 0 && policy.Priority < first[0].Priority {
			continue
		}
		if len(first) > 0 && policy.Priority > first[0].Priority {
			first = nil
		}
		first = append(first, policy)
	}
	return first
}
