// Package replayer carries a replay out: it moves failed messages into a queue of the replay, sends them from there back to their work queues,
// and counts what becomes of them. Whatever it knows is on the broker: it may be killed at any step, and the next one goes on.
package replayer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/replay"
)

// Transport is where replays take place.
type Transport struct {
	// Names are those of the Transport, and Exchange that of its producers.
	Names    compile.Names
	Exchange string
	// Owner is the owner mark of the Transport.
	Owner  string
	Target amqp.Target
	// Dial opens the socket; nil is the system's.
	Dial   amqp.Dial
	Broker Management
	// Check is asked before the failure queue is read; see failurequeue.Options.
	Check func(context.Context) error
	// Holder says who selects, for others who want to look.
	Holder string
	Log    *slog.Logger
}

// Options of a replay.
type Options struct {
	Transport

	// ID of the replay, see NewID.
	ID string
	// Order is what it is to do, where it may be new; one that was begun with another order is refused. Nil: it has to be there.
	Order *replay.Order
	// Settings, where they are not nil, replace those that it had. A new one that does not discard needs some.
	Settings *replay.Settings
	// Cancel takes back what is staged.
	Cancel bool
	// Final deletes discarded messages although they could still be taken back.
	Final bool

	// SettleWithin is how long no outcome may come before the rest is given up; 0 is an hour.
	SettleWithin time.Duration
	// Progress, if set, is told of the replay after each change.
	Progress func(replay.Phase, replay.Counts)

	// renewEvery is how long a message of a queue of the replay is kept unsettled.
	renewEvery time.Duration
	// at, if set, is told of each step at which a kill leaves something half done.
	at func(point)
}

// Result is how far a replay has come.
type Result struct {
	Phase  replay.Phase
	Counts replay.Counts
	// Problem is why it was stopped.
	Problem string
	// Causes count the messages that failed again.
	Causes map[string]int64

	Order    replay.Order
	Settings replay.Settings
	Began    time.Time
	// UndoUntil is until when discarded messages can be taken back; zero where nothing is discarded.
	UndoUntil time.Time
}

const (
	// saveEvery is how often the state is kept, where it has changed.
	saveEvery = 2 * time.Second
	// reconnectAfter is the pause after a session that was lost.
	reconnectAfter = time.Second
	usualSettle    = time.Hour
	usualRenewal   = 5 * time.Minute
	// leaveWithin is how long what is published may take to be confirmed once the replay is to be left.
	leaveWithin = 10 * time.Second
)

// errLost says that the session has ended, and the next one goes on.
var errLost = errors.New("the session with RabbitMQ has ended")

var (
	// ErrNoReplay says that a replay is not there.
	ErrNoReplay = errors.New("there is no such replay")
	// ErrOtherOrder says that a replay was begun with another order.
	ErrOtherOrder = errors.New("the replay was begun with another selection or action")
	// ErrTooMany says that no other replay is begun.
	ErrTooMany = errors.New("too many replays are unfinished")
)

// NewID is the ID of a new replay.
func NewID() string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // it does not fail
	return message.ReplayIDOf(random)
}

// Run carries the replay out until it is completed, cancelled or stopped, or until discarded messages only wait for the time in which they can
// be taken back. When the context ends, it keeps its state, and a later Run goes on. While another one carries the replay out, it waits.
func Run(ctx context.Context, options Options) (Result, error) {
	if err := options.check(); err != nil {
		return Result{}, err
	}
	if options.SettleWithin == 0 {
		options.SettleWithin = usualSettle
	}
	if options.renewEvery == 0 {
		options.renewEvery = usualRenewal
	}
	publisher := amqp.NewPublisher(amqp.Options{
		Source: func() (amqp.Target, error) { return options.Target, nil }, Dial: options.Dial, Name: "redrive replay " + options.ID, Log: options.Log,
	})
	// It outlives the context, so that what was published is confirmed and kept.
	publishing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	go publisher.Run(publishing)
	var before *replay.Waits
	for again := false; ; again = true {
		s := &session{Options: options, publisher: publisher, again: again, before: before}
		err := s.run(ctx)
		if s.log.isRead {
			before = new(s.replay.Waits(time.Now()))
		}
		if !errors.Is(err, errLost) || ctx.Err() != nil {
			return s.result(), err
		}
		options.Log.Warn("the replay goes on with a new session", "replay", options.ID, "error", err)
		if !s.log.saved.IsZero() {
			options.Settings = nil // they are taken over, and the replay may have been stopped since
		}
		select {
		case <-time.After(reconnectAfter):
		case <-ctx.Done():
			return s.result(), ctx.Err()
		}
	}
}

