package failurequeue

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	amqp091 "github.com/rabbitmq/amqp091-go"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/credentials"
)

// Dial opens a socket to the broker.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

const (
	connectWithin = 30 * time.Second
	heartbeat     = 10 * time.Second
	locale        = "en_US"
)

// connect logs in. The connection ends when the context does before that.
func connect(ctx context.Context, target *amqp.Target, dial Dial, name string) (*amqp091.Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	conn, err := dial(ctx, "tcp", target.Address)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", target.Address, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if target.TLS != nil {
		over := tls.Client(conn, target.TLS)
		if err := over.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, credentials.ExplainTLS(target.Address, err)
		}
		conn = over
	}
	properties := amqp091.NewConnectionProperties()
	properties.SetClientConnectionName(name)
	session, err := amqp091.Open(conn, amqp091.Config{
		SASL:  []amqp091.Authentication{&amqp091.PlainAuth{Username: target.Username, Password: target.Password}},
		Vhost: target.VHost, Heartbeat: heartbeat, Properties: properties, Locale: locale,
	})
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("connect to %s, vhost %q, as %q: %w", target.Address, target.VHost, target.Username, err)
	}
	return session, nil
}
