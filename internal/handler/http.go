package handler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"time"

	"redrive.dev/redrive/internal/retry"
)

const (
	// maxAnswer is how much of an answer's body is read. The connection is closed when there is more.
	maxAnswer = 64 << 10
	// maxAnswerHeaders bounds the status line and the headers of an answer.
	maxAnswerHeaders = 64 << 10
	// dialTimeout bounds the wait for a connection and, separately, for the TLS handshake, within the attempt's deadline.
	dialTimeout = 10 * time.Second
	// idleTimeout is shorter than the 5 s after which common servers close an idle connection, for a POST that meets the
	// closing one is lost: nobody can tell whether it was handled, and it costs an attempt.
	idleTimeout = 4 * time.Second
)

// HTTPOptions of NewHTTP.
type HTTPOptions struct {
	// Concurrency is the number of requests at a time for which connections are kept open; at least 1.
	Concurrency int
	// Version of the worker, for the User-Agent.
	Version string
	// Clock that a Retry-After date is compared with; time.Now if nil.
	Clock func() time.Time
}

// HTTP posts each message to one URL. A status of 200 to 299 is success. It follows no redirects, keeps no cookies, and
// sends no request twice: a request of which any byte was written may have been handled.
type HTTP struct {
	url       *url.URL
	userAgent string
	clock     func() time.Time
	transport *http.Transport
}

// NewHTTP returns a handler that posts to an absolute http or https URL without user name and password. A proxy is taken
// from the environment.
func NewHTTP(rawURL string, options HTTPOptions) (*HTTP, error) {
	target, err := parseURL(rawURL)
	if err != nil {
		return nil, fmt.Errorf("url of the http handler: %w", err)
	}
	proxy, err := http.ProxyFromEnvironment(&http.Request{URL: target})
	if err != nil { // the error shows the proxy's password
		return nil, errors.New("the proxy that the environment names for the http handler is not a valid URL")
	}
	clock := options.Clock
	if clock == nil {
		clock = time.Now
	}
	connections := max(1, options.Concurrency)
	return &HTTP{
		url:       target,
		userAgent: fieldValue("redrive-worker/" + options.Version),
		clock:     clock,
		transport: &http.Transport{
			Proxy:                  http.ProxyURL(proxy),
			DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSHandshakeTimeout:    dialTimeout,
			MaxIdleConns:           connections,
			MaxIdleConnsPerHost:    connections,
			IdleConnTimeout:        idleTimeout,
			MaxResponseHeaderBytes: maxAnswerHeaders,
			DisableCompression:     true, // an answer must not grow after its bound was checked
			ForceAttemptHTTP2:      true,
		},
	}, nil
}

// parseURL's errors do not show the URL, which may hold secrets.
func parseURL(rawURL string) (*url.URL, error) {
	target, err := url.Parse(rawURL)
	if err != nil {
		if cause := new(url.Error); errors.As(err, &cause) {
			err = cause.Err
		}
		return nil, err
	}
	switch {
	case target.Scheme != "http" && target.Scheme != "https":
		return nil, errors.New("must be an absolute http or https URL")
	case target.Hostname() == "":
		return nil, errors.New("must name a host")
	case target.User != nil:
		return nil, errors.New("must not hold a user name or password")
	}
	return target, nil
}

// Close closes the idle connections.
func (h *HTTP) Close() error {
	h.transport.CloseIdleConnections()
	return nil
}

// Handle posts the message. The answer to a success must be complete, or exceed what is read of it, before the deadline:
// one that breaks off may be that of a handler that died over it.
func (h *HTTP) Handle(ctx context.Context, request Request) *retry.Failure {
	progress := &progress{}
	response, err := h.transport.RoundTrip(h.post(httptrace.WithClientTrace(ctx, progress.trace()), request))
	if err != nil {
		return progress.failure(ctx, err)
	}
	defer func() { _ = response.Body.Close() }() // there is nothing left to lose

	switch code := response.StatusCode; {
	case code < 100 || code > 599:
		return malformed(fmt.Sprintf("the status is %d", code))
	case code >= 200 && code <= 299:
		if _, err := io.CopyN(io.Discard, response.Body, maxAnswer); err != nil && !errors.Is(err, io.EOF) {
			return progress.failure(ctx, err)
		}
		return nil
	case code < 200: // a final 101: the body is a connection that speaks another protocol
		return h.refusal(response, nil)
	}
	body, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer)) // what there is of it
	return h.refusal(response, body)
}

// post returns the request for one attempt.
func (h *HTTP) post(ctx context.Context, request Request) *http.Request {
	body := func() (io.ReadCloser, error) {
		if len(request.Body) == 0 {
			return http.NoBody, nil
		}
		return io.NopCloser(bytes.NewReader(request.Body)), nil
	}
	first, _ := body()
	return (&http.Request{
		Method:        http.MethodPost,
		URL:           h.url,
		Host:          h.url.Host,
		Header:        requestHeader(request, h.userAgent),
		Body:          first,
		GetBody:       body, // lets the transport take another connection while not a byte was written
		ContentLength: int64(len(request.Body)),
	}).WithContext(ctx)
}