func (o *Options) check() error {
	if !message.IsReplayID(o.ID) {
		return fmt.Errorf("%q is no ID of a replay", o.ID)
	}
	if o.Order != nil {
		if err := o.Order.Check(); err != nil {
			return err
		}
	}
	if o.Settings != nil {
		return o.Settings.Check()
	}
	return nil
}

// session is what lasts as long as one connection. Consumers of the log and of the staging queue are on the same one, so that a replayer which
// is cut off loses both at once.
type session struct {
	Options

	publisher  *amqp.Publisher
	connection *amqp.Connection
	log        eventLog
	staging    staging
	replay     *replay.Replay
	// before are the waits of the sessions before; nil in the first one.
	before *replay.Waits
	// again is true after a session that was lost, and made where this one has made the queues of the replay.
	again, made bool
	// late outlasts the context of the session, so that what is published when that ends is waited for.
	late context.Context //nolint:containedctx // it belongs to the session
}

func (s *session) result() Result {
	if s.replay == nil {
		return Result{}
	}
	return resultOf(s.replay)
}

func resultOf(r *replay.Replay) Result {
	return Result{
		Phase: r.Phase(), Counts: r.Counts(), Problem: r.Problem(), Causes: r.Causes(),
		Order: r.Order(), Settings: r.Settings(), Began: r.Began(), UndoUntil: r.UndoUntil(),
	}
}

func (s *session) run(ctx context.Context) (err error) {
	s.connection, err = amqp.Connect(ctx, &s.Target, s.Dial, "redrive replay "+s.ID)
	if err != nil && s.again {
		return fmt.Errorf("%w: %w", errLost, err)
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && s.connection.IsClosed() && !errors.Is(err, errLost) {
			err = fmt.Errorf("%w: %w", errLost, err)
		}
		s.connection.End(time.Second)
	}()
	late, cancel := outlasting(ctx, leaveWithin)
	defer cancel()
	s.late = late
	if err := s.declare(ctx); err != nil {
		return err
	}
	if err := s.readLog(ctx); err != nil {
		return err
	}
	if order := s.replay.Order(); s.Order != nil && !s.Order.Is(&order) {
		return fmt.Errorf("%w: %s, %s", ErrOtherOrder, s.ID, s.replay.Began().UTC().Format(time.RFC3339))
	}
	if s.Settings != nil {
		s.replay.Change(*s.Settings)
	}
	if s.Cancel {
		s.replay.Cancel()
	}
	if !s.replay.IsSelected() {
		if err := s.selectMessages(ctx); err != nil {
			return s.forget(ctx, err)
		}
	}
	s.replay.Finish(time.Now(), s.Final)
	if err := s.save(ctx); err != nil { // whoever is killed now has cancelled or ended it
		return err
	}
	return s.release(ctx)
}

// outlasting is a context that ends some time after another one.
func outlasting(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(by, cancel) })
	return late, cancel
}

// step tells of a step at which a kill leaves something half done.
func (s *session) step(p point) {
	if s.at != nil {
		s.at(p)
	}
}

// point is a step at which a kill leaves something half done.
type point string

const (
	pointPublish     point = "S1"
	pointStaged      point = "S2"
	pointConfirmed   point = "S3"
	pointTaken       point = "S4"
	pointSelected    point = "S5"
	pointRelease     point = "R1"
	pointReleased    point = "R2"
	pointArrived     point = "R2 confirmed"
	pointGone        point = "R3"
	pointObserved    point = "A1"
	pointSaved       point = "A2"
	pointForgot      point = "A3"
	pointTakeBack    point = "C1"
	pointTakenBack   point = "C2"
	pointTakeBackOut point = "C3"
	pointDiscard     point = "D1"
	pointDiscarded   point = "D2"
)

// reader reads failed messages of the Transport.
func (s *session) reader() deadletter.Reader {
	return deadletter.Reader{Names: s.Names, Exchange: s.Exchange, Now: time.Now()}
}
