package httpserver

import (
	"context"
	"net"
	"sync"
)

// MaxConnections is how many connections a port has at a time: each takes up to 50 kB.
const MaxConnections = 256

// Listen listens at a TCP address for up to MaxConnections connections at a time. A further one takes the place of the oldest of the address
// that has the most: whoever opens many loses them to those who open few, such as the kubelet.
// A connection of an address that opens more than 128 a second is closed. An error names the address.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, err //nolint:wrapcheck // it says all
	}
	return bounded(listener, MaxConnections, newLimits(perSecond, burst)), nil
}

func bounded(listener net.Listener, all int, opens *limits) *boundListener {
	return &boundListener{Listener: listener, all: all, opens: opens, from: map[string][]*boundConn{}}
}

type boundListener struct {
	net.Listener

	all   int
	opens *limits

	mu    sync.Mutex
	count int
	// from has the connections of each address, the oldest first.
	from map[string][]*boundConn
}

type boundConn struct {
	net.Conn

	listener *boundListener
	address  string
}

// Accept implements net.Listener.
func (l *boundListener) Accept() (net.Conn, error) {
	for {
		accepted, err := l.Listener.Accept()
		if err != nil {
			return nil, err //nolint:wrapcheck // http.Server knows the errors of listeners
		}
		conn := &boundConn{Conn: accepted, listener: l, address: hostOf(accepted.RemoteAddr().String())}
		if !l.opens.allow(conn.address) {
			_ = accepted.Close()
			continue
		}
		if replaced := l.enter(conn); replaced != nil {
			_ = replaced.Close()
		}
		return conn, nil
	}
}

// enter counts a connection, and says which one has to go for it.
func (l *boundListener) enter(conn *boundConn) (replaced *boundConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.count >= l.all {
		var most []*boundConn
		for _, its := range l.from {
			if len(its) > len(most) {
				most = its
			}
		}
		replaced = most[0]
	}
	l.count++
	l.from[conn.address] = append(l.from[conn.address], conn)
	return replaced
}

// Close implements net.Conn.
func (c *boundConn) Close() error {
	c.listener.leave(c)
	return c.Conn.Close() //nolint:wrapcheck // it is the connection's
}

func (l *boundListener) leave(conn *boundConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	its := l.from[conn.address]
	for i, other := range its {
		if other == conn {
			l.count--
			its = append(its[:i:i], its[i+1:]...)
			break
		}
	}
	if l.from[conn.address] = its; len(its) == 0 {
		delete(l.from, conn.address)
	}
}
