package replayer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/failurequeue"
	"redrive.dev/redrive/internal/topology"
)

// Management reads, writes and deletes objects of the broker. *broker.Client is one.
type Management interface {
	Observe(ctx context.Context) (topology.Observed, error)
	Queue(ctx context.Context, name string) (topology.QueueState, error)
	Apply(ctx context.Context, step topology.Step) (existed bool, err error)
}

// mostUnfinished is how many replays of a Transport may be unfinished: each has two queues on the broker.
const mostUnfinished = 8

// mayBegin refuses a new replay before anything is made for it.
func (s *session) mayBegin(ctx context.Context) error {
	if s.Order == nil {
		return fmt.Errorf("%w: %s", ErrNoReplay, s.ID)
	}
	observed, err := s.Broker.Observe(ctx)
	if err != nil {
		return fmt.Errorf("count the unfinished replays: %w", err)
	}
	others := topology.ReplaysIn(observed, s.Names)
	if len(others) >= mostUnfinished {
		return fmt.Errorf("%w: %d, which are %s: wait for one of them, or cancel one", ErrTooMany, len(others), strings.Join(others, ", "))
	}
	if s.Check != nil {
		return s.Check(ctx)
	}
	return nil
}

// declare makes the queues of the replay, and the bindings that lead into them. The policy is first: it keeps those of others off, which might drop
// what is staged. The fallback exchange has no alternate one on purpose: an event of a replay that nobody follows any more is forgotten. The return
// exchange has one: what is staged while the staging queue is gone comes home.
func (s *session) declare(ctx context.Context) error {
	if !s.isThere() {
		if err := s.mayBegin(ctx); err != nil {
			return err
		}
		s.made = true
	}
	objects := topology.ReplayObjects(s.Names, s.Owner, s.ID)
	for _, policy := range objects.Policies {
		if _, err := s.Broker.Apply(ctx, topology.Step{Action: topology.ActionCreate, Policy: &policy}); err != nil {
			return fmt.Errorf("write the RabbitMQ policy %q: %w", policy.Name, err)
		}
	}
	channel, err := s.connection.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	defer func() { _ = channel.Close() }()
	for _, queue := range objects.Queues {
		if _, err := channel.QueueDeclare(queue.Name, true, false, false, false, amqp091.Table(queue.Arguments)); err != nil {
			return fmt.Errorf("declare the queue %q: %w", queue.Name, err)
		}
	}
	for _, b := range objects.Bindings {
		if err := channel.QueueBind(b.Destination, b.RoutingKey, b.Source, false, amqp091.Table(b.Arguments)); err != nil {
			return fmt.Errorf("bind the queue %q: %w", b.Destination, err)
		}
	}
	return nil
}

// isThere tells whether somebody has begun the replay, and nobody has ended it.
func (s *session) isThere() bool {
	_, log, err := s.count(s.Names.ReplayLog(s.ID))
	if log || err != nil {
		return true // what comes next says why
	}
	_, staging, err := s.count(s.Names.Staging(s.ID))
	return staging || err != nil
}

// count asks the broker about a queue of the replay.
func (s *session) count(queue string) (found amqp091.Queue, exists bool, err error) {
	channel, err := s.connection.Channel()
	if err != nil {
		return found, false, fmt.Errorf("open a channel: %w", err)
	}
	defer func() { _ = channel.Close() }()
	found, err = channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	if missing, is := errors.AsType[*amqp091.Error](err); is && missing.Code == amqp091.NotFound {
		return found, false, nil
	}
	if err != nil {
		return found, false, fmt.Errorf("count the queue %q: %w", queue, err)
	}
	return found, true, nil
}

// forget takes away what was made for a replay that has not begun: somebody else looks at the failure queue, or it was left before it had a
// checkpoint.
func (s *session) forget(ctx context.Context, why error) error {
	taken := errors.Is(why, errLost) // something may be
	if s.made && !taken && (errors.Is(why, failurequeue.ErrLocked) || ctx.Err() != nil && s.log.revision == 0) {
		return errors.Join(why, s.remove(s.late)) //nolint:contextcheck // it outlasts the other one
	}
	return why
}

// emptyAgain is how long the staging queue has to be empty before it is deleted.
const emptyAgain = time.Second

// remove deletes the queues of a replay that has ended. Nothing leads into the staging queue any more, and it was empty twice; else it stays.
func (s *session) remove(ctx context.Context) error {
	if s.staging.channel != nil {
		_ = s.staging.channel.Close() // what it holds is counted
	}
	channel, err := s.connection.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	objects := topology.ReplayObjects(s.Names, s.Owner, s.ID)
	for _, b := range objects.Bindings {
		if err := channel.QueueUnbind(b.Destination, b.RoutingKey, b.Source, amqp091.Table(b.Arguments)); err != nil {
			return fmt.Errorf("unbind the queue %q: %w", b.Destination, err)
		}
	}
	for range 2 {
		left, err := s.left()
		if err != nil {
			return fmt.Errorf("look whether the queue %q is empty: %w", s.Names.Staging(s.ID), err)
		}
		if left > 0 {
			return fmt.Errorf("%w: %d messages are in %q, which was empty", errLost, left, s.Names.Staging(s.ID))
		}
		time.Sleep(emptyAgain)
	}
	for _, queue := range objects.Queues {
		if _, err := channel.QueueDelete(queue.Name, false, false, false); err != nil {
			return fmt.Errorf("delete the queue %q: %w", queue.Name, err)
		}
	}
	for _, policy := range objects.Policies {
		if _, err := s.Broker.Apply(ctx, topology.Step{Action: topology.ActionDelete, Policy: &policy}); err != nil {
			return fmt.Errorf("delete the RabbitMQ policy %q: %w", policy.Name, err)
		}
	}
	return nil
}
