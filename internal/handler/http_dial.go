package handler

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// schemeTLS is that of a URL whose server speaks TLS.
	schemeTLS = "https"
	// maxAnswerHeaders bounds the status line and the headers of an answer.
	maxAnswerHeaders = 16 << 10
	// maxAnswerLines bounds how many there are, about: each takes much more memory than room on the wire.
	maxAnswerLines = 512
	// dialTimeout bounds the wait for a connection and, separately, for the TLS handshake, within the attempt's deadline.
	dialTimeout = 10 * time.Second
	// maxSocketPause is the longest pause before a unix socket whose backlog was full is tried again.
	maxSocketPause = 50 * time.Millisecond
	// idleTimeout is shorter than the 5 s after which common servers close an idle connection, for a POST that meets the
	// closing one is lost: nobody can tell whether it was handled, and it costs an attempt.
	idleTimeout = 4 * time.Second
	// maxHandshake is how much a server may send in a handshake: 20 times what most send. Go would keep 256 KiB of certificates.
	maxHandshake = 32 << 10
	// maxAhead is how much a server of HTTP/2 may send of each answer before it is read; net/http keeps all of it. There is no bound for all answers
	// of a connection together: those that nobody reads at the moment, for they wait for others, must not hold up those others.
	maxAhead = 16 << 10
	// leastSettling is the least time that a server of HTTP/2 has to say how many streams it takes.
	leastSettling = 50 * time.Millisecond
)

// link is what requests have in common as long as the files do not change.
type link struct {
	transports transports
	headers    secretHeaders
}

// transports lead to one place. In HTTP/2 all requests of a transport share a connection, and what a server may be sent before it has read it: a large body
// that it reads late would hold up all others.
type transports struct {
	small, large *atomic.Pointer[http.Transport]
	// once has a connection for each request.
	once *http.Transport
}

// of is the transport for a body. fresh is true for a request that must not get a connection that was used before.
func (t transports) of(body []byte, fresh bool) *http.Transport {
	switch {
	case fresh:
		return t.once
	case len(body) > maxTogether:
		return t.large.Load()
	}
	return t.small.Load()
}

// giveUp has later requests go by new connections instead of those of a transport, which end when they are idle. Where many requests find out at a time
// that a connection is mute, the first of them does it for all: a server that answers none gets no connection for each.
func (t transports) giveUp(transport *http.Transport) {
	for _, current := range []*atomic.Pointer[http.Transport]{t.small, t.large} {
		if current.Load() == transport && current.CompareAndSwap(transport, transport.Clone()) {
			transport.CloseIdleConnections()
		}
	}
}

func (t transports) closeIdleConnections() {
	t.small.Load().CloseIdleConnections()
	t.large.Load().CloseIdleConnections()
}

// dialer makes transports that lead to one place.
type dialer struct {
	proxy       *url.URL       // to which requests without TLS are sent; nil for none
	tunnel      *url.URL       // the proxy by way of which connections with TLS are made; nil for none
	proxyRoots  *x509.CertPool // whom it trusts with the certificate of that proxy; nil stands for the system's own
	socket      string         // path of a unix socket; "" for TCP
	connections int
	once        bool // each connection serves one request
	idle        time.Duration
	http2       http.HTTP2Config
	// dials of its transports.
	dials dials
	// unread is what a server on the unix socket has not read.
	unread unread
}

// newDialer returns one for a URL and the number of connections to keep open.
func newDialer(target *url.URL, socket *string, connections int, pace pace) (*dialer, error) {
	d := &dialer{
		connections: max(1, connections), idle: pace.idle,
		http2: http.HTTP2Config{SendPingTimeout: pace.silence, PingTimeout: pace.pong, MaxReceiveBufferPerStream: maxAhead},
	}
	d.dials.most = 2 * d.connections
	if socket != nil {
		d.socket = *socket
		return d, nil // a proxy cannot reach into the pod
	}
	proxy, err := proxyFor(target)
	if err != nil {
		return nil, err
	}
	if target.Scheme == schemeTLS {
		d.tunnel = proxy
	} else {
		d.proxy = proxy
	}
	return d, nil
}

// dial makes a connection to an address, or to the unix socket if there is one.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if d.socket != "" {
		return d.dialSocket(ctx)
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address)
	if plain, ok := conn.(*net.TCPConn); ok {
		return leaving{plain}, nil
	}
	return conn, err //nolint:wrapcheck // it tells all
}

// dialSocket makes a connection to the unix socket. Where the server's backlog is full, the system says so at once, while TCP would wait.
func (d *dialer) dialSocket(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := d.unread.await(ctx); err != nil {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: fmt.Errorf("the server has not read %d MiB of earlier attempts: %w", mostUnread>>20, err)}
	}
	for pause := time.Millisecond; ; pause = min(2*pause, maxSocketPause) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", d.socket)
		if socket, ok := conn.(*net.UnixConn); ok {
			return patient{socket, &d.unread}, nil
		}
		if !errors.Is(err, syscall.EAGAIN) {
			return nil, err //nolint:wrapcheck // it tells all
		}
		select {
		case <-ctx.Done():
			return nil, err //nolint:wrapcheck // it tells all
		case <-time.After(pause):
		}
	}
}

