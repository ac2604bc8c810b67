package amqp

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

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
	options    Options
	supervisor *supervisor
	requests   chan *request
	// ready counts the sessions that take messages: two while one takes over from another.
	ready watched[int]
	// window is how many publishes may await their confirm in the next session.
	window atomic.Int64
}

type request struct {
	message *message.Message
	// mark is what a return of the message is known by.
	mark mark
	// result gets exactly one value, and has room for it: the session never waits for a caller.
	result   chan error
	returned error
}

// NewPublisher returns a Publisher. It does nothing before Run.
func NewPublisher(options Options) *Publisher {
	p := &Publisher{options: options, requests: make(chan *request)}
	p.window.Store(inFlight)
	p.supervisor = newSupervisor(&p.options, p.session)
	return p
}

// Run keeps a session until ctx ends.
func (p *Publisher) Run(ctx context.Context) { p.supervisor.run(ctx) }

// Renew makes a session with what the source gives now. The one that stands goes on until that works, and then until
// everything that it published is confirmed.
func (p *Publisher) Renew() { p.supervisor.renew() }

// Trouble is why there is no session, or none yet with the newest credentials; nil where there is.
func (p *Publisher) Trouble() error { return p.supervisor.trouble() }

// Ready tells whether messages can be published now, and gives a channel that is closed when that changes.
func (p *Publisher) Ready() (bool, <-chan struct{}) {
	sessions, changed := p.ready.get()
	return sessions > 0, changed
}

// Publish returns nil when the broker confirmed the message and had a queue for it; it waits for a session as long as ctx
// allows. Any other outcome is an error: ErrUnroutable, ErrUnconfirmed, ErrUnpublishable, or that of ctx, after which the
// message may still have been published. The map of the message's headers is the publisher's from then on; what it holds in
// depth is not altered.
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

// mark is the message's own id where no other message in flight has it, or else a header of ours, which costs the broker as much as
// any header does, on each hop.
type mark struct{ messageID, header string }

// publishing is one session: a channel that only session's goroutine uses, and what awaits its confirm on it.
type publishing struct {
	channel *amqp091.Channel
	// requests are those of the publisher while the session takes messages, which is when ready is true; else nil.
	requests <-chan *request
	ready    bool
	// window bounds byTag; it grows to inFlight once as many are answered.
	window   int
	answered int
	next     uint64
	byTag    map[uint64]*request
	byMark   map[mark]*request
	returns  chan amqp091.Return
	confirms chan amqp091.Confirmation
	// doubt is set once a message came back of which nobody knows which it was: no confirm of the session counts from then on.
	doubt error
}

