package amqp

import (
	"fmt"
	"time"
)

const (
	// quietTime without a delivery, and with room for one, shows that a queue gets few.
	quietTime = 500 * time.Millisecond
	// takeTime is enough to take the deliveries that have arrived.
	takeTime = 50 * time.Millisecond
	// fillTime bounds the wait for a consumer to be full or quiet; twice that for one which is soon full.
	fillTime = time.Second
	// priority of the small consumer that draws a queue's messages away from the one that is cancelled.
	priority = 1
)

// leave is the time before a consumer is cancelled. What a quorum queue has assigned to a consumer, and what has not reached
// the channel when that is cancelled, comes back to the queue and counts as redelivered, like what a crashed worker held. So
// a consumer is cancelled when nothing can be under way to it: when it is full, or when another one gets what comes.
type leave struct {
	began time.Time
	// arrived counts the deliveries since then.
	arrived int
	// held are settlements that are not sent yet, for each asks for another message.
	held []settlement
}

// stay sends what was kept for a cancel.
func (s *consuming) stay() error {
	if s.leaving == nil {
		return nil
	}
	held := s.leaving.held
	s.leaving, s.sent = nil, time.Now()
	for _, settled := range held {
		if err := s.send(settled); err != nil {
			return err
		}
	}
	return s.flush()
}

// leave cancels the current consumer once nothing is under way to it. A strict one is not cancelled before its message is
// settled, for then the broker hands the next one to another consumer. One without a message is not cancelled at all: the
// channel ends, which gives a message on its way back to its place before another consumer gets any.
func (s *consuming) leave() (over bool, err error) {
	if s.leaving == nil {
		s.leaving = &leave{began: time.Now()}
	}
	stood := s.wire.door.Load().stood() // and then nothing arrives that is under way
	quiet := quietTime - time.Since(latest(s.current.stirred, stood))
	fill := fillTime - time.Since(latest(s.leaving.began, stood))
	if s.current.passing {
		fill += fillTime
	}
	switch {
	case s.current.strict && s.current.unsettled > len(s.leaving.held):
		return false, nil
	case s.current.unsettled >= s.current.prefetch:
		return false, s.cancel()
	case quiet > 0 && fill > 0:
		s.wake = time.After(min(quiet, fill))
		return false, nil
	case s.current.strict:
		return true, nil
	case s.current.passing && quiet <= 0:
		return false, s.cancel()
	default:
		return false, s.divert()
	}
}

// divert cancels a consumer that has room. A small consumer of a higher priority gets the queue's messages from then on; it
// is cancelled in its turn when it is full, or at once where the queue is quiet. Its prefetch is half of what came while the
// other one waited: it is not full before that is gone, and soon after.
func (s *consuming) divert() error {
	room := s.current.prefetch
	if !s.current.passing {
		earlier := len(s.loans) - s.current.unsettled
		room = max(room-earlier, 1)
	}
	next := &stream{prefetch: min(1+s.leaving.arrived/2, room), passing: true, stirred: s.current.stirred}
	if err := s.consume(next); err != nil {
		return err
	}
	s.next = next
	return s.cancel()
}

// cancel returns when the broker has cancelled the consumer; what that was sent before is still to be taken.
func (s *consuming) cancel() error {
	s.cancelled = true
	if err := s.askToCancel(s.current.tag); err != nil {
		return err
	}
	return s.stay()
}

func (s *consuming) askToCancel(tag string) error {
	err := s.verdicts.ask(s.queue, func() error {
		return s.ask(func() error { return s.channel.Cancel(tag, false) })
	})
	if err != nil {
		return fmt.Errorf("cancel the consumer: %w", err)
	}
	return nil
}
