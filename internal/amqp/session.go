// Package amqp keeps sessions with RabbitMQ: a Consumer and a Publisher, each on a connection of its own that is made
// anew for as long as it takes. A session is one connection with its channels; it ends as a whole, and nothing of it, no
// delivery tag and no confirm, is carried into the next one.
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
	"math/rand/v2"
	"net"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	heartbeat = 10 * time.Second
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

// Source gives the target of the next session. It is asked before each one, so that changed credentials are taken over.
type Source func() (Target, error)

// Options of a Consumer and a Publisher.
type Options struct {
	// Source of the broker's address and credentials.
	Source Source
	// Name of the connection as the broker shows it.
	Name string
	// Log gets one line for each change of state.
	Log *slog.Logger
	// OnState, if set, is told when a session is up and when it has ended.
	OnState func(up bool)
}

// supervise runs one session after the other until ctx ends, with a jittered pause between them.
func supervise(ctx context.Context, o *Options, session func(ctx context.Context, conn *amqp091.Connection) error) {
	pause := firstPause
	last := repeated{log: o.Log}
	for ctx.Err() == nil {
		began := time.Now()
		err := once(ctx, o, session)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > settled {
			pause = firstPause
		}
		wait := pause/2 + time.Duration(rand.Int64N(int64(pause))) //nolint:gosec // jitter needs no secrecy
		last.warn("broker session ended", err, "retryIn", wait.Round(time.Millisecond))
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		pause = min(2*pause, longestPause)
	}
}

// once makes one connection, runs the session on it and closes it.
func once(ctx context.Context, o *Options, session func(context.Context, *amqp091.Connection) error) error {
	target, err := o.Source()
	if err != nil {
		return fmt.Errorf("broker credentials: %w", err)
	}
	conn, socket, err := dial(ctx, &target, o.Name)
	if err != nil {
		return err
	}
	// A call that waits for an answer, or a write, may hang for as long as the heartbeat. When ctx has ended it must not.
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(closeTimeout, func() { _ = socket.Close() }) })
	defer stop()
	defer func() { _ = conn.CloseDeadline(time.Now().Add(closeTimeout)) }()
	if o.OnState != nil {
		o.OnState(true)
		defer o.OnState(false)
	}
	o.Log.Info("broker session started", "address", target.Address, "vhost", target.VHost)
	return session(ctx, conn)
}

// dial connects, and returns the socket beside the connection: the library knows no context, and what ends one of its
// calls is the end of the socket.
func dial(ctx context.Context, target *Target, name string) (*amqp091.Connection, net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	var socket net.Conn
	stop := func() bool { return false }
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	conn, err := amqp091.DialConfig("amqp://"+target.Address, amqp091.Config{
		SASL:       []amqp091.Authentication{&amqp091.PlainAuth{Username: target.Username, Password: target.Password}},
		Vhost:      target.VHost,
		Heartbeat:  heartbeat,
		FrameSize:  frameMax,
		Properties: properties,
		Dial: func(network, address string) (_ net.Conn, err error) {
			if socket, err = (&net.Dialer{}).DialContext(ctx, network, address); err != nil {
				return nil, err //nolint:wrapcheck // wrapped by the caller, behind the library
			}
			stop = context.AfterFunc(ctx, func() { _ = socket.Close() })
			return layers(ctx, socket, target)
		},
	})
	stop()
	if err != nil {
		return nil, nil, fmt.Errorf("connect to %s, vhost %q, as %q: %w", target.Address, target.VHost, target.Username, err)
	}
	return conn, socket, nil
}

// layers puts on the socket what the library reads and writes through.
func layers(ctx context.Context, socket net.Conn, target *Target) (net.Conn, error) {
	var conn net.Conn = &boundedWrites{Conn: socket}
	if target.TLS != nil {
		config := target.TLS.Clone()
		if config.ServerName == "" {
			config.ServerName, _, _ = net.SplitHostPort(target.Address) // it was dialled
		}
		secured := tls.Client(conn, config)
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = socket.Close()
			return nil, fmt.Errorf("TLS: %w", err)
		}
		conn = secured
	}
	return newReadable(conn), nil
}

// boundedWrites gives each write a deadline, so that a broker that does not read ends the session instead of hanging it.
type boundedWrites struct{ net.Conn }

func (c *boundedWrites) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err //nolint:wrapcheck // a net.Conn gives the errors of its socket
	}
	return c.Conn.Write(p) //nolint:wrapcheck // as above
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
