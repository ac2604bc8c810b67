package amqp

import (
	"context"
	"net"
	"testing"
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
			conn, err := n.connect(t.Context(), first, 0)
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
