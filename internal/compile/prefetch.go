package compile

import (
	"errors"
	"fmt"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

// defaultConsumerTimeout is how long RabbitMQ waits for the acknowledgement of a delivery unless told otherwise.
// See https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout.
const defaultConsumerTimeout = 30 * time.Minute

// HoldLimit is how long a delivery may wait in a worker and be handled: half of the broker's consumer timeout, so that
// settling it has time too.
func (c *Config) HoldLimit() time.Duration { return c.LoanLimit() / 2 }

// LoanLimit is how long the broker waits for the settlement of a delivery: its consumer timeout.
func (c *Config) LoanLimit() time.Duration {
	if timeout := c.ConsumerTimeout.Duration.Duration; timeout > 0 {
		return timeout
	}
	return defaultConsumerTimeout
}

// Loans is the number of messages that those queues may hold together that have any: twice the concurrency, or as many as can be
// handled well within the broker's consumer timeout, with one of each other queue beside them. It is 1 at least.
func (c *Config) Loans() int {
	loans := 2 * c.Concurrency
	if longest := c.LongestRun(); longest > 0 {
		rounds := int64((c.HoldLimit() - 1) / longest)
		loans = int(min(int64(loans), rounds*int64(c.Concurrency)-int64(len(c.Queues)-1)))
	}
	return max(1, loans)
}

// Prefetch is the number of unacknowledged messages for the consumer of each queue where all are equally busy: its share of
// Loans, 1 at least. The worker moves them to where the messages are; then one queue has Loans, and each other one has 1.
func (c *Config) Prefetch() int {
	consumed := 0
	for _, queue := range c.Queues {
		consumed += len(queue.Consumed())
	}
	return max(1, c.Loans()/max(1, consumed))
}

// LongestRun is how long the handler may have a message: each try at once has a timeout of its own.
func (c *Config) LongestRun() time.Duration {
	var immediate int64
	for _, spec := range c.Policies {
		if spec.Immediate != nil {
			immediate = max(immediate, int64(*spec.Immediate))
		}
	}
	return c.Timeout.Duration.Duration * time.Duration(1+immediate)
}

// checkPrefetch goes by the queues of the spec. Those that are only to be emptied come and go by themselves: a configuration that had no room for them would
// leave their messages to nobody. One that waits too long behind them is given back to its queue.
func checkPrefetch(all *Config) error {
	if all.Concurrency < 1 {
		return errors.New("concurrency is less than 1")
	}
	if all.Timeout.Duration.Duration <= 0 {
		return errors.New("timeout is not positive")
	}
	c := all.withoutLeaving()
	if len(c.Queues) == 0 {
		return nil
	}
	// The worst case: all queues get messages at a time when one of them may hold all that are shared out.
	prefetch := c.Loans() + len(c.Queues) - 1
	rounds := (prefetch + c.Concurrency - 1) / c.Concurrency
	hold := time.Duration(rounds) * c.LongestRun()
	if hold < c.HoldLimit() {
		return nil
	}
	tries := ""
	if immediate := c.LongestRun() / c.Timeout.Duration.Duration; immediate > 1 {
		tries = fmt.Sprintf(" (%d tries at once of %s each)", immediate, retry.Readable(c.Timeout.Duration.Duration))
	}
	remedy := "lower timeout, or the policies' immediate"
	if rounds > 1 {
		remedy = "raise concurrency, lower timeout or the policies' immediate, spread the queues over more worker groups"
	}
	return fmt.Errorf("a message could be held for %s: %d prefetched for the %d queue(s), %d at a time, %s each%s; less than %s is allowed, half of "+
		"the broker's consumer timeout: %s, or, where RabbitMQ has a longer consumer_timeout, set broker.consumerTimeout",
		retry.Readable(hold), prefetch, len(c.Queues), c.Concurrency, retry.Readable(c.LongestRun()), tries, retry.Readable(c.HoldLimit()), remedy)
}

// withoutLeaving is the configuration without the queues that are only to be emptied, and the policies that only these have.
func (c *Config) withoutLeaving() Config {
	with := *c
	with.Queues, with.Policies = nil, map[string]v1alpha1.RetryPolicySpec{}
	for _, queue := range c.Queues {
		if !queue.Leaving {
			with.Queues = append(with.Queues, queue)
			with.Policies[queue.Policy] = c.Policies[queue.Policy]
		}
	}
	for _, rule := range c.Rules {
		with.Policies[rule.Policy] = c.Policies[rule.Policy]
	}
	return with
}