// connect makes a connection for a transport: to the server of a URL without TLS, or to the proxy for it.
func (d *dialer) connect(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, end := d.dials.begin(ctx)
	defer end()
	conn, err := d.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &headed{Conn: conn}, nil
}

// secure makes a connection over TLS for a transport, with the handshake: to the server, or to a proxy that speaks TLS.
func (d *dialer) secure(ctx context.Context, network, address string, trusting *tls.Config) (net.Conn, error) {
	ctx, end := d.dials.begin(ctx)
	defer end()
	raw, err := d.reach(ctx, network, address)
	if err != nil {
		return nil, err
	}
	config := trusting.Clone()
	if d.proxy == nil {
		config.NextProtos = []string{"h2", "http/1.1"}
	}
	if config.ServerName, _, err = net.SplitHostPort(address); err != nil {
		_ = raw.Close()
		return nil, err //nolint:wrapcheck // it tells all
	}
	if trace := httptrace.ContextClientTrace(ctx); trace != nil && trace.TLSHandshakeStart != nil {
		trace.TLSHandshakeStart() // net/http tells of one of its own only after this
	}
	conn, err := shake(ctx, raw, config)
	if err != nil {
		return nil, err
	}
	if conn.ConnectionState().NegotiatedProtocol != "h2" {
		return &headed{Conn: conn}, nil
	}
	return conn, nil
}

// shake makes the TLS handshake, in which the server may send no more than maxHandshake. Where it fails the connection is closed.
func shake(ctx context.Context, raw net.Conn, config *tls.Config) (*tls.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	start := time.Now()
	settled := make(chan struct{})
	greeting := &underTLS{Conn: raw, left: maxHandshake, settled: settled, settle: sync.OnceFunc(func() { close(settled) })}
	conn := tls.Client(greeting, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		if errors.Is(err, context.DeadlineExceeded) {
			err = errHandshake
		}
		return nil, err
	}
	greeting.left = math.MaxInt // nobody reads it yet
	time.AfterFunc(max(leastSettling, 2*time.Since(start)), greeting.settle)
	return conn, nil
}

var (
	errHandshake     = errors.New("the TLS handshake took too long")
	errLongHandshake = errors.New("the server sends more than 32 KiB in the TLS handshake")
)

// underTLS is a connection that TLS runs on.
type underTLS struct {
	net.Conn

	left int // how much more is read, in bytes
	// answers to messages that came whole, in HTTP/2.
	answers atomic.Int64
	// settled is closed when the server has most likely said how many streams it takes at a time: with its first answer, or after the time of two handshakes.
	// net/http does not tell, and sends up to 100 before that.
	settled <-chan struct{}
	settle  func()
}

// awaitSettings waits until it is settled, or a request has ended.
func (c *underTLS) awaitSettings(ctx context.Context) {
	select {
	case <-c.settled:
	case <-ctx.Done():
	}
}

// Read implements net.Conn.
func (c *underTLS) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errLongHandshake
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err //nolint:wrapcheck // a net.Conn gives the errors of its connection
}

// kept is how many idle connections are kept.
func (d *dialer) kept() int {
	if d.once {
		return 0
	}
	return d.connections
}

// wire returns a faster way than a transport to a URL for which that is possible, else nil.
func (d *dialer) wire(target *url.URL) *wire {
	plain := target.Scheme == "http" && d.proxy == nil
	for _, c := range []byte(target.Host) { // names in other letters, and zones, are better left to net/http
		plain = plain && c > ' ' && c < 0x7f && c != '%'
	}
	if !plain {
		return nil
	}
	port := target.Port()
	if port == "" {
		port = "80"
	}
	address := net.JoinHostPort(target.Hostname(), port)
	return newWire(target, d.kept(), d.idle, func(ctx context.Context) (net.Conn, error) { return d.dial(ctx, "tcp", address) })
}

// transports returns new ones, as transport does.
func (d *dialer) transports(roots *x509.CertPool) transports {
	t := transports{small: &atomic.Pointer[http.Transport]{}, large: &atomic.Pointer[http.Transport]{}, once: d.transport(roots)}
	t.small.Store(d.transport(roots))
	t.large.Store(d.transport(roots))
	t.once.DisableKeepAlives = true
	return t
}

// transport returns a new one, without connections. roots are whom it trusts; nil stands for the system's own.
func (d *dialer) transport(roots *x509.CertPool) *http.Transport {
	settings := d.http2
	trusting := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return &http.Transport{
		Proxy:       http.ProxyURL(d.proxy),
		DialContext: d.connect,
		DialTLSContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			return d.secure(ctx, network, address, trusting)
		},
		TLSClientConfig:        trusting.Clone(), // net/http changes it
		TLSHandshakeTimeout:    dialTimeout,
		DisableKeepAlives:      d.once,
		MaxIdleConns:           d.connections,
		MaxIdleConnsPerHost:    d.connections,
		IdleConnTimeout:        d.idle,
		MaxResponseHeaderBytes: maxAnswerHeaders,
		DisableCompression:     true, // an answer must not grow after its bound was checked
		ForceAttemptHTTP2:      true,
		// One connection serves all attempts in HTTP/2. If what is at its end vanished without a word, they would all go there and
		// time out until the system gives the connection up, which takes a quarter of an hour.
		HTTP2: &settings,
	}
}
