package amqp

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/message"
)

const (
	// slowWrite is how long a write may take before the broker counts as one that takes no messages at the moment.
	slowWrite = time.Second
	// aloneFor is how many messages are published one at a time to find the one that ends a connection.
	aloneFor = 1024
)

var (
	// ErrUnroutable says that the broker took the message and had no queue for it.
	ErrUnroutable = errors.New("no queue for the message")
	// ErrUnconfirmed says that nobody knows whether the broker has the message: it refused it, or the channel ended first.
	// To publish it again may duplicate it; not to would lose it.
	ErrUnconfirmed = errors.New("not confirmed")
	// ErrUnpublishable says that the message cannot be put into AMQP at all; it would fail again.
	ErrUnpublishable = errors.New("cannot be encoded")
	// ErrStalled says that the message was not published, because its destination confirms nothing at the moment.
	ErrStalled = errors.New("the destination confirms nothing")
	// ErrSilent is why a message is unconfirmed for which the broker was not waited any longer, or the Problem of a destination
	// that has confirmed nothing for stalledTime.
	ErrSilent = errors.New("RabbitMQ does not confirm what is published there")
	// ErrRefused is why a message is unconfirmed that the broker refused, as where a queue is full or has no leader.
	ErrRefused = errors.New("RabbitMQ refuses what is published there")
	// errAgain says that the message was not published, and is to be handed over again.
	errAgain = errors.New("not published")
)

// Publisher publishes with confirm and mandatory, over as many sessions as it takes. Each destination has a channel of its own.
type Publisher struct {
	options    Options
	supervisor *supervisor
	// outlets are never removed: there are as many as a configuration names lanes and queues.
	outlets watched[map[Destination]*outlet]
	// own is how many outlets may be for one destination alone.
	own atomic.Int64
	// ready counts the sessions that take messages: two while one takes over from another.
	ready watched[int]
	// searching is true where the next session publishes one message at a time.
	searching atomic.Bool
	// affordable is how many channels the next session may have at a time; 0 where nothing is known to bound them.
	affordable atomic.Int64
}

type request struct {
	message *message.Message
	// elsewhere is true of a message that can go another way if its destination confirms nothing.
	elsewhere bool
	// mark is what a return of the message is known by, and confirm what the broker says of it. sent is when it was published.
	mark    mark
	confirm *amqp091.DeferredConfirmation
	sent    time.Time
	// result gets exactly one value, and has room for it: the session never waits for a caller.
	result   chan error
	answered bool
	returned error
}

func (r *request) answer(err error) {
	if !r.answered {
		r.answered = true
		r.result <- err
	}
}

// NewPublisher returns a Publisher. It does nothing before Run.
func NewPublisher(options Options) *Publisher {
	options.bodiless = true // what comes back is known by its headers
	p := &Publisher{options: options}
	p.own.Store(maxOutlets)
	p.supervisor = newSupervisor(&p.options, p.session)
	return p
}

// Run keeps a session until ctx ends.
func (p *Publisher) Run(ctx context.Context) { p.supervisor.run(ctx) }

// Renew makes a session with what the source gives now. The one that stands goes on until that works, and then until
// everything that it published is confirmed, or was not for overdueTime.
func (p *Publisher) Renew() { p.supervisor.renew() }

// Trouble is why there is no session, or none yet with the newest credentials; nil where there is.
func (p *Publisher) Trouble() error { return p.supervisor.trouble() }

// Ready tells whether the broker takes messages now, and gives a channel that is closed when that changes. A destination
// that takes none changes nothing here: Problems names it.
func (p *Publisher) Ready() (bool, <-chan struct{}) {
	sessions, changed := p.ready.get()
	return sessions > 0, changed
}

// Publish returns nil when the broker confirmed the message and had a queue for it; it waits for that as long as ctx
// allows. Any other outcome is an error: ErrUnroutable, ErrUnconfirmed, ErrUnpublishable, or that of ctx, after which the
// message may still have been published. The map of the message's headers is the publisher's from then on; what it holds in
// depth is not altered.
func (p *Publisher) Publish(ctx context.Context, m *message.Message) error {
	return p.publish(ctx, m, false)
}

// PublishUnlessStalled is Publish for a message that has another way to go. It returns ErrStalled, and the message is not
// published, where the destination has confirmed nothing for stalledTime, and ErrUnconfirmed when the message itself was
// not confirmed for overdueTime.
func (p *Publisher) PublishUnlessStalled(ctx context.Context, m *message.Message) error {
	return p.publish(ctx, m, true)
}

