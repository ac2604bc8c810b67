package replayer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/failurequeue"
	"redrive.dev/redrive/internal/message"
)

// mostMoving is how many messages are on their way into the staging queue at once.
const mostMoving = 1000

// youngFor is how long a new quorum queue gets no messages: RabbitMQ loses those of one that is younger than about a second when the only node
// that has it is killed, even those that it has confirmed.
const youngFor = 2 * time.Second

// selectMessages moves the chosen messages into the staging queue. Who was killed between the confirm of a copy and the ack of its original leaves
// both, and RabbitMQ forgets acks that it has not passed on to the queue when their channel ends: such an original is acknowledged alone, until a
// look finds none. The set is fixed by what is staged at the end.
func (s *session) selectMessages(ctx context.Context) error {
	choosing := 2 // what a killed replayer held may come back to the failure queue while this one looks already
	if s.log.revision == 0 {
		choosing = 1
		select { // without a checkpoint nobody knows how old the queues are
		case <-time.After(youngFor):
		case <-ctx.Done():
			return ctx.Err() //nolint:wrapcheck // the caller's own context
		}
	}
	s.replay.BeginSelecting()
	if err := s.save(ctx); err != nil {
		return err
	}
	staged, err := s.readStaged(ctx)
	if err != nil {
		return err
	}
	for pass, more := 0, !s.Cancel; more; pass++ {
		taken, err := s.take(ctx, &staged, pass < choosing)
		if errors.Is(err, failurequeue.ErrLocked) && pass > 0 {
			return fmt.Errorf("%w: %w", errLost, err) // the next one begins with what is staged
		}
		if err != nil {
			return err
		}
		if staged, err = s.readStaged(ctx); err != nil {
			return err
		}
		more = taken > 0 || pass+1 < choosing
	}
	s.step(pointSelected)
	s.replay.Select(staged.messages, time.Now())
	s.report()
	return s.save(ctx)
}

// stagedMessages are those of the staging queue.
type stagedMessages struct {
	known    map[deadletter.Identity]bool
	messages int64
}

// readStaged reads the staging queue, and takes the second copy of a message out of it.
func (s *session) readStaged(ctx context.Context) (found stagedMessages, err error) {
	found.known = map[deadletter.Identity]bool{}
	reader := s.reader()
	_, err = failurequeue.Hold(ctx, failurequeue.Options{Connection: s.connection, Queue: s.Names.Staging(s.ID)}, func(h *failurequeue.Held) error {
		letter := reader.Read(h.Message)
		if isCopy(&letter, found.known) {
			return h.Settle()
		}
		if is, unique := letter.Identity(); unique {
			found.known[is] = true
		}
		found.messages++
		return nil
	}, func() error { return nil })
	if err != nil {
		return found, fmt.Errorf("read the staging queue %q: %w", s.Names.Staging(s.ID), err)
	}
	return found, nil
}

// isCopy is true of a message that is staged already. One that is not unique is never taken for a copy: it is rather replayed twice than deleted.
func isCopy(letter *deadletter.Letter, staged map[deadletter.Identity]bool) bool {
	is, unique := letter.Identity()
	return unique && staged[is]
}

// ackPause is how long acks have to reach the queue before their channel ends.
const ackPause = 100 * time.Millisecond

// take moves the chosen messages, where it chooses, and returns how many it took out of the failure queue. The expression of the selection sees the
// time at which the replay was begun, so that a later session chooses alike.
func (s *session) take(ctx context.Context, staged *stagedMessages, chooses bool) (taken int, err error) {
	chooser, err := s.replay.Order().Selection.Chooser(s.replay.Began())
	if err != nil {
		return 0, err
	}
	chooser.Chosen(staged.messages)
	reader := s.reader()
	var moving errgroup.Group
	moving.SetLimit(mostMoving)
	left, unfit := 0, &unfit{}
	options := failurequeue.Options{
		Connection: s.connection, Target: s.Target, Queue: s.Names.FailureQueue(), Lock: s.Names.FailureLock(), Holder: s.Holder, Check: s.Check,
		Tell: func(text string) { s.Log.Info(text, "replay", s.ID) },
	}
	if chooses { // else the count of the management API is from before the acks
		options.State = s.failed
	}
	_, err = failurequeue.Hold(ctx, options, func(h *failurequeue.Held) error {
		letter := reader.Read(h.Message)
		switch {
		case isCopy(&letter, staged.known):
			taken++
			return h.Settle()
		case !chooses || !chooser.Chooses(&letter):
			return nil
		}
		copied, err := message.Staged(letter.Properties, s.replay.Number(), s.publisher.FrameSize())
		if errors.Is(err, message.ErrHeadersTooLarge) {
			left++
			return nil
		}
		taken++
		return s.move(h, &copied, &moving, func(err error) error { return unfit.leave(&letter, err) })
	}, func() error {
		err := moving.Wait()
		time.Sleep(ackPause)
		return err //nolint:wrapcheck // it says what could not be staged
	})
	if errors.Is(err, failurequeue.ErrNotWhole) {
		s.Log.Warn("messages stay in the failure queue: others have them", "replay", s.ID, "error", err)
		err = nil
	}
	if unfit.messages > 0 {
		s.Log.Warn("messages stay in the failure queue: RabbitMQ does not take them any more, look at its max_message_size", "replay", s.ID,
			"messages", unfit.messages, "first", unfit.first, "error", unfit.err)
	}
	if left > 0 {
		s.Log.Warn("messages stay in the failure queue: their headers leave no room for those of a replay", "replay", s.ID, "messages", left)
	}
	if failed, first := chooser.Failed(); failed > 0 {
		s.Log.Warn("messages stay in the failure queue: the expression fails on them", "replay", s.ID, "messages", failed, "error", first)
	}
	return taken, err
}

// unfit are messages that RabbitMQ does not take, and whose originals are left where they are.
type unfit struct {
	mu       sync.Mutex
	messages int
	// first is the key of the first of them, and err why it is not taken.
	first string
	err   error
}

// leave counts a message that is not taken. Other errors end the session, after which the next one goes on.
func (u *unfit) leave(letter *deadletter.Letter, err error) error {
	if !errors.Is(err, amqp.ErrUnpublishable) {
		return fmt.Errorf("%w: stage a message: %w", errLost, err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.messages++; u.messages == 1 {
		u.first, u.err = letter.Key, err
	}
	return nil
}

// move publishes the copy of a message, and acknowledges the message once the copy is there. leave is told of copies that do not arrive.
func (s *session) move(h *failurequeue.Held, copied *message.Message, moving *errgroup.Group, leave func(error) error) error {
	copied.Exchange, copied.RoutingKey = s.Names.Return(), s.Names.Staging(s.ID)
	s.step(pointPublish)
	wait, err := s.publisher.Begin(s.late, copied)
	if err != nil {
		return leave(err)
	}
	s.step(pointStaged)
	moving.Go(func() error {
		if err := wait(); err != nil {
			return leave(err)
		}
		s.step(pointConfirmed)
		err := h.Settle()
		s.step(pointTaken)
		return err
	})
	return nil
}
