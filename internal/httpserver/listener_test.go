package httpserver

import (
	"net"
	"slices"
	"testing"
)

// caller is a connection from an address.
type caller struct {
	net.Conn

	address *net.TCPAddr
	closed  int
}

func (c *caller) RemoteAddr() net.Addr { return c.address }

func (c *caller) Close() error {
	c.closed++
	return nil
}

// callers is a listener to which they come one after the other.
type callers struct {
	net.Listener

	next []*caller
}

func (l *callers) Accept() (net.Conn, error) {
	conn := l.next[0]
	l.next = l.next[1:]
	return conn, nil
}

func TestBoundListener_ConnectionsTakeThePlaceOfTheOldestOfWhoHasMost(t *testing.T) {
	const all, flood = 4, 9
	from := func(address string, port int) *caller {
		return &caller{address: &net.TCPAddr{IP: net.ParseIP(address), Port: port}}
	}
	inner := &callers{next: []*caller{from("10.0.0.1", 1)}}
	for i := range flood {
		inner.next = append(inner.next, from("fd00::2", i))
	}
	inner.next = append(inner.next, from("10.0.0.3", 1))
	came := slices.Clone(inner.next)
	listener := bounded(inner, all)
	var last net.Conn
	for range came {
		last, _ = listener.Accept()
	}
	for i, conn := range came {
		// Of the flood two are left: two others have one each.
		if closed := i > 0 && i <= flood-2; conn.closed > 0 != closed {
			t.Errorf("the connection of %s was closed %d times", conn.address, conn.closed)
		}
	}
	for range 2 {
		_ = last.Close() // counts once
	}
	if listener.count != all-1 || len(listener.from) != 2 {
		t.Errorf("%d connections of %d addresses are counted", listener.count, len(listener.from))
	}
}

func TestBoundListener_ClosesConnectionsOfAnAddressThatOpensTooMany(t *testing.T) {
	inner := &callers{}
	for range 2 * maxAtOnce {
		inner.next = append(inner.next, &caller{address: &net.TCPAddr{IP: net.ParseIP("10.0.0.1")}})
	}
	flood := slices.Clone(inner.next)
	other := &caller{address: &net.TCPAddr{IP: net.ParseIP("10.0.0.2")}}
	inner.next = append(inner.next, other)
	listener := bounded(inner, len(inner.next))
	accepted := 0
	for {
		conn, _ := listener.Accept()
		if conn.RemoteAddr() == net.Addr(other.address) {
			break
		}
		accepted++
	}
	closed := 0
	for _, conn := range flood {
		closed += conn.closed
	}
	if accepted+closed != len(flood) || accepted < maxAtOnce || accepted > 3*maxAtOnce/2 {
		t.Errorf("%d connections are accepted, and %d are closed", accepted, closed)
	}
}
