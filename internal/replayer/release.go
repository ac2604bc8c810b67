package replayer

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/failurequeue"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/replay"
	"redrive.dev/redrive/internal/topology"
)

// staging is the staging queue as its consumer sees it.
type staging struct {
	channel    *amqp091.Channel
	deliveries <-chan amqp091.Delivery
	// waiting are the messages at hand, in their order, and moving is how many are published and not acknowledged.
	waiting []*stagedMessage
	moving  int
	// moved are those whose publication has ended, and stuck those that RabbitMQ does not take.
	moved chan moved
	stuck []moved
	// renewed is when messages were given back last, to be delivered again.
	renewed time.Time
}

type stagedMessage struct {
	delivery amqp091.Delivery
	failed   message.Message
	seq      int64
	// since is when it was delivered.
	since time.Time
}

type moved struct {
	*stagedMessage

	err error
}

// stagingWindow is how many messages are at hand.
const stagingWindow = 100

// left is how many messages the staging queue has to deliver, by its leader: depth is the count of the node's own replica, which may be behind.
func (s *session) left() (int64, error) {
	channel, err := s.connection.Channel()
	if err != nil {
		return 0, fmt.Errorf("open a channel: %w", err)
	}
	defer func() { _ = channel.Close() }() // which gives the message back
	d, found, err := channel.Get(s.Names.Staging(s.ID), false)
	if err != nil || !found {
		return 0, err //nolint:wrapcheck // the callers say of what
	}
	return 1 + int64(d.MessageCount), nil
}

// depth is how many messages the staging queue seems to have to deliver.
func (s *session) depth() (int64, error) {
	queue, _, err := s.count(s.Names.Staging(s.ID))
	return int64(queue.Messages), err
}

// consumeStaged begins to take messages from the staging queue.
func (s *session) consumeStaged() (err error) {
	depth, err := s.depth()
	if err != nil {
		return err
	}
	s.replay.Count(depth)
	g := &s.staging
	g.moved = make(chan moved, stagingWindow)
	if g.channel, err = s.connection.Channel(); err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	if err := g.channel.Qos(stagingWindow, 0, false); err != nil {
		return fmt.Errorf("set the prefetch: %w", err)
	}
	if g.deliveries, err = g.channel.Consume(s.Names.Staging(s.ID), "", false, false, false, false, nil); err != nil {
		return fmt.Errorf("consume the staging queue: %w", err)
	}
	return nil
}

// release sends staged messages back until the replay has ended or is stopped.
func (s *session) release(ctx context.Context) error {
	if err := s.consumeStaged(); err != nil {
		return err
	}
	tick := time.NewTicker(saveEvery)
	defer tick.Stop()
	for {
		wait, err := s.advance()
		if err != nil {
			return err
		}
		switch phase := s.replay.Phase(); phase {
		case replay.Completed, replay.Cancelled:
			return s.finish(ctx)
		case replay.Stopped, replay.Held:
			return s.leave()
		default:
			// there is more to do
		}
		select {
		case d, ok := <-s.staging.deliveries:
			err = s.stage(&d, ok)
		case d, ok := <-s.log.deliveries:
			if !ok {
				return fmt.Errorf("%w while it released messages", errLost)
			}
			err = s.observe(&d)
		case m := <-s.staging.moved:
			err = s.settle(m)
		case <-wait:
		case now := <-tick.C:
			err = s.tick(ctx, now)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), s.leave())
		}
		if err != nil {
			return err
		}
	}
}

// finish ends the replay for good.
func (s *session) finish(ctx context.Context) error {
	if err := s.save(ctx); err != nil {
		return err
	}
	return s.remove(ctx)
}

// stage takes a message of the staging queue at hand.
func (s *session) stage(d *amqp091.Delivery, ok bool) error {
	if !ok {
		return fmt.Errorf("%w, or the staging queue is gone", errLost)
	}
	delivery := *d
	failed, seq, ok := message.Unstaged(amqp.Message(d))
	if !ok {
		return fmt.Errorf("a message in %q was not put there by this replay: take it away", s.Names.Staging(s.ID))
	}
	g := &s.staging
	g.waiting = append(g.waiting, &stagedMessage{delivery: delivery, failed: failed, seq: seq, since: time.Now()})
	s.replay.AtLeast(int64(len(g.waiting)))
	return nil
}

