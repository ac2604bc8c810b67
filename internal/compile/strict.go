package compile

import (
	"fmt"
	"time"

	"k8s.io/utils/ptr"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

const (
	defaultMaxCrashes = 3
	// SpareDeliveries are those of a message in a strictly ordered queue that may be neither retries nor crashes: the broker also
	// counts sessions that ended while it waited for its attempt.
	SpareDeliveries = 10
	// BrokersSpare is what the broker allows beyond that, so that it is the worker that gives a message up, with the reason on
	// it. A queue without order has a lower delivery limit than this, and one with order a higher one.
	BrokersSpare = 1000
)

// IsStrict is true for a queue whose messages are handled one after the other.
func IsStrict(queue *v1alpha1.Queue) bool {
	return queue.Ordering != nil && queue.Ordering.Type == v1alpha1.OrderingStrict
}

func maxCrashes(t *v1alpha1.Transport) int {
	if t.Spec.Poison == nil {
		return defaultMaxCrashes
	}
	return int(ptr.Deref(t.Spec.Poison.MaxCrashes, defaultMaxCrashes))
}

// checkStrict refuses policies that a strictly ordered queue cannot carry out: it waits with the message in hand, and knows
// of its past only how often it was delivered.
func checkStrict(t *v1alpha1.Transport, compiled map[string]*retry.Policy) error {
	limit := (&Config{ConsumerTimeout: ptr.Deref(t.Spec.Broker.ConsumerTimeout, v1alpha1.Duration{})}).HoldLimit()
	var problems []error
	longest := map[string]time.Duration{} // a policy is that of many queues, and all its schedules are followed for it
	for i := range t.Spec.Queues {
		if !IsStrict(&t.Spec.Queues[i]) {
			continue
		}
		for _, name := range policiesOf(t, &t.Spec.Queues[i]) {
			p := compiled[name]
			if p.MaxRetries() == retry.NoLimit {
				problems = append(problems, fmt.Errorf("spec.queues[%d] has Strict ordering, and policy %q is unlimited: one message could stop the queue "+
					"for as long as maxAge; give it maxRetries instead", i, name))
			}
			if strategy := p.UnlimitedStrategy(); strategy != "" {
				problems = append(problems, fmt.Errorf("spec.queues[%d] has Strict ordering, and strategy %q of policy %q is unlimited: one message could "+
					"stop the queue for as long as maxAge; give it maxRetries instead", i, strategy, name))
			}
			if _, known := longest[name]; !known {
				longest[name] = p.LongestDelay()
			}
			if longest[name] >= limit {
				problems = append(problems, fmt.Errorf("spec.queues[%d] has Strict ordering, and policy %q may wait %s before a retry: the message waits in "+
					"a worker, and less than %s is allowed, half of the broker's consumer timeout; set a shorter maxDelay in its backoff or "+
					"in the strategy with delayFrom, or, where RabbitMQ has a "+
					"longer consumer_timeout, broker.consumerTimeout", i, name, retry.Readable(longest[name]), retry.Readable(limit)))
			}
		}
	}
	return join(problems)
}

// deliveries gives the number of deliveries that each strictly ordered queue must allow for: every retry, every crash, and
// some that are nobody's fault.
func deliveries(t *v1alpha1.Transport, compiled map[string]*retry.Policy) map[string]int64 {
	needed := map[string]int64{}
	for i := range t.Spec.Queues {
		queue := &t.Spec.Queues[i]
		if !IsStrict(queue) {
			continue
		}
		var retries int64
		for _, name := range policiesOf(t, queue) {
			retries = max(retries, compiled[name].MostRetries())
		}
		needed[queue.Name] = retries + int64(maxCrashes(t)) + SpareDeliveries + BrokersSpare
	}
	return needed
}

// policiesOf are the names of the policies that may decide on the messages of a queue.
func policiesOf(t *v1alpha1.Transport, queue *v1alpha1.Queue) []string {
	names := make([]string, 0, 1+len(t.Spec.RetryPolicies))
	names = append(names, policyOf(t, queue))
	for _, rule := range t.Spec.RetryPolicies {
		names = append(names, rule.RetryPolicyRef.Name)
	}
	return names
}
