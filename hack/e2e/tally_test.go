//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/hack/e2e/ledger"
)

// tally is what became of a shop's messages, seen from outside: by the partner's answers and by the failure queue.
type tally struct {
	t    *testing.T
	shop *shop

	epoch string
	read  int
	// attempts by message, in the order in which they came.
	attempts map[string][]ledger.Entry
	// failed are the messages that were taken out of the failure queue, every copy of them.
	failed map[string][]amqp091.Delivery

	conn    *amqp091.Connection
	channel *amqp091.Channel
}

func newTally(t *testing.T, s *shop) *tally {
	c := &tally{t: t, shop: s, attempts: map[string][]ledger.Entry{}, failed: map[string][]amqp091.Delivery{}}
	t.Cleanup(c.close)
	return c
}

func (c *tally) close() {
	if c.conn != nil {
		_ = c.conn.CloseDeadline(time.Now().Add(time.Second))
	}
	c.conn, c.channel = nil, nil
}

// refresh empties the failure queue and then reads what is new in the ledger: in this order all attempts at a message that
// has failed are known.
func (c *tally) refresh(ctx context.Context) error {
	if err := c.drain(); err != nil {
		c.close() // the next one begins anew
		return err
	}
	return c.refreshLedger(ctx)
}

func (c *tally) refreshLedger(ctx context.Context) error {
	page, err := suite.readLedger(ctx, c.shop.name, c.read)
	if err != nil {
		return err
	}
	if c.epoch == "" {
		c.epoch = page.Epoch
	}
	if page.Epoch != c.epoch {
		c.t.Fatal("the ledger restarted: nothing can be counted any more")
	}
	c.read += len(page.Entries)
	for _, entry := range page.Entries {
		c.attempts[entry.Message] = append(c.attempts[entry.Message], entry)
	}
	return nil
}

func (c *tally) drain() error {
	if c.channel == nil || c.channel.IsClosed() {
		var err error
		if c.conn, c.channel, err = c.shop.dial(); err != nil {
			return err
		}
	}
	for {
		d, ok, err := c.channel.Get(failureQueue, true)
		if err != nil {
			return fmt.Errorf("read the failure queue: %w", err)
		}
		if !ok {
			return nil
		}
		c.failed[d.MessageId] = append(c.failed[d.MessageId], d)
	}
}

// statuses that a message was answered with, in turn.
func (c *tally) statuses(id string) []int {
	statuses := make([]int, 0, len(c.attempts[id]))
	for _, entry := range c.attempts[id] {
		statuses = append(statuses, entry.Status)
	}
	return statuses
}

// handled is how often a message was answered with success.
func (c *tally) handled(id string) int {
	times := 0
	for _, entry := range c.attempts[id] {
		if entry.Status == 200 {
			times++
		}
	}
	return times
}

// sums of what was published.
type sums struct{ published, handled, failed, lost, duplicated int }

// String is what stands in the log of every scenario.
func (s sums) String() string {
	return fmt.Sprintf("published=%d handled=%d failed=%d lost=%d duplicated=%d", s.published, s.handled, s.failed, s.lost, s.duplicated)
}

func (c *tally) sums(all published) (s sums, missing []string) {
	s.published = len(all)
	for id := range all {
		handled, failed := c.handled(id), len(c.failed[id])
		switch {
		case handled > 0:
			s.handled++
		case failed > 0:
			s.failed++
		default:
			s.lost++
			missing = append(missing, id)
		}
		if handled+failed > 1 {
			s.duplicated++
		}
	}
	slices.Sort(missing)
	return s, missing
}

// settle waits until every message that was published was handled or has failed, and fails where that does not come.
func (c *tally) settle(all published, limit time.Duration) sums {
	c.t.Helper()
	if len(all) == 0 {
		c.t.Fatal("nothing was published")
	}
	var total sums
	var missing []string
	state, ok := poll(c.t.Context(), limit, func() (bool, any) {
		if err := c.refresh(c.t.Context()); err != nil {
			return false, err
		}
		total, missing = c.sums(all)
		return total.lost == 0, total
	})
	if !ok {
		c.t.Fatalf("after %s %v; %s; missing are %d, such as %v", limit, state, total, len(missing), missing[:min(10, len(missing))])
	}
	c.t.Log(total)
	return total
}

// awaitEntries waits until a number of messages fulfils a condition. The failure queue is emptied meanwhile.
func (c *tally) awaitEntries(limit time.Duration, what string, number int, condition func(id string) bool) {
	c.t.Helper()
	await(c.t, limit, what, func() (bool, any) {
		if err := c.refresh(c.t.Context()); err != nil {
			return false, err
		}
		found := 0
		for id := range c.attempts {
			if condition(id) {
				found++
			}
		}
		return found >= number, fmt.Sprintf("%d of %d", found, number)
	})
}

// gap is the time from one attempt at a message to the next, by the ledger's clock; false where there was none.
func (c *tally) gap(id string, from int) (time.Duration, bool) {
	if entries := c.attempts[id]; len(entries) > from {
		return entries[from].At.Sub(entries[from-1].At), true
	}
	return 0, false
}

// latest is the greatest delay of a retry past its due time, by the delays of the policy. The last one repeats.
func (c *tally) latest(delays ...time.Duration) (late time.Duration) {
	for id, entries := range c.attempts {
		for i := 1; i < len(entries); i++ {
			// A retry has another number than the attempt before; what comes twice is not late but double.
			if gap, ok := c.gap(id, i); ok && entries[i].Attempt == entries[i-1].Attempt+1 {
				late = max(late, gap-delays[min(entries[i-1].Attempt, len(delays))-1])
			}
		}
	}
	return late.Round(10 * time.Millisecond)
}

// reason in the failure queue; empty where the message is not there.
func (c *tally) reason(id string) string {
	if copies := c.failed[id]; len(copies) > 0 {
		text, _ := copies[0].Headers["redrive-reason"].(string)
		return text
	}
	return ""
}

// count of a queue's messages, of those that wait for a consumer.
func (s *shop) count(queue string) (int, error) {
	conn, channel, err := s.dial()
	if err != nil {
		return 0, err
	}
	q, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	return q.Messages, errors.Join(err, conn.Close())
}
