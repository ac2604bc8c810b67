// Package relay lets the pods of a cluster reach a server of this machine that listens on loopback only.
package relay

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
)

// Relay passes TCP connections on.
type Relay struct {
	listener net.Listener
	target   string

	mu     sync.Mutex
	closed bool
	open   map[net.Conn]bool
}

// Open listens on a free port of an address, and passes what comes in there on to the target until Close. Where the target
// is away, clients see their connections end.
func Open(ctx context.Context, address, target string) (*Relay, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, fmt.Errorf("listen for the pods of the cluster: %w", err)
	}
	r := &Relay{listener: listener, target: target, open: map[net.Conn]bool{}}
	go r.accept()
	return r, nil
}

// Port that the relay listens on.
func (r *Relay) Port() int32 {
	return int32(r.listener.Addr().(*net.TCPAddr).Port) //nolint:gosec,forcetypeassert // a TCP listener has a TCP address, with a port
}

// Close ends the relay and all connections.
func (r *Relay) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for conn := range r.open {
		_ = conn.Close()
	}
	if err := r.listener.Close(); err != nil {
		return fmt.Errorf("close the relay to %s: %w", r.target, err)
	}
	return nil
}

func (r *Relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.serve(client)
	}
}

func (r *Relay) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", r.target) //nolint:noctx // ended by Close
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	if !r.register(client, server) {
		return
	}
	defer r.forget(client, server)
	// The end of either direction ends the other.
	var both sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{client: server, server: client} {
		both.Go(func() {
			_, _ = io.Copy(to, from)
			_ = to.Close()
			_ = from.Close()
		})
	}
	both.Wait()
}

func (r *Relay) register(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	for _, conn := range conns {
		r.open[conn] = true
	}
	return true
}

func (r *Relay) forget(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range conns {
		delete(r.open, conn)
	}
}
