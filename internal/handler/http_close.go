package handler

import (
	"context"
	"net"
	"slices"
	"sync"
	"time"
)

// mostLeft is how much may be left behind in the system's memory when a connection is closed, in bytes.
const mostLeft = 16 << 10

// leaving is a connection that is reset when it is closed before the server has taken what was sent. The system would go on sending that, for
// minutes where the server reads nothing, and the memory that it takes is the pod's: with each attempt that ends so there would be another request.
type leaving struct{ *net.TCPConn }

// Close implements net.Conn.
func (c leaving) Close() error {
	if unsentBytes(c.TCPConn) > mostLeft {
		_ = c.SetLinger(0) // where that is not possible, it is closed as others are
	}
	return c.TCPConn.Close() //nolint:wrapcheck // a net.Conn gives the errors of its connection
}

const (
	// mostUnread is how much memory what a server on a unix socket has not read may take, of attempts that have ended. It takes more than its bytes.
	mostUnread = 16 << 20
	// unreadPause is from one look to the next whether it has read.
	unreadPause = 50 * time.Millisecond
)

// unread are connections to a unix socket that were closed before the server had read what was sent. There is no reset: the system keeps that for the
// server, in memory that is the pod's, until it reads or goes away. So they stay open until then, which is how it can be told.
type unread struct {
	mu     sync.Mutex
	conns  []*net.UnixConn
	closed bool
	// left is what they take together, as of looked: many attempts may wait for it.
	left   int
	looked time.Time
}

// leave closes a connection, for its user at once, and for the system once the server has read what it was sent.
func (u *unread) leave(conn *net.UnixConn) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	left := unsentBytes(conn)
	switch {
	case slices.Contains(u.conns, conn):
		return net.ErrClosed
	case u.closed || left <= mostLeft:
		return conn.Close() //nolint:wrapcheck // a net.Conn gives the errors of its connection
	}
	u.conns, u.left = append(u.conns, conn), u.left+left
	_ = conn.SetDeadline(time.Unix(1, 0)) // for who reads or writes at the moment
	return conn.CloseWrite()              //nolint:wrapcheck // as above
}

// await waits until what was left takes little enough for another attempt.
func (u *unread) await(ctx context.Context) error {
	for u.sum() > mostUnread {
		select {
		case <-ctx.Done():
			return ctx.Err() //nolint:wrapcheck // its caller knows it by its type
		case <-time.After(unreadPause):
		}
	}
	return nil
}

// sum is what is left, without that which was read.
func (u *unread) sum() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	if time.Since(u.looked) < unreadPause {
		return u.left
	}
	u.left, u.looked = 0, time.Now()
	u.conns = slices.DeleteFunc(u.conns, func(conn *net.UnixConn) bool {
		left := unsentBytes(conn)
		if u.left += left; left > 0 {
			return false
		}
		_ = conn.Close()
		return true
	})
	return u.left
}

// close closes all of them, and those that are left from now on.
func (u *unread) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for _, conn := range u.conns {
		_ = conn.Close()
	}
	u.conns = nil
}

// patient is a connection to a unix socket.
type patient struct {
	*net.UnixConn

	unread *unread
}

// Close implements net.Conn.
func (c patient) Close() error { return c.unread.leave(c.UnixConn) }
