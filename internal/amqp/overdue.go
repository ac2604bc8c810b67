package amqp

import (
	"fmt"
	"time"
)

const (
	// consumerTimeout is that of a broker which was not told otherwise.
	consumerTimeout = 30 * time.Minute
	// lateTime is how much later than the broker this side may count a delivery, and no more than a lateShare of the timeout.
	lateTime  = 5 * time.Second
	lateShare = 10
	// overdueTick is the time between two looks at what is on loan for too long.
	overdueTick = time.Second
)

// expire ends the loans that the broker has waited for longer than its consumer timeout. Since 4.3 it then cancels the consumer, delivers
// such messages to others, and takes a late settlement without a word. It does not say which they are, nor that the timeout is why it
// cancels: a consumer of a queue that is deleted or loses its node goes in the same way, and what it had on loan stays so.
func (s *consuming) expire() {
	timeout := consumerTimeout
	if s.consumer.options.ConsumerTimeout != nil {
		timeout = s.consumer.options.ConsumerTimeout()
	}
	limit := time.Now().Add(min(lateTime, timeout/lateShare) - timeout)
	for tag, d := range s.loans {
		if d.received.Before(limit) {
			d.lost.Store(true)
			s.over(d)
			s.expired = append(s.expired, tag)
		}
	}
	if s.overdue == nil {
		s.overdue = time.Tick(overdueTick) // the other loans come of age one by one
	}
}

// dismiss cancels a consumer that the broker has cancelled. RabbitMQ 4.3.0 to 4.3.6 only suspend it because of the timeout: with the next
// acknowledgement it would get messages again, which nobody here expects, and of a queue with a single active consumer it would
// stay the one.
func (s *consuming) dismiss(tag string) error {
	if err := s.askToCancel(tag); err != nil {
		return err
	}
	return s.giveBack()
}

// giveBack tells the broker of the loans that have expired here: of one whose time is not quite over there, it would else close the
// channel a little later, with all that is on loan.
func (s *consuming) giveBack() error {
	for _, tag := range s.expired {
		s.tags.settled(tag)
		if err := s.channel.Nack(tag, false, true); err != nil {
			return fmt.Errorf("give back: %w", err)
		}
	}
	s.expired = s.expired[:0]
	return nil
}
