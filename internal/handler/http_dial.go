package handler

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	// maxAnswerHeaders bounds the status line and the headers of an answer.
	maxAnswerHeaders = 16 << 10
	// maxAnswerLines bounds how many there are, about: each takes much more memory than room on the wire.
	maxAnswerLines = 512
	// dialTimeout bounds the wait for a connection and, separately, for the TLS handshake, within the attempt's deadline.
	dialTimeout = 10 * time.Second
	// idleTimeout is shorter than the 5 s after which common servers close an idle connection, for a POST that meets the
	// closing one is lost: nobody can tell whether it was handled, and it costs an attempt.
	idleTimeout = 4 * time.Second
	// maxAhead is how much a server of HTTP/2 may send of each answer before it is read; net/http keeps all of it. There is no bound for all answers
	// of a connection together: those that nobody reads at the moment, for they wait for others, must not hold up those others.
	maxAhead = 16 << 10
)

// link is what requests have in common as long as the files do not change.
type link struct {
	transport *http.Transport
	headers   secretHeaders
}

// dialer makes transports that lead to one place.
type dialer struct {
	proxy       *url.URL // nil for none
	socket      string   // path of a unix socket; "" for TCP
	connections int
	once        bool // each connection serves one request
	idle        time.Duration
	http2       http.HTTP2Config
}

// newDialer returns one for a URL and the number of connections to keep open.
func newDialer(target *url.URL, socket *string, connections int, pace pace) (*dialer, error) {
	d := &dialer{
		connections: max(1, connections), idle: pace.idle,
		http2: http.HTTP2Config{SendPingTimeout: pace.silence, PingTimeout: pace.pong, MaxReceiveBufferPerStream: maxAhead},
	}
	if socket != nil {
		d.socket = *socket
		return d, nil // a proxy cannot reach into the pod
	}
	var err error
	if d.proxy, err = http.ProxyFromEnvironment(&http.Request{URL: target}); err != nil { // the error shows the proxy's password
		return nil, errors.New("the proxy that the environment names for it is not a valid URL")
	}
	return d, nil
}

// dial makes a connection to an address, or to the unix socket if there is one.
func (d *dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if d.socket != "" {
		network, address = "unix", d.socket
	}
	return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, network, address) //nolint:wrapcheck // it tells all
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

// transport returns a new one, without connections. roots are whom it trusts; nil stands for the system's own.
func (d *dialer) transport(roots *x509.CertPool) *http.Transport {
	settings := d.http2
	return &http.Transport{
		Proxy:                  http.ProxyURL(d.proxy),
		DialContext:            d.dial,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
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