// advance moves what may be moved now. The channel tells when the rate allows the next message; it is nil where something else is in the way.
func (s *session) advance() (<-chan time.Time, error) {
	for g := &s.staging; len(g.waiting) > 0; g.waiting = g.waiting[1:] {
		m := g.waiting[0]
		switch {
		case s.replay.IsSettled(m.seq): // it was released, and its outcome came
			if err := m.ack(); err != nil {
				return nil, err
			}
		case s.replay.Phase() == replay.Cancelling:
			s.takeBack(m)
		case s.replay.Phase() == replay.Discarding:
			s.discard(m)
		default:
			may, wait := s.replay.Next(time.Now())
			if !may && wait > 0 {
				return time.After(wait), nil
			}
			if !may {
				return nil, nil //nolint:nilnil // a nil channel never tells
			}
			if err := s.send(m); err != nil {
				return nil, err
			}
		}
		s.replay.Left()
		s.report()
	}
	return nil, nil //nolint:nilnil // a nil channel never tells
}

func (m *stagedMessage) ack() error {
	if err := m.delivery.Ack(false); err != nil {
		return fmt.Errorf("%w: acknowledge a staged message: %w", errLost, err)
	}
	return nil
}

// send releases a message. Its place in the staging queue is kept until the copy is confirmed.
func (s *session) send(m *stagedMessage) error {
	letter := s.reader().Read(m.failed)
	copied, err := letter.Released(message.Replay{ID: s.ID, Seq: m.seq}, s.publisher.FrameSize(), time.Now())
	if errors.Is(err, message.ErrHeadersTooLarge) {
		s.takeBack(m)
		return nil
	}
	copied.Exchange = s.Names.Return()
	s.step(pointRelease)
	wait, err := s.publisher.Begin(s.late, &copied)
	if err != nil {
		return fmt.Errorf("release a message: %w", err)
	}
	s.step(pointReleased)
	s.staging.moving++
	go func() {
		err := wait()
		s.step(pointArrived)
		s.staging.moved <- moved{m, err}
	}()
	return nil
}

// takeBack returns a message to the failure queue as it was. The event comes before the ack, as a worker's does, so that it counts once.
func (s *session) takeBack(m *stagedMessage) {
	back := m.failed
	back.Exchange = s.Names.Failed()
	event := s.outcome(m, message.OutcomeRecalled)
	s.staging.moving++
	go func() {
		s.step(pointTakeBack)
		err := s.publisher.Publish(s.late, &back)
		s.step(pointTakenBack)
		if err == nil {
			err = s.publisher.Publish(s.late, &event)
		}
		s.step(pointTakeBackOut)
		s.staging.moved <- moved{m, err}
	}()
}

// discard deletes a message, with the event before the ack as well.
func (s *session) discard(m *stagedMessage) {
	event := s.outcome(m, message.OutcomeDiscarded)
	s.staging.moving++
	go func() {
		s.step(pointDiscard)
		err := s.publisher.Publish(s.late, &event)
		s.step(pointDiscarded)
		s.staging.moved <- moved{m, err}
	}()
}

// outcome is the event of a message that does not go to a worker.
func (s *session) outcome(m *stagedMessage, kind message.OutcomeKind) message.Message {
	event := message.ReplayOutcome{Replay: message.Replay{ID: s.ID, Seq: m.seq}, Kind: kind}.Message()
	event.Exchange = s.Names.Fallback()
	return event
}

// settle takes a message that has arrived out of the staging queue. One that may not have is there for the next session.
func (s *session) settle(m moved) error {
	s.staging.moving--
	if errors.Is(m.err, amqp.ErrUnpublishable) {
		s.staging.stuck = append(s.staging.stuck, m)
		return nil
	}
	if m.err != nil {
		s.settleOthers()
		return fmt.Errorf("%w: publish a message: %w", errLost, m.err)
	}
	s.replay.Hear(time.Now())
	err := m.ack()
	s.step(pointGone)
	return err
}

// settleOthers takes those out of the staging queue that have arrived beside one that has not: the next session would send them again.
func (s *session) settleOthers() {
	late := time.After(leaveWithin)
	for s.staging.moving > 0 {
		select {
		case m := <-s.staging.moved:
			s.staging.moving--
			if m.err == nil {
				_ = m.ack()
			}
		case <-late:
			return
		}
	}
	time.Sleep(ackPause)
}

