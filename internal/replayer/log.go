package replayer

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/replay"
)

// eventLog is the log queue: what workers tell of the messages, and the checkpoints that stand for what they told before.
type eventLog struct {
	channel    *amqp091.Channel
	deliveries <-chan amqp091.Delivery
	// read is the last delivery that is in the ledger, and forgotten the last one that is acknowledged.
	read, forgotten uint64
	// revision is that of the last checkpoint.
	revision int64
	// changed is true where the ledger is ahead of it, and saved is when it was kept.
	changed bool
	saved   time.Time
	// isRead is true once all is read that was there when the session began.
	isRead bool
}

// Kinds of messages in the log that are no events of workers.
const (
	kindCheckpoint = "Checkpoint"
	kindMarker     = "Marker"
)

// logWindow is more than the events of replay.MaxInFlight messages: they all wait for the next checkpoint.
const logWindow = 65_535

// markEvery is how often a marker is published while nobody has it. Another replayer that is still there reads and forgets it.
const markEvery = time.Second

// checkpointWithin is how long the last checkpoint may take to come back from a session that has ended.
const checkpointWithin = 5 * time.Second

// errTaken says that another replayer carries the replay out.
var errTaken = fmt.Errorf("%w: another replayer goes on", errLost)

// entry is a message of the log queue.
func (s *session) entry(kind, id string, body []byte) *message.Message {
	return &message.Message{
		DeliveryMode: amqp091.Persistent, Exchange: s.Names.Fallback(), RoutingKey: s.ID, MessageID: id, Body: body,
		Headers: map[string]any{message.HeaderOutcome: s.ID, message.HeaderOutcomeKind: kind},
	}
}

// readLog waits until no other replayer reads the log, and takes the state from it: the last checkpoint, and the events since. A marker of its
// own tells where the log ends.
func (s *session) readLog(ctx context.Context) error {
	l := &s.log
	if err := s.consumeLog(); err != nil {
		return err
	}
	// RabbitMQ may deliver the marker before what the one before had not acknowledged, the last checkpoint with it.
	var events []message.ReplayOutcome
	for until := time.Now().Add(checkpointWithin); ; {
		more, err := s.readTo(ctx, rand.Text())
		if err != nil {
			return err
		}
		events = append(events, more...)
		if s.replay != nil || s.made || time.Now().After(until) {
			break
		}
		time.Sleep(ackPause)
	}
	if s.replay == nil {
		if err := s.begin(); err != nil {
			return err
		}
	}
	s.replay.Hear(time.Now())
	if s.before != nil {
		s.replay.Continue(*s.before, time.Now())
	}
	for _, event := range events {
		if s.replay.Observe(event) {
			s.replay.Hear(time.Now())
		}
	}
	l.changed, l.isRead = true, true
	return nil
}

// consumeLog begins to read the log, as soon as nobody else does.
func (s *session) consumeLog() (err error) {
	l := &s.log
	if l.channel, err = s.connection.Channel(); err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	if err := l.channel.Qos(logWindow, 0, false); err != nil {
		return fmt.Errorf("set the prefetch: %w", err)
	}
	queue := s.Names.ReplayLog(s.ID)
	if l.deliveries, err = l.channel.Consume(queue, "", false, false, false, false, nil); err != nil {
		return fmt.Errorf("consume the queue %q: %w", queue, err)
	}
	return nil
}

// readTo publishes a marker, and reads up to it.
func (s *session) readTo(ctx context.Context, marker string) (events []message.ReplayOutcome, err error) {
	if err := s.mark(ctx, marker); err != nil {
		return nil, err
	}
	again := time.NewTicker(markEvery)
	defer again.Stop()
	for {
		select {
		case d, ok := <-s.log.deliveries:
			if !ok {
				return nil, fmt.Errorf("%w while it read %q", errLost, s.Names.ReplayLog(s.ID))
			}
			s.log.read = d.DeliveryTag
			m := amqp.Message(&d)
			if m.MessageID == marker {
				return events, nil
			}
			if event, ok := s.event(m); ok {
				events = append(events, event)
			}
			err = s.restore(m)
		case <-again.C:
			err = s.mark(ctx, marker)
		case <-ctx.Done():
			return nil, ctx.Err() //nolint:wrapcheck // the caller's own context
		}
		if err != nil {
			return nil, err
		}
	}
}

