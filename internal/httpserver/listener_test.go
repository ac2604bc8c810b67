package httpserver

import (
	"crypto/tls"
	"net"
	"slices"
	"testing"

	"redrive.dev/redrive/internal/testcert"
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
	listener := bounded(inner, all, newLimits(0, len(came)))
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
	const allowed = 3
	inner := &callers{}
	for i := range allowed + 2 {
		inner.next = append(inner.next, &caller{address: &net.TCPAddr{IP: net.ParseIP("10.0.0.1"), Port: i}})
	}
	inner.next = append(inner.next, &caller{address: &net.TCPAddr{IP: net.ParseIP("10.0.0.2")}})
	came := slices.Clone(inner.next)
	listener := bounded(inner, MaxConnections, newLimits(0, allowed))
	for len(inner.next) > 0 {
		_, _ = listener.Accept()
	}
	for i, conn := range came {
		if closed := i >= allowed && i < allowed+2; conn.closed > 0 != closed {
			t.Errorf("the connection of %s was closed %d times", conn.address, conn.closed)
		}
	}
}

func TestSecure_ClosesConnectionsOfAnAddressThatOpensTooMany(t *testing.T) {
	t.Parallel()
	const burst = 3
	issued := testcert.NewAuthority(t, "port").Issue(t, "127.0.0.1")
	pair, err := tls.X509KeyPair(issued.Cert, issued.Key)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	listener := secure(t.Context(), plain, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, newLimits(0, burst))
	go func() {
		for {
			if _, err := listener.Accept(); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	for i := range burst + 2 {
		conn, err := tls.Dial("tcp", plain.Addr().String(), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
		if (err == nil) != (i < burst) {
			t.Errorf("connection %d: %v", i+1, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
}