// Begin hands a message over, and returns when a session has taken it. wait is the rest of Publish, to be called once; what one caller begins for
// one destination is published in that order, but for what a session could not publish before it ended.
func (p *Publisher) Begin(ctx context.Context, m *message.Message) (wait func() error, err error) {
	o := p.outlet(destinationOf(m))
	r := newRequest(m, false)
	o.waiting.Add(1)
	if err := o.hand(ctx, r); err != nil {
		o.waiting.Add(-1)
		return nil, err
	}
	return func() error {
		defer o.waiting.Add(-1)
		return p.await(ctx, o, r)
	}, nil
}

func (p *Publisher) publish(ctx context.Context, m *message.Message, elsewhere bool) error {
	o := p.outlet(destinationOf(m))
	o.waiting.Add(1)
	defer o.waiting.Add(-1)
	r := newRequest(m, elsewhere)
	if err := o.hand(ctx, r); err != nil {
		return err
	}
	return p.await(ctx, o, r)
}

func newRequest(m *message.Message, elsewhere bool) *request {
	return &request{message: m, elsewhere: elsewhere, result: make(chan error, 1)}
}

// await waits for the result of a request that was handed over, and hands it over again where a session could not publish it.
func (p *Publisher) await(ctx context.Context, o *outlet, r *request) error {
	for {
		select {
		case err := <-r.result:
			if !errors.Is(err, errAgain) {
				return err
			}
		case <-ctx.Done():
			return ctx.Err() //nolint:wrapcheck // the caller's own context
		}
		r = newRequest(r.message, r.elsewhere)
		if err := o.hand(ctx, r); err != nil {
			return err
		}
	}
}

// outlet is the one of a destination, which is made where there is none.
func (p *Publisher) outlet(to Destination) *outlet {
	outlets, _ := p.outlets.get()
	if o := outlets[to]; o != nil {
		return o
	}
	var o *outlet
	p.outlets.update(func(all *map[Destination]*outlet) bool {
		if len(*all) >= int(p.own.Load()) {
			to.Key = ""
		}
		if o = (*all)[to]; o != nil {
			return false
		}
		o = newOutlet(to, p.options.Log)
		next := map[Destination]*outlet{to: o} // those who have the one before read it without a lock
		maps.Copy(next, *all)
		*all = next
		return true
	})
	return o
}

// publishSession is one session: a connection, and on it the channels of those outlets that were used lately.
type publishSession struct {
	publisher *Publisher
	link      *link
	// taking is true while messages are taken, and shown is what the publisher knows of that.
	taking watched[bool]
	shown  bool
	// alone is there in a session that publishes each message on a channel of its own: who has one of its values may. It has one while
	// a message is looked for that ends the connection, and as many as the user may have channels where there is such a limit.
	alone chan struct{}
	// limited is true where the broker allows the user fewer channels than there are destinations.
	limited bool
	// channels counts those that are open, and most is how many there were at a time.
	channels, most atomic.Int64
	// blocked is true while the broker says that it reads nothing, and resumed is when it last read again; nil before that.
	blocked atomic.Bool
	resumed atomic.Pointer[time.Time]
	// unanswered counts the messages in flight, and answered those that no longer are.
	unanswered, answered atomic.Int64
}

func (p *Publisher) session(ctx context.Context, l *link) (err error) {
	s := &publishSession{publisher: p, link: l}
	p.own.Store(min(maxOutlets, int64(l.conn.Config.ChannelMax)/2)) // the other half is for those that are shared
	s.takeTurns()
	closed := l.conn.NotifyClose(make(chan *amqp091.Error, 1))
	blocked := l.conn.NotifyBlocked(make(chan amqp091.Blocking, 8))
	ctx, cancel := context.WithCancel(ctx)
	var channels sync.WaitGroup
	defer func() {
		cancel()
		l.wire.socket.finish(closeTimeout) // what hangs in a call or a write ends with it
		channels.Wait()
	}()
	s.take(true)
	defer s.take(false)
	l.open(nil)
	tick := time.NewTicker(slowWrite / 2)
	defer tick.Stop()
	serving := map[*outlet]bool{}
	var done chan struct{}
	isBlocked := false
	for retired := l.retired; ; {
		outlets, changed := p.outlets.get()
		for _, o := range outlets {
			if !serving[o] && retired != nil {
				serving[o] = true
				channels.Go(func() { s.serve(ctx, o) })
			}
		}
		select {
		case <-changed:
		case err := <-closed:
			s.count(err)
			return closing(err)
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			if isBlocked != b.Active {
				p.options.Log.Warn("broker blocks publishing", "blocked", b.Active, "reason", b.Reason)
			}
			isBlocked = b.Active
			s.block(isBlocked)
			l.wire.socket.patient.Store(b.Active)
		case <-tick.C:
		case <-retired:
			retired, done = nil, make(chan struct{})
			go func() {
				channels.Wait()
				close(done)
			}()
		case <-done:
			return nil
		case <-ctx.Done():
			return nil
		}
		s.take(!isBlocked && retired != nil && l.wire.socket.writingFor() < slowWrite)
	}
}

