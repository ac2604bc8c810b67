package local

import (
	"context"
	"fmt"
	"net"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

const (
	countTimeout   = 5 * time.Second
	countHeartbeat = 10 * time.Second
)

// counter reads how many messages wait in queues. It asks over AMQP: the management API's figures for quorum queues are up
// to five seconds old, longer than many a retry takes. On RabbitMQ 4.3 the user needs the right to configure for it.
type counter struct {
	conn *amqp091.Connection
	// on is the broker that conn leads to.
	on Broker
}

// counts of messages that are ready, by queue. A queue that does not exist is left out.
type counts map[string]int64

// count reads these queues, over the same connection as before where it still stands.
func (c *counter) count(ctx context.Context, on Broker, queues []string) (counts, error) {
	if err := c.connect(ctx, on); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, countTimeout)
	defer cancel()
	// The library knows no context: what ends one is the end of the connection.
	conn := c.conn
	stop := context.AfterFunc(ctx, func() { closeSoon(conn) })
	defer stop()
	found := counts{}
	var channel *amqp091.Channel
	for _, queue := range queues {
		if channel == nil || channel.IsClosed() {
			var err error
			if channel, err = conn.Channel(); err != nil {
				c.close()
				return nil, fmt.Errorf("open a channel: %w", err)
			}
		}
		// On a queue that is missing the broker closes the channel.
		if state, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil); err == nil {
			found[queue] = int64(state.Messages)
		} else if conn.IsClosed() {
			return nil, fmt.Errorf("count the messages: %w", err)
		}
	}
	if channel != nil {
		_ = channel.Close()
	}
	return found, nil
}

func (c *counter) connect(ctx context.Context, on Broker) error {
	if c.conn != nil && !c.conn.IsClosed() && c.on.sameAs(on) {
		return nil
	}
	c.close()
	target, err := on.target()
	if err != nil {
		return err
	}
	scheme := "amqp://"
	if target.TLS != nil {
		scheme = "amqps://"
	}
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName("redrive run, counting")
	c.conn, err = amqp091.DialConfig(scheme+target.Address, amqp091.Config{
		SASL:            []amqp091.Authentication{&amqp091.PlainAuth{Username: target.Username, Password: target.Password}},
		Vhost:           target.VHost,
		Heartbeat:       countHeartbeat,
		TLSClientConfig: target.TLS,
		Properties:      properties,
		Dial: func(network, address string) (net.Conn, error) {
			return dialToCount(ctx, network, address)
		},
	})
	if err != nil {
		c.conn = nil
		return fmt.Errorf("connect to count: %w", err)
	}
	c.on = on
	return nil
}

// dialToCount bounds the handshakes as well, as the library's own dialer does: who accepts a connection and never answers, such as a tunnel
// whose far end is gone, would end all counting. The library takes the deadline away once the connection is open.
func dialToCount(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: countTimeout}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller says what for
	}
	if err := conn.SetDeadline(time.Now().Add(countTimeout)); err != nil {
		_ = conn.Close()
		return nil, err //nolint:wrapcheck // the caller says what for
	}
	return conn, nil
}

func (c *counter) close() {
	if c.conn != nil {
		closeSoon(c.conn)
	}
}

func closeSoon(conn *amqp091.Connection) { _ = conn.CloseDeadline(time.Now().Add(time.Second)) }
