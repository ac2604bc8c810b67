package amqp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

var (
	// errUnasked is the verdict on a session of which the broker was asked nothing yet: another one follows, however late.
	errUnasked = errors.New("the broker was not asked yet")
	// errSuperseded says that the source has changed again before there was a verdict.
	errSuperseded = errors.New("the credentials have changed again")
)

// link is what a session works on.
type link struct {
	conn *amqp091.Connection
	wire *wire
	// opened holds the newest verdict on the session: nil when it does its work, an error when it is not allowed to.
	opened chan error
	// retired is closed when another session takes over: this one takes on nothing more, and ends once what it has is settled.
	retired <-chan struct{}
}

// isRetired tells whether another session has taken over.
func (l *link) isRetired() bool {
	select {
	case <-l.retired:
		return true
	default:
		return false
	}
}

// open says that the session does its work, or why it may not. It is not called by two at once.
func (l *link) open(err error) {
	select {
	case <-l.opened: //nolint:errcheck // an older verdict
	default:
	}
	l.opened <- err
}

// supervisor keeps a session: one after the other where they end, and one beside the other while changed credentials are
// taken over. Then the old one is told to finish only when the new one does its work, so that credentials that are refused
// change nothing.
type supervisor struct {
	options *Options
	session func(ctx context.Context, l *link) error
	nodes   nodes
	// due has a value when the source has changed.
	due chan struct{}
	// opening, if any, has room for as many supervisors as may connect at a time.
	opening chan struct{}
	// full, if any, is told where the broker does not allow the connection (530), for there may be too many. It gives a channel that is closed when
	// there may be room.
	full func() (room <-chan struct{})
	// problem is why there is no session, or why the newest credentials have none; empty where all is well.
	problem atomic.Pointer[string]
	// frameSize is what the newest session agreed on with the broker, in bytes; 0 before the first.
	frameSize atomic.Int64
	// refused is true from when changed credentials were refused until a session with the newest ones does its work. Only
	// run's goroutine uses it.
	refused bool
}

func newSupervisor(options *Options, session func(ctx context.Context, l *link) error) *supervisor {
	return &supervisor{options: options, session: session, due: make(chan struct{}, 1)}
}

