package amqp

import (
	"context"
	"net"
	"slices"
	"sync/atomic"
	"time"
)

// nodes are the addresses that a broker's name leads to. net.Dialer begins at the first one each time, and goes to the next only where nothing listens: a
// node that stands still accepts connections and answers none. The zero value is ready.
type nodes struct {
	// left is the IP address at which the last session ended; nil where none has.
	left atomic.Pointer[string]
	// lookup resolves a name; nil is the system's resolver.
	lookup func(ctx context.Context, host string) ([]string, error)
}

// elsewhereTimeout bounds the connecting to each other node. All of them together have half of the time, for the one that was left may be the only one.
const elsewhereTimeout = 5 * time.Second

// connect opens a socket, at another node than the one at which the last session ended, where there is one.
func (n *nodes) connect(ctx context.Context, address string, options *Options) (net.Conn, error) {
	if options.Dial != nil {
		conn, err := options.Dial(ctx, "tcp", address)
		return &timed{Conn: conn}, err
	}
	conn, err := n.dial(ctx, address)
	if plain, ok := conn.(*net.TCPConn); ok && options.receive > 0 {
		_ = plain.SetReadBuffer(options.receive) // where that is not possible, it grows
	}
	return conn, err
}

func (n *nodes) dial(ctx context.Context, address string) (net.Conn, error) {
	others := n.others(ctx, address)
	for _, other := range others {
		dialer := net.Dialer{Timeout: elsewhereTimeout}
		if deadline, has := ctx.Deadline(); has {
			dialer.Timeout = min(dialer.Timeout, time.Until(deadline)/2/time.Duration(len(others)))
		}
		if conn, err := dialer.DialContext(ctx, "tcp", other); err == nil {
			return conn, nil
		}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		n.left.Store(nil) // the next try has all its time for all addresses
	}
	return conn, err //nolint:wrapcheck // wrapped by the caller
}

// others are the addresses that a name leads to without the one that was left; none before one was.
func (n *nodes) others(ctx context.Context, address string) []string {
	left := n.left.Load()
	host, port, err := net.SplitHostPort(address)
	if left == nil || err != nil {
		return nil
	}
	lookup := n.lookup
	if lookup == nil {
		lookup = net.DefaultResolver.LookupHost
	}
	hosts, err := lookup(ctx, host)
	at := slices.Index(hosts, *left)
	if err != nil || at < 0 {
		return nil
	}
	others := slices.Concat(hosts[at+1:], hosts[:at])
	for i := range others {
		others[i] = net.JoinHostPort(others[i], port)
	}
	return others
}

// leave notes where a session has ended.
func (n *nodes) leave(conn net.Conn) {
	if host, _, err := net.SplitHostPort(conn.RemoteAddr().String()); err == nil {
		n.left.Store(&host)
	}
}
