package amqp

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// arriveTime is how long a channel outlives its last settlement. When a channel is closed, RabbitMQ forgets what it has not
	// yet handed on to a quorum queue, which then delivers messages again that were acknowledged.
	arriveTime = 100 * time.Millisecond
	// gatherTime is for how long acknowledgements are gathered at most, and gatherShare up to which part of a prefetch: one of
	// so many. The broker goes on meanwhile with what is left of it.
	gatherTime  = 5 * time.Millisecond
	gatherShare = 4
)

// ending is how a loan ends.
type ending int

const (
	acknowledge ending = iota
	deadLetter
	requeue
	release
	abandon
)

// keepsPlace is true where the message is delivered again.
func (e ending) keepsPlace() bool { return e == requeue || e == release }

// settlement is the end of one loan.
type settlement struct {
	loan *loan
	end  ending
}

// settlements come from many goroutines and are sent by one, which takes all that there are at a time.
type settlements struct {
	mu    sync.Mutex
	given []settlement
	ended bool
	// due has a value when something was given since the last take.
	due chan struct{}
}

func newSettlements() *settlements { return &settlements{due: make(chan struct{}, 1)} }

// give is false where it is too late.
func (s *settlements) give(settled settlement) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	if s.given = append(s.given, settled); len(s.given) == 1 {
		s.due <- struct{}{} // there is room: whoever took the last ones took the value before
	}
	return true
}

// take returns what was given since the last take. The memory of used, which the caller has cleared, takes what is given next.
func (s *settlements) take(used []settlement) []settlement {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := s.given
	s.given = used[:0]
	return taken
}

// end is the last take.
func (s *settlements) end() []settlement {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	return s.given
}

// settleAll settles what has come in. The channel is over when that must end to give a message back.
func (s *consuming) settleAll() (over bool, err error) {
	s.taken, s.sent = s.settlements.take(s.taken), time.Now()
	defer clear(s.taken) // or the last loans stay in memory until others of this queue are settled
	// Looked at anew: who turns receiving off and then settles the message of a strict queue gets no other.
	want, _, _ := s.wanted()
	over, err = s.adjust(&want)
	for _, settled := range s.taken {
		if err != nil {
			return true, err
		}
		switch leaving := s.leaving != nil && settled.loan.stream == s.current; {
		case settled.end == abandon, settled.end.keepsPlace() && leaving && s.current.strict:
			over = true // if it went back after a cancel, the message after it would go first
		case leaving && !over:
			s.leaving.held = append(s.leaving.held, settled)
		default:
			err = s.send(settled)
		}
	}
	return over, err
}

// send rejects a message, or has it acknowledged with the next flush. One that the broker has taken back is not its consumer's
// any more.
func (s *consuming) send(settled settlement) error {
	d := settled.loan
	if d.lost.Load() {
		return nil
	}
	s.over(d)
	d.stream.stirred = s.sent
	if settled.end == acknowledge {
		s.acknowledged = append(s.acknowledged, d.tag)
		return nil
	}
	s.tags.settled(d.tag)
	var err error
	if settled.end == release {
		err = s.channel.Nack(d.tag, false, true)
	} else {
		err = s.channel.Reject(d.tag, settled.end == requeue)
	}
	if err != nil {
		return fmt.Errorf("reject: %w", err)
	}
	return nil
}

// over ends a loan.
func (s *consuming) over(d *loan) {
	delete(s.loans, d.tag)
	d.stream.unsettled--
	d.life.finish()
}

// gathers tells whether more acknowledgements may be waited for: one of many costs both sides a part of what many cost. The
// broker has most of the prefetch to go on with meanwhile; of a small one it needs each message back at once. Where no other message
// is on loan there is nothing to gather.
func (s *consuming) gathers() bool {
	n := len(s.acknowledged)
	if s.gathered || len(s.loans) == 0 || s.current == nil || s.leaving != nil || n > s.current.prefetch/gatherShare {
		return false
	}
	if !s.armed {
		s.armed = true
		s.gathering.Reset(gatherTime)
	}
	return true
}

// flush acknowledges what is to be, with as few frames and writes as possible.
func (s *consuming) flush() (err error) {
	if len(s.acknowledged) == 0 {
		return nil
	}
	upTo, rest := s.tags.acknowledge(s.acknowledged)
	s.acknowledged = s.acknowledged[:0]
	s.gathering.Stop()
	s.gathered, s.armed = false, false
	s.wire.hold()
	if upTo != 0 {
		err = s.channel.Ack(upTo, true)
	}
	for _, tag := range rest {
		if err == nil {
			err = s.channel.Ack(tag, false)
		}
	}
	if err = errors.Join(err, s.wire.release()); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return nil
}