func (p *Publisher) session(ctx context.Context, l *link) error {
	s, err := p.begin(l.conn)
	if err != nil {
		return err
	}
	defer s.end()
	closed := s.channel.NotifyClose(make(chan *amqp091.Error, 1))
	blocked := l.conn.NotifyBlocked(make(chan amqp091.Blocking, 8))
	p.take(s, true)
	defer p.take(s, false)
	l.open(nil)
	for retired := l.retired; retired != nil || len(s.byTag) > 0; {
		select {
		case r := <-s.open():
			if err := s.publishAll(r, l.wire); err != nil {
				return err
			}
		case c, ok := <-s.confirms:
			if !ok {
				return p.closed(s, <-closed, l)
			}
			if s.confirm(c); s.doubt != nil {
				p.search(s, l)
				return s.doubt
			}
		case err := <-closed:
			return p.closed(s, err, l)
		case b, ok := <-blocked:
			if !ok {
				return p.closed(s, <-closed, l)
			}
			p.options.Log.Warn("broker blocks publishing", "blocked", b.Active, "reason", b.Reason)
			p.take(s, !b.Active && retired != nil)
		case <-retired:
			retired = nil
			p.take(s, false)
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

// take turns taking messages on or off.
func (p *Publisher) take(s *publishing, on bool) {
	s.requests = nil
	if on {
		s.requests = p.requests
	}
	p.setReady(s, on)
}

// begin opens a channel with confirms.
func (p *Publisher) begin(conn *amqp091.Connection) (*publishing, error) {
	channel, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	if err := channel.Confirm(false); err != nil {
		return nil, fmt.Errorf("switch confirms on: %w", err)
	}
	return &publishing{
		channel:  channel,
		window:   int(p.window.Swap(inFlight)),
		byTag:    map[uint64]*request{},
		byMark:   map[mark]*request{},
		returns:  channel.NotifyReturn(make(chan amqp091.Return, inFlight)),
		confirms: channel.NotifyPublish(make(chan amqp091.Confirmation, inFlight)),
	}, nil
}

// closed judges the end of a session by the broker. A message that the broker does not take at all, such as one that is
// larger than it has come to allow, would end one session after the other, with all that is in flight. The broker does not
// say which one it was, so the next session publishes one at a time, until it is found.
func (p *Publisher) closed(s *publishing, cause *amqp091.Error, l *link) error {
	if cause == nil || !cause.Server || cause.Code != amqp091.PreconditionFailed && cause.Code != amqp091.FrameError {
		return closing(cause)
	}
	s.drain()
	p.search(s, l)
	if len(s.byTag) == 1 && s.doubt == nil {
		for tag := range s.byTag {
			s.answer(tag, fmt.Errorf("%w: %w", ErrUnpublishable, cause))
		}
	}
	return cause
}

// search has the next session publish one message at a time, to find the one of those in flight that ends a session.
func (p *Publisher) search(s *publishing, l *link) {
	if len(s.byTag) > 1 && !l.isRetired() {
		p.window.Store(1)
	}
}

func (p *Publisher) setReady(s *publishing, ready bool) {
	if s.ready == ready {
		return
	}
	s.ready = ready
	p.ready.update(func(sessions *int) bool {
		if ready {
			*sessions++
		} else {
			*sessions--
		}
		return true
	})
}

// open gives messages to publish while there is room for their confirms.
func (s *publishing) open() <-chan *request {
	if len(s.byTag) >= s.window {
		return nil
	}
	return s.requests
}

// publishAll publishes a message, and all others that wait to be, with as few writes as possible.
func (s *publishing) publishAll(r *request, wire *wire) (err error) {
	wire.hold()
	for err == nil && r != nil {
		if err = s.publish(r); err != nil {
			break
		}
		select {
		case r = <-s.open():
		default:
			r = nil
		}
	}
	return errors.Join(err, wire.release())
}

func (s *publishing) publish(r *request) error {
	s.next++
	out := toPublishing(r.message)
	delete(out.Headers, message.HeaderPublishID) // of somebody else's publication
	r.mark = mark{messageID: out.MessageId}
	if out.MessageId == "" || s.byMark[r.mark] != nil {
		r.mark.header = strconv.FormatUint(s.next, 36)
		out.Headers[message.HeaderPublishID] = r.mark.header
	}
	if err := out.Headers.Validate(); err != nil {
		s.next--
		r.result <- fmt.Errorf("%w: %w", ErrUnpublishable, err)
		return nil
	}
	s.byTag[s.next], s.byMark[r.mark] = r, r
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
	if s.doubt != nil {
		return
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
	delete(s.byMark, r.mark)
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

// noteReturn finds the message that came back. Its mark may be lost: the headers of a return may be more than can be read. What
// came back is not in any queue, so it must not count as published with the rest.
func (s *publishing) noteReturn(returned *amqp091.Return) {
	header, _ := returned.Headers[message.HeaderPublishID].(string)
	r := s.byMark[mark{messageID: returned.MessageId, header: header}]
	if len(s.byTag) == 1 {
		for _, only := range s.byTag {
			r = only
		}
	}
	if r == nil {
		s.doubt = fmt.Errorf("a message came back from exchange %q, routing key %q (%s), and which of the %d in flight it was cannot be told",
			returned.Exchange, returned.RoutingKey, returned.ReplyText, len(s.byTag))
		return
	}
	r.returned = fmt.Errorf("%w: exchange %q, routing key %q: %s", ErrUnroutable, returned.Exchange, returned.RoutingKey, returned.ReplyText)
}

// end answers everyone who still waits: the session is over, and with it the knowledge of what the broker has.
func (s *publishing) end() {
	s.drain()
	for tag := range s.byTag {
		s.answer(tag, fmt.Errorf("%w: the session ended", ErrUnconfirmed))
	}
}
