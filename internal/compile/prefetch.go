package compile

import (
	"errors"
	"fmt"
	"time"
)

// consumerTimeout is how long RabbitMQ waits for the acknowledgement of a delivery unless told otherwise.
// See https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout.
const consumerTimeout = 30 * time.Minute

// holdAtMost is how long a delivery may wait and be handled: well within consumerTimeout, so that settling has time too.
const holdAtMost = consumerTimeout * 2 / 3

// Prefetch is the number of unacknowledged messages for the consumer of each queue. Together they are at most twice the
// concurrency, or one for each queue, and never more than can be handled well within the broker's consumer timeout.
func (c *Config) Prefetch() int {
	rounds := 2
	if c.Timeout.Duration.Duration > 0 {
		rounds = min(rounds, int(holdAtMost/c.Timeout.Duration.Duration))
	}
	return max(1, rounds*c.Concurrency/max(1, len(c.Queues)))
}

func checkPrefetch(c *Config) error {
	if c.Concurrency < 1 {
		return errors.New("concurrency is less than 1")
	}
	timeout := c.Timeout.Duration.Duration
	if timeout <= 0 {
		return errors.New("timeout is not positive")
	}
	rounds := (c.Prefetch()*len(c.Queues) + c.Concurrency - 1) / c.Concurrency
	if hold := time.Duration(rounds) * timeout; hold > holdAtMost {
		return fmt.Errorf("%d queues with concurrency %d and timeout %s: a message could wait %s to be settled, and the broker's consumer "+
			"timeout allows for %s; raise concurrency, lower timeout, or spread the queues over more workers",
			len(c.Queues), c.Concurrency, timeout, hold, holdAtMost)
	}
	return nil
}
