package tracing

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"redrive.dev/redrive/internal/version"
)

const (
	firstPause = 500 * time.Millisecond
	idleTime   = 90 * time.Second
	// maxAnswer is how much of an answer is read so that its connection can be used again.
	maxAnswer = 64 << 10
	// maxHeaders bounds the headers of an answer: they take twenty times as much memory.
	maxHeaders = 16 << 10
)

// client sends spans to a collector.
type client struct {
	*settings

	mu sync.Mutex
	// trusted is what the connections of http are made with.
	trusted *tls.Config
	http    *http.Client
}

var _ otlptrace.Client = (*client)(nil)

func newClient(s *settings) *client {
	c := &client{settings: s}
	c.trust(s.tls)
	return c
}

// trust has new connections made with these certificates.
func (c *client) trust(certificates *tls.Config) {
	c.trusted, c.http = certificates, &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: certificates.Clone(), ForceAttemptHTTP2: true, MaxIdleConns: 1, IdleConnTimeout: idleTime,
			MaxResponseHeaderBytes: maxHeaders,
		},
		// The headers are for the collector alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// current takes over certificates that were renewed. Where the files cannot be read, as while they are written, those before stay.
func (c *client) current() *http.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if next, err := c.renewed(); err == nil && !haveSameCertificates(next, c.trusted) {
		c.http.CloseIdleConnections()
		c.trust(next)
	}
	return c.http
}

// Start implements otlptrace.Client.
func (*client) Start(context.Context) error { return nil }

// Stop implements otlptrace.Client.
func (c *client) Stop(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.http.CloseIdleConnections()
	return nil
}

// UploadTraces implements otlptrace.Client. It tries again, within the timeout, what may go better the next time.
func (c *client) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// On the wire this is the same as the request of the trace service, whose Go type brings gRPC with it.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	if c.gzip {
		body = compressed(body)
	}
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	for pause := firstPause; ; pause *= 2 {
		wait, err := c.post(ctx, body)
		if err == nil || wait < 0 {
			return err
		}
		select {
		case <-time.After(max(wait, pause)):
		case <-ctx.Done():
			return err
		}
	}
}

// post sends a batch once. With an error, wait is how long to leave the collector alone before the next try; it is negative where
// another try would be in vain.
func (c *client) post(ctx context.Context, body []byte) (wait time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint.String(), bytes.NewReader(body))
	if err != nil {
		return -1, errors.New("the endpoint makes no request")
	}
	request.Header = c.headers.Clone()
	request.Header.Set("Content-Type", "application/x-protobuf")
	request.Header.Set("User-Agent", "redrive-worker/"+version.Version())
	if c.gzip {
		request.Header.Set("Content-Encoding", "gzip")
	}
	response, err := c.current().Do(request)
	if err != nil {
		return 0, withoutURL(err)
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer))
	switch response.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		wait = retryAfter(response.Header)
	default:
		wait = -1
	}
	if response.StatusCode/100 == 2 {
		return 0, nil
	}
	return wait, fmt.Errorf("the collector answered %d %s", response.StatusCode, http.StatusText(response.StatusCode))
}

// withoutURL is an error without the URL, which may hold a secret.
func withoutURL(err error) error {
	if inner, ok := errors.AsType[*url.Error](err); ok {
		return inner.Err
	}
	return err
}

func retryAfter(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil || seconds < 0 || seconds > int(time.Hour/time.Second) {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

func compressed(body []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(body) // a buffer takes everything
	_ = w.Close()
	return out.Bytes()
}
