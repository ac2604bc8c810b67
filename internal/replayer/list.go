package replayer

import (
	"context"
	"fmt"
	"slices"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/topology"
)

// Unfinished is a replay that has not ended.
type Unfinished struct {
	ID string
	// Running is true while somebody carries it out. Only that one knows how far it has come: Result is the zero one.
	Running bool
	// Staged is how many messages are in the staging queue; while it runs, some seconds late.
	Staged int64

	Result
}

// List shows the unfinished replays of a Transport, the oldest first, and before them those that run. It takes nothing from their queues.
func List(ctx context.Context, transport Transport) ([]Unfinished, error) {
	all, err := transport.read(ctx, func(string) bool { return true })
	slices.SortStableFunc(all, func(a, b Unfinished) int { return a.Began.Compare(b.Began) })
	return all, err
}

// Show shows one of them.
func Show(ctx context.Context, transport Transport, id string) (Unfinished, error) {
	found, err := transport.read(ctx, func(other string) bool { return other == id })
	if err == nil && len(found) == 0 {
		err = fmt.Errorf("%w: %s", ErrNoReplay, id)
	}
	if err != nil {
		return Unfinished{}, err
	}
	return found[0], nil
}

// read reads those replays whose ID is wanted.
func (t *Transport) read(ctx context.Context, wanted func(id string) bool) (all []Unfinished, err error) {
	observed, err := t.Broker.Observe(ctx)
	if err != nil {
		return nil, fmt.Errorf("look for replays: %w", err)
	}
	ids := slices.DeleteFunc(topology.ReplaysIn(observed, t.Names), func(id string) bool { return !wanted(id) })
	if len(ids) == 0 {
		return nil, nil
	}
	connection, err := amqp.Connect(ctx, &t.Target, t.Dial, "redrive replays")
	if err != nil {
		return nil, err
	}
	defer func() { _ = connection.CloseDeadline(time.Now().Add(time.Second)) }()
	for _, id := range ids {
		s := &session{Options: Options{Transport: *t, ID: id}, connection: connection}
		found, err := s.look(ctx, observed.Queues[t.Names.Staging(id)])
		if err != nil {
			return nil, err
		}
		all = append(all, found)
	}
	return all, nil
}

// look reads the log, where nobody carries the replay out, and gives everything back.
func (s *session) look(ctx context.Context, staging topology.QueueState) (found Unfinished, err error) {
	found.ID = s.ID
	log, known, err := s.freeLog(ctx)
	if err != nil {
		return found, err
	}
	found.Staged, err = s.depth()
	if err != nil {
		return found, err
	}
	read := !known // somebody has deleted it: the replay can be cancelled
	for until := time.Now().Add(time.Second); known && log.Consumers == 0; {
		read, err = s.peek(ctx, log.Messages)
		if err != nil || !read {
			break
		}
		if s.replay != nil || time.Now().After(until) { // else the checkpoint comes back from a session that has ended
			break
		}
		if log, known, err = s.freeLog(ctx); err != nil {
			break
		}
	}
	if err != nil {
		return found, err
	}
	switch {
	case !read:
		found.Running = true
		if staging.Messages != nil {
			found.Staged = *staging.Messages
		}
	case s.replay != nil:
		s.replay.Count(found.Staged)
		found.Result = resultOf(s.replay)
	}
	return found, nil
}

// freeLog asks about the log until nobody reads it. A session that has ended is a consumer for some moments more; one that goes on stays one.
func (s *session) freeLog(ctx context.Context) (log amqp091.Queue, exists bool, err error) {
	for until := time.Now().Add(time.Second); ; {
		log, exists, err = s.count(s.Names.ReplayLog(s.ID))
		if err != nil || !exists || log.Consumers == 0 && log.Messages > 0 || time.Now().After(until) {
			return log, exists, err
		}
		select {
		case <-time.After(ackPause):
		case <-ctx.Done():
			return log, exists, ctx.Err() //nolint:wrapcheck // the caller's own context
		}
	}
}

// peekWithin is how long the next message of the log may take: who does not get it has another consumer before it.
const peekWithin = 2 * time.Second

// peek reads so many messages of the log without acknowledging them. It is false where somebody has begun to carry the replay out.
func (s *session) peek(ctx context.Context, messages int) (read bool, err error) {
	l := &s.log
	if err := s.consumeLog(); err != nil {
		return false, err
	}
	defer func() { _ = l.channel.Close() }()
	var events []message.ReplayOutcome
	for range messages {
		select {
		case d, ok := <-l.deliveries:
			if !ok {
				return false, fmt.Errorf("the session with RabbitMQ has ended while it read %q", s.Names.ReplayLog(s.ID))
			}
			m := amqp.Message(&d)
			if event, ok := s.event(m); ok {
				events = append(events, event)
			}
			if err := s.restore(m); err != nil {
				return false, err
			}
		case <-time.After(peekWithin):
			return false, nil
		case <-ctx.Done():
			return false, ctx.Err() //nolint:wrapcheck // the caller's own context
		}
	}
	for _, event := range events {
		if s.replay != nil {
			s.replay.Observe(event)
		}
	}
	return true, nil
}
