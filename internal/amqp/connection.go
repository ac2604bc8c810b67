package amqp

import (
	"context"
	"net"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/message"
)

// Dial opens a socket to the broker.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Connection is one session for who uses channels of the client library itself. It outlasts messages that the library cannot read.
type Connection struct {
	*amqp091.Connection

	wire *wire
}

// Connect logs in. name is what the broker shows of the connection; without by the system dials.
func Connect(ctx context.Context, target *Target, by Dial, name string) (*Connection, error) {
	conn, wire, err := dial(ctx, target, &Options{Name: name, Dial: by}, &nodes{})
	if err != nil {
		return nil, err
	}
	return &Connection{conn, wire}, nil
}

// Message is a delivery of this connection; its headers are no longer in the delivery.
func (c *Connection) Message(d *amqp091.Delivery) message.Message {
	_, unreadable := d.Headers[c.wire.mark]
	m := fromDelivery(d)
	if unreadable {
		m.Headers, m.Unreadable = nil, true
	}
	return m
}

// Finish gives all that is still to be done on the connection so long.
func (c *Connection) Finish(within time.Duration) { c.wire.socket.finish(within) }

// End closes the connection, also where the broker does not answer within some time.
func (c *Connection) End(within time.Duration) {
	c.Finish(within)
	_ = c.Close()
}

// timed is a socket that knows no deadlines, such as one by way of the API server: it ends where a call would be late. Each call has a deadline: bounded
// sets it.
type timed struct {
	net.Conn

	read, write time.Time
}

// SetReadDeadline implements net.Conn, for the next call of Read.
func (t *timed) SetReadDeadline(at time.Time) error {
	t.read = at
	return nil
}

// SetWriteDeadline implements net.Conn, for the next call of Write.
func (t *timed) SetWriteDeadline(at time.Time) error {
	t.write = at
	return nil
}

// SetDeadline implements net.Conn. The socket ends then.
func (t *timed) SetDeadline(at time.Time) error {
	time.AfterFunc(time.Until(at), func() { _ = t.Close() })
	return nil
}

// Read implements net.Conn.
func (t *timed) Read(p []byte) (int, error) {
	defer t.endAt(t.read).Stop()
	return t.Conn.Read(p) //nolint:wrapcheck // a net.Conn gives the errors of its socket
}

// Write implements net.Conn.
func (t *timed) Write(p []byte) (int, error) {
	defer t.endAt(t.write).Stop()
	return t.Conn.Write(p) //nolint:wrapcheck // as above
}

func (t *timed) endAt(at time.Time) *time.Timer {
	return time.AfterFunc(time.Until(at), func() { _ = t.Close() })
}
