package relay_test

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"testing"
	"time"

	"redrive.dev/redrive/hack/e2e/relay"
)

// echo answers each line with itself.
func echo(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return listener
}

func open(t *testing.T, target string) (*relay.Relay, net.Conn) {
	t.Helper()
	r, err := relay.Open(t.Context(), "127.0.0.1", target)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(r.Port()))))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return r, conn
}

func TestRelay_PassesOnBothWays(t *testing.T) {
	r, conn := open(t, echo(t).Addr().String())
	if _, err := io.WriteString(conn, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "hello\n" {
		t.Fatalf("the answer is %q, %v", line, err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection outlives the relay")
	}
}

func TestRelay_EndsConnectionsWhereTheServerIsAway(t *testing.T) {
	server := echo(t)
	address := server.Addr().String()
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	r, conn := open(t, address)
	defer func() { _ = r.Close() }()
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("something answers")
	}
}