// renew asks for a session with what the source gives now.
func (s *supervisor) renew() {
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// trouble is the error of the last try to make a session; nil where that worked.
func (s *supervisor) trouble() error {
	if text := s.problem.Load(); text != nil {
		return errors.New(*text)
	}
	return nil
}

func (s *supervisor) note(err error) {
	if err == nil {
		s.problem.Store(nil)
		return
	}
	s.problem.Store(new(err.Error()))
}

// judge takes note of whether the newest credentials do.
func (s *supervisor) judge(err error) {
	s.refused = err != nil
	s.note(err)
	s.renewed(err)
}

// running is a session on its way.
type running struct {
	opened <-chan error
	// accepted is true when it took over because it does its work, and not because the one before had ended.
	accepted bool
	// done is closed when it has ended, and err is why.
	done   chan struct{}
	err    error
	retire context.CancelFunc
	cancel context.CancelFunc
	began  time.Time
}

// run keeps a session until ctx ends, with a jittered pause after one that ended. It returns when all sessions have ended.
func (s *supervisor) run(ctx context.Context) {
	var retiring sync.WaitGroup
	defer retiring.Wait()
	pause := pauses{}
	last := repeated{log: s.options.Log}
	for ctx.Err() == nil {
		what := "broker session ended before it began"
		current, err := s.start(ctx)
		if err == nil {
			what = "broker session ended"
			began := current.began
			err = s.keep(ctx, current, &retiring)
			if time.Since(began) > settled {
				pause = pauses{}
			}
		}
		if ctx.Err() != nil {
			return
		}
		s.note(err)
		var room <-chan struct{}
		if answer, _ := errors.AsType[*amqp091.Error](err); s.full != nil && answer != nil && answer.Code == amqp091.NotAllowed {
			room = s.full()
		}
		wait := pause.next()
		last.warn(what, err, "retryIn", wait.Round(time.Millisecond))
		select {
		case <-ctx.Done():
		case <-s.due: // what was refused may be right now
			pause = pauses{}
		case <-room:
			pause = pauses{}
		case <-time.After(wait):
		}
	}
}

// keep waits for the end of the session, and of those that take over from it, and returns why the last of them ended.
func (s *supervisor) keep(ctx context.Context, current *running, retiring *sync.WaitGroup) error {
	verdict := current.opened
	if !s.refused {
		s.judge(nil)
		verdict = nil
	}
	s.state(true)
	defer s.state(false)
	pause := pauses{}
	last := repeated{log: s.options.Log}
	var retry <-chan time.Time
	for {
		select {
		case <-current.done:
			return current.err
		case err := <-verdict:
			if errors.Is(err, errUnasked) {
				continue
			}
			s.judge(err)
			if err == nil {
				verdict = nil
			}
			continue
		case <-s.due:
			pause = pauses{}
		case <-retry:
		}
		next, err := s.replace(ctx, current)
		if ctx.Err() != nil {
			<-current.done
			return current.err
		}
		if errors.Is(err, errSuperseded) {
			s.renew()
			continue
		}
		if err != nil {
			s.judge(err)
			wait := pause.next()
			retry = time.After(wait)
			last.warn("failed to switch to the new credentials; keeping the current connection", err, "retryIn", wait.Round(time.Millisecond))
			continue
		}
		verdict, retry = next.opened, nil
		if next.accepted {
			s.judge(nil)
			verdict = nil
		}
		s.state(true)
		s.options.Log.Info("changed credentials taken over; the session before ends when its messages are settled")
		current.retire()
		before := current
		retiring.Go(func() { s.finish(before) })
		current = next
	}
}

// finish waits for the end of a session from which another has taken over.
func (s *supervisor) finish(session *running) {
	<-session.done
	if session.err != nil {
		s.options.Log.Warn("a session ended before its messages were settled: the broker delivers them again", "error", session.err)
		return
	}
	s.options.Log.Info("the session before has ended")
}

// replace makes a session beside the one that stands, and returns it once it does its work, or the other does none any more.
func (s *supervisor) replace(ctx context.Context, current *running) (*running, error) {
	next, err := s.start(ctx)
	if err != nil {
		return nil, err
	}
	if err = s.await(ctx, current, next); err == nil {
		return next, nil
	}
	next.cancel()
	<-next.done
	return nil, err
}

// await waits for the verdict on the next session. While nothing is received there is none, and both stand.
func (s *supervisor) await(ctx context.Context, current, next *running) (err error) {
	limit, due := time.After(handshakeTimeout), (<-chan struct{})(nil)
	for {
		select {
		case err = <-next.opened:
			if errors.Is(err, errUnasked) {
				limit, due = nil, s.due
				continue
			}
			next.accepted = err == nil
		case <-due:
			err = errSuperseded
		case <-current.done:
			return nil
		case <-next.done:
			return fmt.Errorf("the new session ended: %w", next.err)
		case <-limit:
			return fmt.Errorf("the new session did not begin to work within %s", handshakeTimeout)
		}
		if err != nil {
			// It may have taken messages of the queues that it may consume. They are settled and not given back: to the broker
			// each return counts as a failed delivery.
			next.retire()
			select {
			case <-next.done:
			case <-current.done:
			case <-ctx.Done():
			}
		}
		return err
	}
}

// start makes one connection and lets a session begin on it.
func (s *supervisor) start(ctx context.Context) (*running, error) {
	select {
	case <-s.due: // this session will have what has changed
	default:
	}
	if s.opening != nil {
		select {
		case s.opening <- struct{}{}:
			defer func() { <-s.opening }()
		case <-ctx.Done():
			return nil, ctx.Err() //nolint:wrapcheck // nobody is told
		}
		pass(ctx, rand.N(spreadTime)) //nolint:gosec // jitter needs no secrecy
	}
	target, err := s.options.Source()
	if err != nil {
		return nil, fmt.Errorf("broker credentials: %w", err)
	}
	conn, wire, err := dial(ctx, &target, s.options, &s.nodes)
	if err != nil {
		return nil, err
	}
	wire.bodyMax.Store(s.options.MaxBody)
	wire.bodiless.Store(s.options.bodiless)
	door := s.options.Room.door()
	wire.door.Store(door)
	s.frameSize.Store(int64(conn.Config.FrameSize))
	life, cancel := context.WithCancel(ctx)
	retired, retire := context.WithCancel(context.Background())
	l := &link{conn: conn, wire: wire, opened: make(chan error, 1), retired: retired.Done()}
	session := &running{opened: l.opened, done: make(chan struct{}), retire: retire, cancel: cancel, began: time.Now()}
	s.options.Log.Info("broker session started", "address", target.Address, "vhost", target.VHost)
	go func() {
		defer close(session.done)
		defer door.close()
		defer retire()
		defer cancel()
		// A call that waits for an answer, or a write, may hang for as long as the heartbeat. When ctx has ended it must not.
		stop := context.AfterFunc(life, func() { time.AfterFunc(closeTimeout, func() { _ = wire.socket.Close() }) })
		defer stop()
		if session.err = s.session(life, l); session.err != nil {
			s.nodes.leave(wire.socket)
		}
		wire.socket.finish(closeTimeout)
		_ = conn.Close()
	}()
	return session, nil
}

func (s *supervisor) state(up bool) {
	if s.options.OnState != nil {
		s.options.OnState(up)
	}
}

func (s *supervisor) renewed(err error) {
	if s.options.OnRenewal != nil {
		s.options.OnRenewal(err)
	}
}

// pass waits for a time, or until ctx ends.
func pass(ctx context.Context, wait time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(wait):
	}
}

// pauses grow from one try to the next, and are jittered.
type pauses struct{ last time.Duration }

func (p *pauses) next() time.Duration {
	p.last = min(max(2*p.last, firstPause), longestPause)
	return p.last/2 + time.Duration(rand.Int64N(int64(p.last))) //nolint:gosec // jitter needs no secrecy
}
