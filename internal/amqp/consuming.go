package amqp

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
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

// ending is how a loan ends.
type ending int

const (
	acknowledge ending = iota
	deadLetter
	requeue
	abandon
)

// settlement is the end of one loan.
type settlement struct {
	tag    uint64
	stream *stream
	end    ending
}

// stream is what one consumer, as the broker has it, delivers.
type stream struct {
	tag        string
	deliveries <-chan amqp091.Delivery
	prefetch   int
	strict     bool
	// passing streams are there to be cancelled, whatever is wanted.
	passing bool
	// unsettled are the deliveries that the broker awaits the settlement of. As many as the prefetch: it sends no more.
	unsettled int
	// stirred is when a message was last delivered or, by a settlement, asked for.
	stirred time.Time
}

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

// consuming is one channel of one queue. Only run's goroutine uses the channel.
type consuming struct {
	consumer *Consumer
	queue    string
	channel  *amqp091.Channel
	log      *slog.Logger
	// settlements has no buffer, so that what it took is sent before the channel is closed.
	settlements chan settlement
	// life ends with the session of these deliveries.
	life context.Context //nolint:containedctx // it bounds the loans, not a call
	// retired is closed when another session takes over.
	retired  <-chan struct{}
	verdicts *verdicts
	tried    bool

	// current is nil while nothing is consumed.
	current *stream
	// leaving is nil but while the current consumer is about to be cancelled.
	leaving *leave
	// cancelled is true from then until the last delivery of the current consumer was taken.
	cancelled bool
	// next, if any, follows the current one once that has ended.
	next *stream
	// wake is when a consumer that is about to be cancelled is looked at again.
	wake <-chan time.Time
	// started counts the consumers so far.
	started int
	// outstanding are the deliveries of all consumers so far that are not settled.
	outstanding int
}

// run returns nil when the channel is over: the queue is not subscribed to any more, ctx has ended, or a strict queue is to be
// left as it is. It returns the cause when the channel failed.
func (s *consuming) run(ctx context.Context) error {
	defer s.stopped()
	closed := s.channel.NotifyClose(make(chan *amqp091.Error, 1))
	retired := s.retired
	for {
		want, subscribed, changed := s.wanted()
		if !subscribed && s.current == nil && s.outstanding == 0 {
			return nil
		}
		if over, err := s.adjust(&want); over || err != nil {
			return err
		}
		s.works()
		select {
		case d, ok := <-s.deliveries():
			if ok {
				s.take(&d)
				continue
			}
			if err := s.ended(ctx, closed); err != nil {
				return err
			}
		case settled := <-s.settlements:
			if over, err := s.settle(settled); over || err != nil {
				return err
			}
		case err := <-closed:
			return closing(err)
		case <-s.wake:
		case <-changed:
		case <-retired:
			retired = nil
		case <-ctx.Done():
			_ = s.stay() // the channel is closed at once; what was kept is on its way before that
			return nil
		}
	}
}

// wanted is what is asked of this session: nothing more where another one has taken over.
func (s *consuming) wanted() (want Subscription, subscribed bool, changed <-chan struct{}) {
	all, changed := s.consumer.demand.get()
	select {
	case <-s.retired:
	default:
		want, subscribed = all.of(s.queue)
	}
	return want, subscribed, changed
}

// works says, once, that the broker lets the queue be consumed.
func (s *consuming) works() {
	if !s.tried {
		s.tried = true
		s.verdicts.give(s.queue, nil)
	}
}

// deliveries of the current consumer; nil where there is none.
func (s *consuming) deliveries() <-chan amqp091.Delivery {
	if s.current == nil {
		return nil
	}
	return s.current.deliveries
}

func (s *consuming) take(d *amqp091.Delivery) {
	s.outstanding++
	s.current.unsettled++
	s.current.stirred = time.Now()
	if s.leaving != nil {
		s.leaving.arrived++
	}
	_, unreadable := d.Headers[headerUnreadable]
	s.consumer.deliver(&Delivery{
		Message: fromDelivery(d), Queue: s.queue, Unreadable: unreadable, tag: d.DeliveryTag, stream: s.current, session: s,
	})
}

// settle sends a settlement, or keeps it until the consumer that it would ask for another message is cancelled. The channel
// is over when that must end to give the message back.
func (s *consuming) settle(settled settlement) (over bool, err error) {
	// Looked at anew: who turns receiving off and then settles the message of a strict queue gets no other.
	want, _, _ := s.wanted()
	if over, err := s.adjust(&want); over || err != nil {
		return true, err
	}
	leaving := s.leaving != nil && settled.stream == s.current
	switch {
	case settled.end == abandon, settled.end == requeue && leaving:
		return true, nil // if it were rejected after a cancel, the message after it would go first
	case leaving:
		s.leaving.held = append(s.leaving.held, settled)
		return false, nil
	default:
		return false, s.send(settled)
	}
}

