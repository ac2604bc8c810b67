package broker

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"

	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/tlsconn"
)

const (
	// handshakeTimeout bounds a TLS handshake, from when it has a processor.
	handshakeTimeout = requestTimeout / 3
	// maxHandshake is how much a server may send in one. Go takes 256 kB. Three certificates take 4 kB, and 16 kB with signatures of ML-DSA.
	maxHandshake = 32 << 10
	// maxShown is what the certificates of a server may take in memory. Their connection keeps them, and 32 kB of empty names become 2.5 MB.
	maxShown = 256 << 10
)

var (
	errShown     = fmt.Errorf("the server's certificates take more than %d bytes in memory: they have too many names", maxShown)
	errHandshake = fmt.Errorf("the server sends more than %d bytes in the TLS handshake: its certificates are too large", maxHandshake)
)

type dial func(ctx context.Context, network, address string) (net.Conn, error)

// secured dials and makes the TLS handshake. What that costs is up to the server, whose certificates may take a second to check, so it is computed on a
// processor of the waiter, as all that its reconcile computes: net/http makes handshakes beside that, as many at a time as there are servers.
func secured(connect dial, config *tls.Config) dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		raw, err := connect(ctx, network, address)
		if err != nil {
			return nil, err
		}
		own := config.Clone()
		if own == nil {
			own = &tls.Config{MinVersion: tls.VersionTLS12}
		}
		if own.ServerName == "" {
			own.ServerName, _, _ = net.SplitHostPort(address)
		}
		own.VerifyConnection = checkShown(own.VerifyConnection)
		// net/http goes on with a connection that its request has given up: without an end those that wait for a processor would be more and more.
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		waiting := &waitingConn{Conn: raw}
		var conn net.Conn
		err = compute(ctx, func(ctx context.Context) (err error) {
			ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
			defer cancel()
			waiting.ctx = ctx
			defer func() { waiting.ctx = nil }()
			conn, err = tlsconn.Client(ctx, waiting, own)
			return err
		})
		if err != nil {
			_ = raw.Close()
			return nil, err
		}
		return conn, nil
	}
}

// checkShown is asked as soon as the certificates are verified: a server that then says nothing more has them kept until the handshake has to be over.
func checkShown(next func(tls.ConnectionState) error) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		switch {
		case credentials.SizeOf(state.PeerCertificates...) > maxShown:
			return errShown
		case next != nil:
			return next(state)
		default:
			return nil
		}
	}
}

// waitingConn is a connection whose reads wait by the waiter of the context, and are bounded.
type waitingConn struct {
	net.Conn

	// ctx is nil after the handshake. Until then one goroutine uses the connection.
	ctx context.Context //nolint:containedctx // net.Conn has none
	// read is how much was read in the handshake.
	read int
}

// Read implements net.Conn.
func (c *waitingConn) Read(p []byte) (n int, err error) {
	if c.ctx == nil {
		return c.Conn.Read(p) //nolint:wrapcheck // it is the connection's
	}
	Await(c.ctx, func() { n, err = c.Conn.Read(p) })
	if c.read += n; c.read > maxHandshake {
		return 0, errHandshake
	}
	return n, err //nolint:wrapcheck // it is the connection's
}
