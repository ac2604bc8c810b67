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

// Source gives the target of the next session. It is asked before each one, so that changed credentials are taken over; Renew
// takes them over at once.
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
	// OnRenewal, if set, is told of each try to take over changed credentials: nil, or why the session stays as it is.
	OnRenewal func(err error)
}

// dial connects, and returns the socket beside the connection: the library knows no context, and what ends one of its
// calls is the end of the socket.
func dial(ctx context.Context, target *Target, name string) (*amqp091.Connection, net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	var socket net.Conn
	var over *secured
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
			var conn net.Conn = &boundedWrites{Conn: socket}
			if target.TLS != nil {
				if over, err = secure(ctx, conn, target); err != nil {
					_ = socket.Close()
					return nil, err
				}
				conn = over
			}
			return newReadable(conn), nil
		},
	})
	stop()
	if err != nil {
		if refusal := over.refusal(target.Address); refusal != nil {
			err = refusal
		}
		return nil, nil, fmt.Errorf("connect to %s, vhost %q, as %q: %w", target.Address, target.VHost, target.Username, err)
	}
	return conn, socket, nil
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
