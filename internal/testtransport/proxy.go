package testtransport

import (
	"io"
	"net"
	"sync"
	"testing"
)

// Proxy forwards TCP connections, and can cut or freeze them.
type Proxy struct {
	// Address that clients connect to.
	Address string

	target   string
	listener net.Listener
	mu       sync.Mutex
	refusing bool
	frozen   bool
	open     map[net.Conn]bool
}

// NewProxy forwards to an address until the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed with the test
	must(t, err)
	p := &Proxy{Address: listener.Addr().String(), target: target, listener: listener, open: map[net.Conn]bool{}}
	go p.accept()
	t.Cleanup(func() {
		_ = listener.Close()
		p.Cut()
	})
	return p
}

// Cut ends all connections at once.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.open {
		_ = conn.Close()
	}
	clear(p.open)
}

// Refuse turns new connections away, or lets them in again.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = refuse
}

// Freeze drops from now on whatever comes in, on all connections, and leaves them open.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target) //nolint:noctx // ended by Cut
		if err != nil || !p.register(client, server) {
			_ = client.Close()
			if server != nil {
				_ = server.Close()
			}
			continue
		}
		go p.forward(client, server)
		go p.forward(server, client)
	}
}

func (p *Proxy) register(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusing {
		return false
	}
	for _, conn := range conns {
		p.open[conn] = true
	}
	return true
}

func (p *Proxy) forward(to, from net.Conn) {
	_, _ = io.Copy(thawed{to: to, proxy: p}, from)
	_ = to.Close()
	_ = from.Close()
}

// thawed writes while the proxy is not frozen.
type thawed struct {
	to    io.Writer
	proxy *Proxy
}

func (w thawed) Write(data []byte) (int, error) {
	w.proxy.mu.Lock()
	frozen := w.proxy.frozen
	w.proxy.mu.Unlock()
	if frozen {
		return len(data), nil
	}
	return w.to.Write(data) //nolint:wrapcheck // a writer gives the errors of its socket
}
