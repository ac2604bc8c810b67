// Package amqp keeps sessions with RabbitMQ: a Consumer and a Publisher, each on a connection of its own that is made
// anew for as long as it takes. A session is one connection with its channels; it ends as a whole, and nothing of it, no
// delivery tag and no confirm, is carried into the next one.
//
// A fault of one exchange, lane or queue stays with that exchange, lane or queue. The Consumer has a channel for each queue, the
// Publisher one for each destination: a lane, or a queue that messages go back or fail to. What ends a channel, be it a missing
// exchange, a missing right or a message that RabbitMQ does not take, is answered for by what was in flight there. A destination that
// confirms nothing fills its own window and nobody else's. Only what RabbitMQ says of the whole connection touches all.
//
// The client library's own recovery stays off. It counts delivery tags from 1 again on the same channel value, so that
// the late acknowledgement of a slow handler would settle another message.
package amqp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	heartbeat = 10 * time.Second
	// locale of the broker's texts; AMQP requires every broker to have this one.
	locale = "en_US"
	// handshakeTimeout bounds connecting, TLS and the AMQP handshake together.
	handshakeTimeout = 30 * time.Second
	// writeTimeout bounds one write: a broker that stops reading would else block it, and all behind it, for good.
	writeTimeout = 30 * time.Second
	closeTimeout = 2 * time.Second

	firstPause   = 200 * time.Millisecond
	longestPause = 15 * time.Second
	// settled is how long a session must have lasted for the next pause to start small again.
	settled = 20 * time.Second
	// repeatLog is how often a failure that stays the same is logged.
	repeatLog = time.Minute
)

// Target is a broker as one login sees it.
type Target struct {
	// Address is host:port.
	Address  string
	Username string
	Password string
	VHost    string
	// TLS of the connection; nil for plain TCP.
	TLS *tls.Config
}

// Source gives the target of the next session. It is asked before each one, so that changed credentials are taken over; Renew
// takes them over at once.
type Source func() (Target, error)

// Options of a Consumer and a Publisher.
type Options struct {
	// Source of the broker's address and credentials.
	Source Source
	// Dial opens the socket; nil is the system's.
	Dial Dial
	// Name of the connection as the broker shows it.
	Name string
	// Log gets one line for each change of state.
	Log *slog.Logger
	// OnState, if set, is told when a session is up and when it has ended.
	OnState func(up bool)
	// OnRenewal, if set, is told of each try to take over changed credentials: nil, or why the session stays as it is.
	OnRenewal func(err error)
	// ConsumerTimeout, if set, is how long the broker waits for the settlement of a delivery; else that is 30 minutes.
	ConsumerTimeout func() time.Duration
	// MaxBody, if set, is the size in bytes beyond which a body is not read: such a delivery is Unreadable.
	MaxBody int64
	// Room, if set, is where bodies take room before they are read. Where there is none for some seconds, the body is left out: such a
	// delivery has NoRoom.
	Room *Room
	// bodiless is true where nobody needs the bodies of what comes.
	bodiless bool
	// receive is how large the system's buffer for what comes is, in bytes, where it is not to grow by itself; else 0.
	receive int
	// OnQueue, if set, is told of a queue that cannot be consumed and why, in plain words, with each try, and, with nil, of one that is consumed or not
	// wanted any more. It is called by one at a time, and must not call the Consumer.
	OnQueue func(queue string, err error)
}

// dial connects, and returns the wire beside the connection: the library knows no context, and what ends one of its calls is
// the end of the socket.
func dial(ctx context.Context, target *Target, options *Options, nodes *nodes) (*amqp091.Connection, *wire, error) {
	conn, wire, err := open(ctx, target, options, nodes)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to %s, vhost %q, as %q: %w", target.Address, target.VHost, target.Username, err)
	}
	return conn, wire, nil
}

func open(ctx context.Context, target *Target, options *Options, nodes *nodes) (_ *amqp091.Connection, _ *wire, err error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	raw, err := nodes.connect(ctx, target.Address, options)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			nodes.leave(raw)
		}
	}()
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	socket := newBounded(raw)
	var conn net.Conn = socket
	var over *secured
	if target.TLS != nil {
		if over, err = secure(ctx, socket, target); err != nil {
			_ = raw.Close()
			return nil, nil, err
		}
		conn = over
	}
	wire := newWire(conn, socket)
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName(options.Name)
	session, err := amqp091.Open(wire, amqp091.Config{
		SASL:       []amqp091.Authentication{&amqp091.PlainAuth{Username: target.Username, Password: target.Password}},
		Vhost:      target.VHost,
		Heartbeat:  heartbeat,
		FrameSize:  frameMax,
		Properties: properties,
		Locale:     locale,
	})
	if err != nil {
		_ = raw.Close()
		if refusal := over.refusal(target.Address); refusal != nil {
			err = refusal
		}
		return nil, nil, err
	}
	socket.agreed(session.Config.Heartbeat)
	wire.agreed(session.Config.FrameSize)
	return session, wire, nil
}

// closing turns the end of a NotifyClose channel into an error; it is nil when this side closed.
func closing(err *amqp091.Error) error {
	if err == nil {
		return errors.New("connection closed")
	}
	return err
}

// repeated logs a failure when it changes, and at most once a minute while it stays the same.
type repeated struct {
	log  *slog.Logger
	text string
	at   time.Time
}

func (r *repeated) warn(message string, err error, args ...any) {
	text := "closed"
	if err != nil {
		text = err.Error()
	}
	if text == r.text && time.Since(r.at) < repeatLog {
		return
	}
	r.text, r.at = text, time.Now()
	r.log.Warn(message, append([]any{"error", text}, args...)...)
}

// FrameSize is the most that a frame has on the connection that is made last, in bytes: all properties of a message travel in
// one. It is 0 before the first.
func (p *Publisher) FrameSize() int { return int(p.supervisor.frameSize.Load()) }
