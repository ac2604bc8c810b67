package failurequeue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"redrive.dev/redrive/internal/topology"
)

// ErrNotWhole says that a look could not see all messages, for others had some when it began.
var ErrNotWhole = errors.New("what was seen is not all")

const (
	// usualWait bounds how long messages may take to come back from whoever had them. What the management API tells is up to ten seconds old.
	usualWait = 20 * time.Second
	waitPause = 300 * time.Millisecond
)

// whole waits until nobody else has messages of the queue. Those of a look that was killed come back a little after its lock is free, and those of
// a broker that was killed a little after it answers again. Where some stay away, the look is noted as one that is not whole. What takes no longer than the
// next count of the management API is not worth a word.
func (s *scan) whole(ctx context.Context) error {
	back := s.newReady()
	defer back.end()
	var first topology.QueueState
	told := false
	for began := time.Now(); ; {
		now, err := s.State(ctx)
		if err != nil {
			return fmt.Errorf("ask the management API how many messages the failure queue has: %w", err)
		}
		ready := now.Ready
		if count, err := back.count(); err == nil { // else the login may not ask
			ready = int64(count)
		}
		if first.Name == "" {
			first = now
		}
		waited := time.Since(began)
		late := waited >= s.wait
		missing := elsewhere(ready, &first, &now, late)
		switch {
		case missing == "":
			return nil
		case late:
			s.partial = fmt.Errorf("%w: %s", ErrNotWhole, missing)
			return nil
		case !told && waited >= s.wait/3:
			told = true
			s.tell(fmt.Sprintf("%s; waiting up to %v", missing, s.wait))
		}
		select {
		case <-time.After(waitPause):
		case <-ctx.Done():
			return fmt.Errorf("interrupted: %w", ctx.Err())
		}
	}
}

// elsewhere says what keeps a look from being whole; empty where nothing does. ready messages can be delivered now. The management API counts all
// of them, some seconds late: first is what it told first, and now what it tells last.
func elsewhere(ready int64, first, now *topology.QueueState, late bool) string {
	switch all := now.Messages; {
	case all == nil:
		return fmt.Sprintf("the management API does not tell how many messages the queue %q has", now.Name)
	case ready == *all:
		return ""
	case ready < *all:
		return fmt.Sprintf("RabbitMQ has %d of the %d messages of the queue %q; others have the rest", ready, *all, now.Name)
	case now.Unacked > 0:
		return fmt.Sprintf("others have %d messages of the queue %q", now.Unacked, now.Name)
	case now.Tick == first.Tick && !late: // what others have may be as much as what has come since
		return fmt.Sprintf("messages have come to the queue %q since RabbitMQ counted them", now.Name)
	}
	return ""
}