// tick keeps the state, and sees to what comes with time alone.
func (s *session) tick(ctx context.Context, now time.Time) error {
	if s.replay.Look(now) {
		s.log.changed = true
	}
	if g := &s.staging; len(g.waiting) == 0 && g.moving == 0 && now.Sub(g.renewed) > leaveWithin {
		depth, err := s.depth()
		if err != nil {
			return err
		}
		s.replay.Count(depth)
		if depth == 0 && len(g.stuck) > 0 {
			return errors.Join(s.stuck(), s.leave())
		}
	}
	s.report()
	if err := s.renew(now); err != nil {
		return err
	}
	if s.replay.Counts().Staged == 0 && s.replay.Silence(now) >= s.settleWithin() {
		if err := s.search(ctx); err != nil {
			return err
		}
	}
	if !s.log.changed && now.Sub(s.log.saved) < s.renewEvery {
		return nil
	}
	return s.save(ctx)
}

// renew gives messages that wait for long back to the staging queue, which delivers them again, in their order: RabbitMQ ends the channel of a
// consumer that keeps one for 30 minutes, unless it is told another time. In the log that is the last checkpoint, which is kept again instead.
func (s *session) renew(now time.Time) error {
	g := &s.staging
	if len(g.waiting) == 0 || now.Sub(g.waiting[0].since) < s.renewEvery {
		return nil
	}
	for _, m := range g.waiting {
		if err := m.delivery.Nack(false, true); err != nil {
			return fmt.Errorf("%w: give a staged message back: %w", errLost, err)
		}
	}
	g.waiting, g.renewed = nil, now
	return nil
}

// stuck is the error of messages that RabbitMQ does not take. They stay in the staging queue.
func (s *session) stuck() error {
	first := s.staging.stuck[0]
	letter := s.reader().Read(first.failed)
	return fmt.Errorf("%d messages stay in %q, the first with the key %s: %w: let RabbitMQ take them, as by its max_message_size, and go on, or remove them there",
		len(s.staging.stuck), s.Names.Staging(s.ID), letter.Key, first.err)
}

// settleWithin is how long no outcome may come: those of messages that are deleted come from here.
func (s *session) settleWithin() time.Duration {
	if s.replay.Phase() == replay.Discarding {
		return min(s.SettleWithin, leaveWithin)
	}
	return s.SettleWithin
}

// search looks for the rest in the failure queue: what expired or was dropped by the broker has no event. What is nowhere is unknown.
func (s *session) search(ctx context.Context) error {
	_, err := failurequeue.Hold(ctx, failurequeue.Options{
		Connection: s.connection, Target: s.Target, Queue: s.Names.FailureQueue(), Lock: s.Names.FailureLock(), Holder: s.Holder, Check: s.Check,
		State: s.failed,
	}, func(h *failurequeue.Held) error {
		if place := message.ReplayOf(h.Headers); place.ID == s.ID {
			letter := s.reader().Read(h.Message)
			s.replay.Observe(message.ReplayOutcome{Replay: place, Kind: message.OutcomeFailedAgain, Cause: letter.Given.Cause})
		}
		return nil
	}, func() error { return nil })
	s.log.changed = true
	if errors.Is(err, failurequeue.ErrLocked) {
		return nil // the next tick looks again
	}
	if errors.Is(err, failurequeue.ErrNotWhole) {
		s.replay.Hear(time.Now()) // what others had may be among them: the next search finds it
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for messages without an outcome: %w", err)
	}
	s.replay.GiveUp()
	return nil
}

// failed is what the management API tells of the failure queue.
func (s *session) failed(ctx context.Context) (topology.QueueState, error) {
	return s.Broker.Queue(ctx, s.Names.FailureQueue())
}

// leave ends the session in order: what is published is waited for, and the state is kept.
func (s *session) leave() error {
	for s.staging.moving > 0 {
		select {
		case m := <-s.staging.moved:
			if err := s.settle(m); err != nil {
				return err
			}
		case <-s.late.Done():
			return fmt.Errorf("keep the state of %s: %w", s.ID, s.late.Err())
		}
	}
	time.Sleep(ackPause)
	return s.save(s.late)
}

func (s *session) report() {
	if s.Progress != nil {
		s.Progress(s.replay.Phase(), s.replay.Counts())
	}
}