// take turns taking messages on or off.
func (s *publishSession) take(on bool) {
	if s.shown == on {
		return
	}
	s.shown = on
	s.taking.update(func(taking *bool) bool {
		*taking = on
		return true
	})
	s.publisher.ready.update(func(sessions *int) bool {
		if on {
			*sessions++
		} else {
			*sessions--
		}
		return true
	})
}

// block takes down that the broker reads nothing, or reads again.
func (s *publishSession) block(blocked bool) {
	if !blocked {
		s.resumed.Store(new(time.Now()))
	}
	s.blocked.Store(blocked)
}

// takeTurns makes the values of alone where the session before has ended over a message or a limit.
func (s *publishSession) takeTurns() {
	turns := s.publisher.affordable.Swap(0)
	s.limited = turns > 0
	if s.publisher.searching.Swap(false) {
		turns = 1
	}
	if turns == 0 {
		return
	}
	s.alone = make(chan struct{}, turns)
	for range turns {
		s.alone <- struct{}{}
	}
}

// count notes how many channels the user may have, where one too many has ended the connection. RabbitMQ announces channel_max to its
// clients, but not the limit max-channels of a user. All connections of the user count towards that, so the next session may find fewer.
func (s *publishSession) count(cause *amqp091.Error) {
	if cause == nil || !cause.Server || cause.Code != amqp091.NotAllowed {
		return
	}
	channels := s.most.Load()
	if s.limited {
		channels = min(channels, int64(cap(s.alone))-1)
	}
	channels = max(1, channels)
	s.publisher.affordable.Store(channels)
	s.publisher.options.Log.Warn("RabbitMQ allows the user fewer channels than the worker publishes to: destinations take turns, which is "+
		"slow; raise the user's limit max-channels", "channels", channels, "error", cause)
}

// opened counts a channel.
func (s *publishSession) opened() {
	for open := s.channels.Add(1); ; {
		if most := s.most.Load(); most >= open || s.most.CompareAndSwap(most, open) {
			return
		}
	}
}

// isAlone is true where a message is published on a channel of its own.
func (s *publishSession) isAlone() bool {
	return s.alone != nil && (s.limited || s.answered.Load() < aloneFor)
}

// serve publishes the messages of a destination, over as many channels as it takes, until the session is over or takes no more.
func (s *publishSession) serve(ctx context.Context, o *outlet) {
	for !s.link.conn.IsClosed() {
		first, alone := s.first(ctx, o)
		if first == nil {
			return
		}
		err := s.open(ctx, o, first, alone)
		if alone {
			s.alone <- struct{}{}
		}
		if stalled, _ := o.stalled.get(); stalled { // the next message shows whether it still is
			o.narrow(1)
			o.stall(false)
		}
		if err != nil && !s.link.conn.IsClosed() && ctx.Err() == nil {
			o.failed(err)
		}
	}
}

// first waits for a message, which is what a channel is opened for. It is nil where there will be none. With alone it holds the value
// of s.alone: the channel is for this message only, and others wait for its end, also where the rest is published together by now.
func (s *publishSession) first(ctx context.Context, o *outlet) (first *request, alone bool) {
	for {
		var requests <-chan *request
		var pause <-chan time.Time
		taking, changed := s.taking.get()
		if wait := o.pause(); wait > 0 {
			pause = time.After(wait)
		} else if taking {
			requests = o.requests
		}
		select {
		case first = <-requests:
			if !s.isAlone() {
				return first, false
			}
			select {
			case <-s.alone:
				return first, true
			case <-s.link.retired:
			case <-ctx.Done():
			}
			first.answer(errAgain)
			return nil, false
		case <-pause:
		case <-changed:
		case <-s.link.retired:
			return nil, false
		case <-ctx.Done():
			return nil, false
		}
	}
}

// open opens a channel and publishes on it, from a first message on, until the channel fails or is needed no more.
func (s *publishSession) open(ctx context.Context, o *outlet, first *request, alone bool) error {
	c, err := s.begin(o, alone)
	if err != nil {
		first.answer(errAgain)
		return err
	}
	defer s.channels.Add(-1)
	defer func() { _ = c.channel.Close() }()
	defer c.end()
	return c.run(ctx, first)
}
