package amqp

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/message"
)

// inFlight is how many publishes may await their confirm. The buffers for confirms and returns are as large, for the
// library drops a return, silently, when nobody takes it for five seconds.
const inFlight = 1024

var (
	// ErrUnroutable says that the broker took the message and had no queue for it.
	ErrUnroutable = errors.New("no queue for the message")
	// ErrUnconfirmed says that nobody knows whether the broker has the message: it refused it, or the session ended first.
	// To publish it again may duplicate it; not to would lose it.
	ErrUnconfirmed = errors.New("not confirmed")
	// ErrUnpublishable says that the message cannot be put into AMQP at all; it would fail again.
	ErrUnpublishable = errors.New("cannot be encoded")
)

// Publisher publishes with confirm and mandatory, over as many sessions as it takes.
type Publisher struct {
	options  Options
	requests chan *request
	ready    watched[bool]
	// window is how many publishes may await their confirm in the next session; only Run's goroutine uses it.
	window int
}

type request struct {
	message *message.Message
	id      string
	// result gets exactly one value, and has room for it: the session never waits for a caller.
	result   chan error
	returned error
}

// NewPublisher returns a Publisher. It does nothing before Run.
func NewPublisher(options Options) *Publisher {
	return &Publisher{options: options, requests: make(chan *request), window: inFlight}
}

// Run keeps a session until ctx ends.
func (p *Publisher) Run(ctx context.Context) {
	supervise(ctx, &p.options, p.session)
}

// Ready tells whether messages can be published now, and gives a channel that is closed when that changes.
func (p *Publisher) Ready() (bool, <-chan struct{}) {
	return p.ready.get()
}

// Publish returns nil when the broker confirmed the message and had a queue for it; it waits for a session as long as ctx
// allows. Any other outcome is an error: ErrUnroutable, ErrUnconfirmed, ErrUnpublishable, or that of ctx, after which the
// message may still have been published.
func (p *Publisher) Publish(ctx context.Context, m *message.Message) error {
	r := &request{message: m, result: make(chan error, 1)}
	select {
	case p.requests <- r:
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // the caller's own context
	}
	select {
	case err := <-r.result:
		return err
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // the caller's own context
	}
}

// publishing is one session: a channel that only session's goroutine uses, and what awaits its confirm on it.
type publishing struct {
	channel *amqp091.Channel
	// window bounds byTag; it grows to inFlight once as many are answered.
	window   int
	answered int
	next     uint64
	byTag    map[uint64]*request
	byID     map[string]*request
	returns  chan amqp091.Return
	confirms chan amqp091.Confirmation
}

func (p *Publisher) session(ctx context.Context, conn *amqp091.Connection) error {
	channel, err := conn.Channel()
	if err != nil {
		return fmt.Errorf("open a channel: %w", err)
	}
	if err := channel.Confirm(false); err != nil {
		return fmt.Errorf("switch confirms on: %w", err)
	}
	s := &publishing{
		channel:  channel,
		window:   p.window,
		byTag:    map[uint64]*request{},
		byID:     map[string]*request{},
		returns:  channel.NotifyReturn(make(chan amqp091.Return, inFlight)),
		confirms: channel.NotifyPublish(make(chan amqp091.Confirmation, inFlight)),
	}
	p.window = inFlight
	defer s.end()
	closed := channel.NotifyClose(make(chan *amqp091.Error, 1))
	blocked := conn.NotifyBlocked(make(chan amqp091.Blocking, 8))
	p.setReady(true)
	defer p.setReady(false)
	requests := p.requests
	for {
		open := requests
		if len(s.byTag) >= s.window {
			open = nil
		}
		select {
		case r := <-open:
			if err := s.publish(r); err != nil {
				return err
			}
		case c, ok := <-s.confirms:
			if !ok {
				return p.closed(s, <-closed)
			}
			s.confirm(c)
		case err := <-closed:
			return p.closed(s, err)
		case b, ok := <-blocked:
			if !ok {
				return p.closed(s, <-closed)
			}
			p.options.Log.Warn("broker blocks publishing", "blocked", b.Active, "reason", b.Reason)
			requests = p.requests
			if b.Active {
				requests = nil
			}
			p.setReady(!b.Active)
		case <-ctx.Done():
			return nil
		}
	}
}

// closed judges the end of a session by the broker. A message that the broker does not take at all, such as one that is
// larger than it has come to allow, would end one session after the other, with all that is in flight. The broker does not
// say which one it was, so the next session publishes one at a time, until it is found.
func (p *Publisher) closed(s *publishing, cause *amqp091.Error) error {
	if cause == nil || !cause.Server || cause.Code != amqp091.PreconditionFailed && cause.Code != amqp091.FrameError {
		return closing(cause)
	}
	s.drain()
	if len(s.byTag) > 1 {
		p.window = 1
	}
	if len(s.byTag) == 1 {
		for tag := range s.byTag {
			s.answer(tag, fmt.Errorf("%w: %w", ErrUnpublishable, cause))
		}
	}
	return cause
}

func (p *Publisher) setReady(ready bool) {
	p.ready.update(func(v *bool) { *v = ready })
}

func (s *publishing) publish(r *request) error {
	s.next++
	r.id = strconv.FormatUint(s.next, 36)
	out := toPublishing(r.message)
	out.Headers[message.HeaderPublishID] = r.id
	if err := out.Headers.Validate(); err != nil {
		s.next--
		r.result <- fmt.Errorf("%w: %w", ErrUnpublishable, err)
		return nil
	}
	s.byTag[s.next], s.byID[r.id] = r, r
	if err := s.channel.Publish(r.message.Exchange, r.message.RoutingKey, true, false, out); err != nil {
		return fmt.Errorf("publish to exchange %q: %w", r.message.Exchange, err)
	}
	return nil
}

// confirm judges one publish. The broker sends the return of a message before its confirm, so all returns are read first.
func (s *publishing) confirm(c amqp091.Confirmation) {
	for drained := false; !drained; {
		select {
		case returned, ok := <-s.returns:
			if ok {
				s.noteReturn(&returned)
			}
			drained = !ok
		default:
			drained = true
		}
	}
	r := s.byTag[c.DeliveryTag]
	switch {
	case r == nil:
	case !c.Ack:
		s.answer(c.DeliveryTag, fmt.Errorf("%w: the broker refused it", ErrUnconfirmed))
	default:
		s.answer(c.DeliveryTag, r.returned)
	}
	if s.answered == inFlight {
		s.window = inFlight
	}
}

func (s *publishing) answer(tag uint64, result error) {
	r := s.byTag[tag]
	delete(s.byTag, tag)
	delete(s.byID, r.id)
	s.answered++
	r.result <- result
}

// drain judges what the broker has confirmed already.
func (s *publishing) drain() {
	for {
		select {
		case c, ok := <-s.confirms:
			if !ok {
				return
			}
			s.confirm(c)
		default:
			return
		}
	}
}

func (s *publishing) noteReturn(returned *amqp091.Return) {
	id, _ := returned.Headers[message.HeaderPublishID].(string)
	if r := s.byID[id]; r != nil {
		r.returned = fmt.Errorf("%w: exchange %q, routing key %q: %s", ErrUnroutable, returned.Exchange, returned.RoutingKey, returned.ReplyText)
	}
}

// end answers everyone who still waits: the session is over, and with it the knowledge of what the broker has.
func (s *publishing) end() {
	s.drain()
	for tag := range s.byTag {
		s.answer(tag, fmt.Errorf("%w: the session ended", ErrUnconfirmed))
	}
}