func (s *consuming) send(settled settlement) error {
	s.outstanding--
	settled.stream.unsettled--
	settled.stream.stirred = time.Now()
	switch settled.end {
	case deadLetter, requeue:
		if err := s.channel.Reject(settled.tag, settled.end == requeue); err != nil {
			return fmt.Errorf("reject: %w", err)
		}
	default:
		if err := s.channel.Ack(settled.tag, false); err != nil {
			return fmt.Errorf("acknowledge: %w", err)
		}
	}
	return nil
}

// adjust starts the broker's consumer, or cancels it, as wanted. A consumer starts only when fewer than its prefetch are on
// loan: the broker does not count what an earlier consumer of the channel still holds. The channel is over where that must
// end instead.
func (s *consuming) adjust(want *Subscription) (over bool, err error) {
	s.wake = nil
	switch {
	case s.current == nil:
		if s.outstanding < want.Prefetch {
			return false, s.start(want)
		}
		return false, nil
	case s.cancelled:
		return false, nil
	case s.current.prefetch == want.Prefetch && s.current.strict == want.Strict && !s.current.passing:
		return false, s.stay()
	default:
		return s.leave()
	}
}

// stay sends what was kept for a cancel.
func (s *consuming) stay() error {
	if s.leaving == nil {
		return nil
	}
	held := s.leaving.held
	s.leaving = nil
	for _, settled := range held {
		if err := s.send(settled); err != nil {
			return err
		}
	}
	return nil
}

// leave cancels the current consumer once nothing is under way to it. A strict one is not cancelled before its message is
// settled, for then the broker hands the next one to another consumer. One without a message is not cancelled at all: the
// channel ends, which gives a message on its way back to its place before another consumer gets any.
func (s *consuming) leave() (over bool, err error) {
	if s.leaving == nil {
		s.leaving = &leave{began: time.Now()}
	}
	quiet := quietTime - time.Since(s.current.stirred)
	fill := fillTime - time.Since(s.leaving.began)
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
		earlier := s.outstanding - s.current.unsettled
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
	if err := s.channel.Cancel(s.current.tag, false); err != nil {
		return fmt.Errorf("cancel the consumer: %w", err)
	}
	return s.stay()
}

func (s *consuming) start(want *Subscription) error {
	s.consumer.begun.Add(1)
	defer func() {
		if s.current == nil {
			s.consumer.begun.Add(-1)
		}
	}()
	// Looked at after begun was raised: who turns receiving off and then finds nothing begun can rely on it.
	if all, _ := s.consumer.demand.get(); !all.receiving {
		return nil
	}
	begun := &stream{prefetch: want.Prefetch, strict: want.Strict, stirred: time.Now()}
	if err := s.consume(begun); err != nil {
		return err
	}
	s.current = begun
	s.consumer.active.Add(1)
	return nil
}

// consume starts a consumer, and returns when the queue has it. What the queue had assigned to others of this channel before
// that has then reached the channel.
func (s *consuming) consume(to *stream) (err error) {
	if err := s.channel.Qos(to.prefetch, 0, false); err != nil {
		return fmt.Errorf("set the prefetch: %w", err)
	}
	// A tag is used once: RabbitMQ 3.10 ends the channel when a quorum queue sees a cancelled consumer's tag again.
	s.started++
	to.tag = "redrive-" + strconv.Itoa(s.started)
	var arguments amqp091.Table
	if to.passing {
		arguments = amqp091.Table{"x-priority": int32(priority)}
	}
	if to.deliveries, err = s.channel.Consume(s.queue, to.tag, false, false, false, false, arguments); err != nil {
		return fmt.Errorf("consume: %w", err)
	}
	return nil
}

// ended handles the end of a consumer: by our own cancel, by the broker's (the queue is deleted or lost its leader, or a
// delivery was on loan for too long), or with the channel. After the broker's cancel the channel and the loans stand, so
// it is consumed again on the same channel, after a pause.
func (s *consuming) ended(ctx context.Context, closed <-chan *amqp091.Error) error {
	if s.cancelled && s.next != nil {
		s.current, s.next, s.cancelled = s.next, nil, false
		// What it was sent since is in the library's hands: not yet taken, and a sign that the queue is not quiet.
		s.current.stirred = latest(s.current.stirred, time.Now().Add(takeTime-quietTime))
		return nil
	}
	s.stopped()
	if s.cancelled {
		s.cancelled = false
		return nil
	}
	select {
	case err := <-closed:
		return closing(err)
	case <-ctx.Done():
		return nil
	case <-time.After(reopenPause / 4):
	}
	s.log.Warn("the broker cancelled the consumer", "queue", s.queue)
	return s.stay()
}

func (s *consuming) stopped() {
	if s.current != nil {
		s.current = nil
		s.consumer.active.Add(-1)
		s.consumer.begun.Add(-1)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
