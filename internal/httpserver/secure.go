package httpserver

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"redrive.dev/redrive/internal/tlsconn"
)

const (
	// handshakeTimeout bounds a TLS handshake with its waits for the caller.
	handshakeTimeout = 10 * time.Second
	// maxPerSecond is how many handshakes an address has in a second, after maxAtOnce.
	maxPerSecond, maxAtOnce = 32, 2 * MaxConnections
)

// Secure puts TLS onto the connections of a listener. One handshake is computed at a time: those of hundreds of callers would stand before all else that
// the process has to do, each for a signature. A caller that keeps its handshake waiting keeps no other one. A connection
// of an address that opens more than 32 a second is closed. With the context no handshake begins any more.
func Secure(ctx context.Context, listener net.Listener, config *tls.Config) net.Listener {
	return secure(ctx, listener, config, newLimits(maxPerSecond, maxAtOnce))
}

func secure(ctx context.Context, listener net.Listener, config *tls.Config, opens *limits) *secureListener {
	s := &secureListener{
		Listener: listener, config: config, opens: opens, slot: make(chan struct{}, 1),
		ready: make(chan net.Conn), failed: make(chan error), closed: make(chan struct{}),
	}
	go s.accept(ctx)
	return s
}

type secureListener struct {
	net.Listener

	config *tls.Config
	opens  *limits
	// slot is taken by the handshake that is computed.
	slot chan struct{}
	// ready are connections after their handshakes, and failed what the listener said instead of one.
	ready  chan net.Conn
	failed chan error

	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener.
func (s *secureListener) Accept() (net.Conn, error) {
	select {
	case conn := <-s.ready:
		return conn, nil
	case err := <-s.failed:
		return nil, err
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (s *secureListener) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Listener.Close() //nolint:wrapcheck // it is the listener's
}

func (s *secureListener) accept(ctx context.Context) {
	for {
		conn, err := s.Listener.Accept()
		switch {
		case err != nil:
		case s.opens.allow(hostOf(conn.RemoteAddr().String())):
			go s.shake(ctx, conn)
			continue
		default:
			_ = conn.Close()
			continue
		}
		select {
		case s.failed <- err: // of which the server knows whether it passes
		case <-s.closed:
			return
		}
	}
}

// shake makes the handshake of one connection.
func (s *secureListener) shake(ctx context.Context, raw net.Conn) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	turns := &turnConn{Conn: raw, slot: s.slot}
	turns.take()
	conn, err := tlsconn.Server(ctx, turns, s.config)
	turns.free()
	turns.slot = nil
	if err != nil {
		_ = raw.Close()
		return
	}
	select {
	case s.ready <- conn:
	case <-s.closed:
		_ = raw.Close()
	}
}

// turnConn is a connection whose handshake holds the slot, but not while it waits for the caller.
type turnConn struct {
	net.Conn

	// slot is nil after the handshake. Until then one goroutine uses the connection.
	slot chan struct{}
}

func (c *turnConn) take() { c.slot <- struct{}{} }
func (c *turnConn) free() { <-c.slot }

// Read implements net.Conn.
func (c *turnConn) Read(p []byte) (int, error) {
	if c.slot != nil {
		c.free()
		defer c.take()
	}
	return c.Conn.Read(p) //nolint:wrapcheck // it is the connection's
}

// Write implements net.Conn.
func (c *turnConn) Write(p []byte) (int, error) {
	if c.slot != nil {
		c.free()
		defer c.take()
	}
	return c.Conn.Write(p) //nolint:wrapcheck // it is the connection's
}
