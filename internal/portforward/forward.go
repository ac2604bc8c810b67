package portforward

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// Dial opens connections to one place, whatever address it is asked for.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Open returns how to connect along a route. Nothing is connected yet. The closer ends what is.
func Open(config *rest.Config, route Route) (Dial, io.Closer, error) {
	if route.Pod.Name == "" {
		return func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, route.String())
		}, io.NopCloser(nil), nil
	}
	dialer, err := podDialer(config, route)
	if err != nil {
		return nil, nil, fmt.Errorf("prepare to forward to %s: %w", route, err)
	}
	forward := &forwarding{dialer: dialer, route: route}
	return forward.dial, forward, nil
}

// podDialer speaks WebSocket with the API server, or SPDY where a proxy or an old server does not take it.
func podDialer(config *rest.Config, route Route) (httpstream.Dialer, error) {
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("the address of the API server: %w", err)
	}
	end := base.JoinPath("api", "v1", "namespaces", url.PathEscape(route.Pod.Namespace), "pods", url.PathEscape(route.Pod.Name), "portforward")
	transport, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, fmt.Errorf("SPDY: %w", err)
	}
	second := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, end)
	first, err := portforward.NewSPDYOverWebsocketDialerForStreaming(end, config)
	if err != nil {
		return nil, fmt.Errorf("WebSocket: %w", err)
	}
	return portforward.NewFallbackDialerForStreaming(first, second, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}

// forwarding is one connection to the API server that carries any number of connections to a pod.
type forwarding struct {
	dialer httpstream.Dialer
	route  Route

	mu       sync.Mutex
	carrier  httpstream.Connection
	requests int
}

func (f *forwarding) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	carrier, request, err := f.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("forward to %s: %w", f.route, err)
	}
	conn, err := openStreams(carrier, f.route, request)
	if err != nil {
		return nil, fmt.Errorf("forward to %s: %w", f.route, err)
	}
	return conn, nil
}

// connect returns the connection to the API server, a new one where there is none any more, and the number of a request.
func (f *forwarding) connect(ctx context.Context) (httpstream.Connection, int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	if f.carrier != nil {
		select {
		case <-f.carrier.CloseChan():
		default:
			return f.carrier, f.requests, nil
		}
	}
	carrier, err := upgrade(ctx, f.dialer)
	if err != nil {
		return nil, 0, err
	}
	f.carrier = carrier
	return carrier, f.requests, nil
}

// upgrade connects. The library knows no context: who gives up leaves it to end by itself.
func upgrade(ctx context.Context, dialer httpstream.Dialer) (httpstream.Connection, error) {
	type result struct {
		conn httpstream.Connection
		err  error
	}
	done := make(chan result, 1)
	go func() {
		conn, protocol, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
		if err == nil && protocol != portforward.PortForwardProtocolV1Name {
			_ = conn.Close()
			conn, err = nil, fmt.Errorf("the API server offers %q and not %q", protocol, portforward.PortForwardProtocolV1Name)
		}
		done <- result{conn, err}
	}()
	select {
	case r := <-done:
		return r.conn, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.conn != nil {
				_ = r.conn.Close()
			}
		}()
		return nil, fmt.Errorf("connect to the API server: %w", ctx.Err())
	}
}

// Close ends all connections.
func (f *forwarding) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.carrier == nil {
		return nil
	}
	if err := f.carrier.Close(); err != nil {
		return fmt.Errorf("end the forwarding to %s: %w", f.route, err)
	}
	return nil
}

// openStreams opens the pair of streams that is one connection to the pod: one for errors, one for data.
func openStreams(carrier httpstream.Connection, route Route, request int) (net.Conn, error) {
	headers := http.Header{}
	headers.Set(corev1.PortHeader, strconv.Itoa(route.Port))
	headers.Set(corev1.PortForwardRequestIDHeader, strconv.Itoa(request))
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	failures, err := carrier.CreateStream(headers)
	if err != nil {
		return nil, fmt.Errorf("open a stream: %w", err)
	}
	_ = failures.Close() // our side has no errors to tell
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := carrier.CreateStream(headers)
	if err != nil {
		_ = failures.Reset()
		return nil, fmt.Errorf("open a stream: %w", err)
	}
	conn := &podConn{Stream: data, failures: failures, carrier: carrier, route: route, failed: make(chan struct{})}
	go conn.listen()
	return conn, nil
}

// failureWithin is how long the end of the data waits for the reason of it.
const failureWithin = time.Second

// podConn is a connection to a port of a pod.
type podConn struct {
	httpstream.Stream

	failures httpstream.Stream
	carrier  httpstream.Connection
	route    Route

	// failed is closed when the other side has told its error, or has none; then failure may be read.
	failed  chan struct{}
	failure string
}

func (c *podConn) listen() {
	defer close(c.failed)
	const enough = 4096
	text, _ := io.ReadAll(io.LimitReader(c.failures, enough))
	c.failure = string(text)
}

// Read reads data. Where the pod ended the connection with an error, it is that error.
func (c *podConn) Read(p []byte) (int, error) {
	n, err := c.Stream.Read(p)
	if err == nil || n > 0 {
		return n, nil
	}
	timer := time.NewTimer(failureWithin)
	defer timer.Stop()
	select {
	case <-c.failed:
		if c.failure != "" {
			return 0, errors.New(c.failure)
		}
	case <-timer.C:
	}
	return 0, err //nolint:wrapcheck // io.EOF must stay what it is
}

// Close ends the connection.
func (c *podConn) Close() error {
	_ = c.Reset()
	_ = c.failures.Reset()
	c.carrier.RemoveStreams(c.Stream, c.failures)
	return nil
}

// LocalAddr is none: the connection has no socket of its own.
func (c *podConn) LocalAddr() net.Addr { return podAddress("the API server") }

// RemoteAddr is the pod.
func (c *podConn) RemoteAddr() net.Addr { return podAddress(c.route.String()) }

// SetDeadline does nothing: requests are bounded by their context, which closes the connection.
func (c *podConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline does nothing, as SetDeadline.
func (c *podConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing, as SetDeadline.
func (c *podConn) SetWriteDeadline(time.Time) error { return nil }

type podAddress string

func (podAddress) Network() string  { return "portforward" }
func (a podAddress) String() string { return string(a) }
