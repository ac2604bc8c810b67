package amqp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// A name with several addresses whose order is fixed led to a node that stands still, again and again.
func TestNodes_TheNextSessionBeginsAtAnotherNode(t *testing.T) {
	t.Parallel()
	var port string
	listen := func(host string) {
		listener, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		_, port, _ = net.SplitHostPort(listener.Addr().String())
	}
	port = "0"
	listen("127.0.0.2")
	listen("127.0.0.3")
	for name, tt := range map[string]struct {
		hosts []string
		want  []string
	}{
		"three nodes, one of which does not run": {[]string{"127.0.0.2", "127.0.0.4", "127.0.0.3"}, []string{"127.0.0.2", "127.0.0.3", "127.0.0.2"}},
		"one node":                               {[]string{"127.0.0.2"}, []string{"127.0.0.2", "127.0.0.2"}},
	} {
		n := &nodes{lookup: func(context.Context, string) ([]string, error) { return tt.hosts, nil }}
		for i, want := range tt.want {
			first := net.JoinHostPort(tt.hosts[0], port) // what the system begins at where nothing is known of the nodes
			conn, err := n.connect(t.Context(), first, &Options{})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if host, _, _ := net.SplitHostPort(conn.RemoteAddr().String()); host != want {
				t.Errorf("%s: session %d is at %s, want %s", name, i, host, want)
			}
			n.leave(conn)
			_ = conn.Close()
		}
	}
}

// A name with seven addresses, of which all but the one that was left are silent, as those of nodes that are gone for good: they took all of the time.
func TestNodes_SilentOthersLeaveTimeForTheOneThatWasLeft(t *testing.T) {
	t.Parallel()
	left, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = left.Close() })
	_, port, _ := net.SplitHostPort(left.Addr().String())
	hosts := []string{"127.0.0.2"}
	for i := range 6 {
		hosts = append(hosts, silent(t, fmt.Sprintf("127.0.0.%d", 10+i), port))
	}
	n := &nodes{lookup: func(context.Context, string) ([]string, error) { return hosts, nil }}
	n.left.Store(&hosts[0])
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Second)
	defer cancel()
	conn, err := n.connect(ctx, left.Addr().String(), &Options{})
	if err != nil {
		t.Fatalf("the node that was left is not tried again: %v", err)
	}
	_ = conn.Close()
}

// silent is a host on which nothing answers at a port: somebody listens, and its backlog is full.
func silent(t *testing.T, host, port string) string {
	t.Helper()
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	address := &syscall.SockaddrInet4{Port: number, Addr: netip.MustParseAddr(host).As4()}
	if err := errors.Join(syscall.Bind(fd, address), syscall.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(host, port), 200*time.Millisecond)
		if err != nil {
			return host
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	t.Fatalf("%s still answers", host)
	return ""
}