// event reads an event of a worker of this replay.
func (s *session) event(m message.Message) (message.ReplayOutcome, bool) {
	event, ok := message.DecodeOutcome(m)
	return event, ok && event.ID == s.ID
}

// restore takes over the state of a checkpoint, where that is a later one.
func (s *session) restore(m message.Message) error {
	if m.Headers[message.HeaderOutcomeKind] != kindCheckpoint {
		return nil
	}
	found, revision, err := replay.Restore(m.Body, s.ID)
	if err == nil && (s.replay == nil || revision > s.log.revision) {
		s.replay, s.log.revision = found, revision
	}
	return err
}

func (s *session) mark(ctx context.Context, marker string) error {
	if err := s.publisher.Publish(ctx, s.entry(kindMarker, marker, nil)); err != nil {
		return fmt.Errorf("mark the end of the queue %q: %w", s.Names.ReplayLog(s.ID), err)
	}
	return nil
}

// begin is a replay without a checkpoint: a new one. Where messages are staged there was one, and without it nobody knows which of them are out:
// they can only be taken back.
func (s *session) begin() error {
	order, settings := s.Order, replay.Settings{}
	if s.Settings != nil {
		settings = *s.Settings
	}
	switch {
	case s.Cancel && order == nil:
		order = &replay.Order{Action: replay.ActionDiscard}
	case order == nil:
		return fmt.Errorf("%w: nothing is known of %s: cancel it, which takes back what is staged", ErrNoReplay, s.ID)
	case order.Action == replay.ActionReplay:
		if err := settings.Check(); err != nil {
			return err
		}
	}
	left, err := s.left()
	if err != nil {
		return fmt.Errorf("look whether the queue %q is empty: %w", s.Names.Staging(s.ID), err)
	}
	if left > 0 && !s.Cancel {
		return fmt.Errorf("%d messages are in %q, and the log of the replay is gone: cancel it, which takes them back", left, s.Names.Staging(s.ID))
	}
	s.replay = replay.New(*order, settings, time.Now().UTC())
	return nil
}

// observe takes in a delivery of the log.
func (s *session) observe(d *amqp091.Delivery) error {
	s.log.read = d.DeliveryTag
	m := amqp.Message(d)
	if m.Headers[message.HeaderOutcomeKind] == kindCheckpoint {
		if _, revision, err := replay.Restore(m.Body, s.ID); err != nil || revision > s.log.revision {
			return errTaken
		}
		return nil
	}
	if event, ok := s.event(m); ok && s.replay.Observe(event) {
		s.replay.Hear(time.Now())
		s.log.changed = true
		s.step(pointObserved)
	}
	return nil
}

// save keeps a checkpoint, and then acknowledges all that is in it, the one before included.
func (s *session) save(ctx context.Context) error {
	l := &s.log
	read := l.read
	text, err := s.replay.Checkpoint(s.ID, l.revision+1)
	if err != nil {
		return err
	}
	l.revision++
	if err := s.publisher.Publish(ctx, s.entry(kindCheckpoint, "", text)); err != nil {
		return fmt.Errorf("%w: keep a checkpoint: %w", errLost, err)
	}
	l.changed, l.saved = false, time.Now()
	s.step(pointSaved)
	if read > l.forgotten {
		if err := l.channel.Ack(read, true); err != nil {
			return fmt.Errorf("%w: acknowledge events: %w", errLost, err)
		}
		l.forgotten = read
	}
	s.step(pointForgot)
	return nil
}
