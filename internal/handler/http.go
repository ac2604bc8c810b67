package handler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
)

const (
	// maxAnswer is how much of an answer's body is read. The connection is closed when there is more.
	maxAnswer = 64 << 10
	// maxKeptAnswer is how much of that is kept of an answer that is no problem of RFC 9457, in bytes: its text is looked at no further. A partner
	// may hold back the end of many answers at a time.
	maxKeptAnswer = 2 * excerpt
	// maxLongProblems is how many problems longer than that are read at a time. Others wait.
	maxLongProblems = 64
)

// HTTP posts each message to one URL. A status of 200 to 299 is success. It follows no redirects, keeps no cookies, and
// sends no request twice: a request of which any byte was written may have been handled.
type HTTP struct {
	url         *url.URL
	cloudEvents bool
	headers     headerRules
	userAgent   string
	clock       func() time.Time
	log         *slog.Logger
	dialer      *dialer
	wire        *wire  // nil where there is more to it than plain HTTP/1.1
	losses      losses // where there is no wire
	files       files
	readiness   readiness
	pace        pace
	problems    *semaphore.Weighted // for those longer than maxKeptAnswer

	// link is nil until what the spec takes from files was read.
	link atomic.Pointer[link]
	gate gate

	stop       context.CancelFunc
	background sync.WaitGroup
}

// NewHTTP returns a handler that posts to an absolute http or https URL without user name and password. A proxy is taken
// from the environment, but not for a unix socket. What is wrong with the files that the spec needs is no error: it makes
// the handler not ready, until they are there.
func NewHTTP(spec v1alpha1.HTTPHandler, options Options) (*HTTP, error) {
	return newHTTP(spec, options, usualPace())
}

func newHTTP(spec v1alpha1.HTTPHandler, options Options, pace pace) (*HTTP, error) {
	target, err := parseURL(spec.URL)
	if err != nil {
		return nil, fmt.Errorf("url of the http handler: %w", err)
	}
	dialer, err := newDialer(target, spec.UnixSocket, options.Concurrency, pace)
	if err != nil {
		return nil, fmt.Errorf("url of the http handler: %w", err)
	}
	dialer.once = spec.KeepAlive != nil && !*spec.KeepAlive
	headers, err := newHeaderRules(spec.Headers)
	if err != nil {
		return nil, err
	}
	clock := options.Clock
	if clock == nil {
		clock = time.Now
	}
	ctx, stop := context.WithCancel(context.Background())
	h := &HTTP{
		url:         target,
		cloudEvents: spec.Format != nil && *spec.Format == v1alpha1.HTTPFormatCloudEvents,
		headers:     headers,
		userAgent:   fieldValue("redrive-worker/" + options.Version),
		clock:       clock,
		log:         options.logger(),
		dialer:      dialer,
		wire:        dialer.wire(target),
		files:       files{folder: options.Files, headers: spec.HeadersSecretRef != nil, ca: spec.TLS != nil},
		pace:        pace,
		problems:    semaphore.NewWeighted(maxLongProblems),
		gate:        gate{changed: make(chan struct{})},
		stop:        stop,
	}
	if spec.ReadinessURL != nil {
		if err := h.readiness.prepare(*spec.ReadinessURL, target, pace); err != nil {
			stop()
			return nil, fmt.Errorf("readinessURL of the http handler: %w", err)
		}
		h.gate.answer = errNotAsked
	}
	h.followFiles(ctx)
	if h.readiness.url != nil {
		h.background.Go(func() { h.watchReadiness(ctx) })
	}
	return h, nil
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
	case target.Scheme != "http" && target.Scheme != schemeTLS:
		return nil, errors.New("must be an absolute http or https URL")
	case target.Hostname() == "":
		return nil, errors.New("must name a host")
	case target.User != nil:
		return nil, errors.New("must not hold a user name or password")
	case target.Port() != "":
		if port, err := strconv.ParseUint(target.Port(), 10, 16); err != nil || port == 0 {
			return nil, errors.New("must have a port of 1 to 65535")
		}
	}
	return target, nil
}

// Close ends what runs in the background, and closes the idle connections.
func (h *HTTP) Close() error {
	h.stop()
	h.background.Wait()
	if link := h.link.Load(); link != nil {
		link.transports.closeIdleConnections()
	}
	if h.wire != nil {
		h.wire.close()
	}
	h.readiness.close()
	h.dialer.unread.close()
	return nil
}

// Handle posts the message. The answer to a success must be complete, or exceed what is read of it, before the deadline:
// one that breaks off may be that of a handler that died over it.
func (h *HTTP) Handle(ctx context.Context, request Request) *retry.Failure {
	link := h.link.Load()
	var failure *retry.Failure
	switch {
	case link == nil: // whoever asks Ready first does not come here
		why, _ := h.Ready()
		text := fmt.Sprint("not ready: ", why)
		failure = &retry.Failure{Source: retry.SourceConnection, Class: ClassUnreachable, Message: text, Logged: text}
	case h.wire != nil:
		failure = h.send(ctx, link, request)
	default:
		failure = h.post(ctx, link, request)
	}
	if failure != nil && failure.Class != ClassCanceled && (failure.Source == retry.SourceConnection || failure.Source == retry.SourceCrash) {
		h.readiness.doubt()
	}
	return failure
}

// post makes an attempt by net/http: with TLS, HTTP/2, and by way of a proxy.
func (h *HTTP) post(ctx context.Context, link *link, request Request) *retry.Failure {
	var fields fields
	h.describe(&fields, request, link.headers)
	// The transport sends small bodies together with the headers if their type is one of those that it knows to need no wait.
	body := func() (io.ReadCloser, error) {
		if len(request.Body) == 0 {
			return http.NoBody, nil
		}
		return io.NopCloser(bytes.NewReader(request.Body)), nil
	}
	first, _ := body()
	traced, progress := newProgress(ctx)
	defer progress.end()
	transport := link.transports.of(request.Body, request.Attempt > 1 && h.losses.recent())
	failure := h.exchangeBy(ctx, transport, progress, (&http.Request{
		Method:        http.MethodPost,
		URL:           h.url,
		Host:          h.url.Host,
		Header:        fields.header(),
		Body:          first,
		GetBody:       body, // lets the transport take another connection while not a byte was written
		ContentLength: int64(len(request.Body)),
	}).WithContext(traced))
	switch {
	case failure == nil, failure.Source == retry.SourceHandler:
		progress.hear()
		return failure
	case failure.Class == ClassConnectionReset && progress.reused.Load() && !strings.HasPrefix(failure.Message, streamError):
		h.losses.note()
		link.transports.closeIdleConnections()
	}
	if failure.Source != retry.SourceConnection && progress.isMute() {
		link.transports.giveUp(transport)
	}
	return failure
}

// exchangeBy sends a request by a transport, and reads its answer.
func (h *HTTP) exchangeBy(ctx context.Context, transport *http.Transport, progress *progress, request *http.Request) *retry.Failure {
	response, err := progress.roundTrip(transport, request)
	if err != nil {
		return progress.failure(ctx, err)
	}
	defer func() { _ = response.Body.Close() }() // there is nothing left to lose
	failure, _ := h.judge(ctx, response, func(err error) *retry.Failure {
		progress.framed = response.ProtoMajor > 1
		return progress.failure(ctx, err)
	})
	return failure
}

// judge says what an answer means, and whether all of it was read. cut makes a failure of a success that breaks off.
func (h *HTTP) judge(ctx context.Context, response *http.Response, cut func(error) *retry.Failure) (failure *retry.Failure, whole bool) {
	if countHeaders(response.Header) > maxAnswerLines {
		return malformed(errLongHeaders.Error()), false
	}
	said, start := takeHeaders(response), io.LimitReader(response.Body, maxAnswer)
	switch code := response.StatusCode; {
	case code < 100 || code > 599:
		return malformed(fmt.Sprintf("the status is %d", code)), false
	case code < 200: // a final 101: the body is a connection that speaks another protocol
		return h.refusal(code, said, nil), false
	case code <= 299:
		n, err := io.Copy(io.Discard, start)
		if err != nil {
			return cut(err), false
		}
		return nil, n < maxAnswer
	}
	body, ended, free := h.readRefusal(ctx, start, said.isProblem())
	defer free()
	if !ended {
		return h.refusal(response.StatusCode, said, body), false
	}
	rest, err := io.Copy(io.Discard, start)
	return h.refusal(response.StatusCode, said, body), err == nil && int64(len(body))+rest < maxAnswer
}

// readRefusal reads as much of an answer that is no success as counts. ended is false where the answer broke off, and its beginning is all there is. The
// caller calls free when it needs the body no more.
func (h *HTTP) readRefusal(ctx context.Context, from io.Reader, isProblem bool) (body []byte, ended bool, free func()) {
	free = func() {}
	body, err := io.ReadAll(io.LimitReader(from, maxKeptAnswer))
	if err != nil || len(body) < maxKeptAnswer || !isProblem {
		return body, err == nil, free
	}
	if h.problems.Acquire(ctx, 1) != nil {
		return body, false, free
	}
	whole := bytes.NewBuffer(append(make([]byte, 0, maxAnswer+bytes.MinRead), body...))
	_, err = whole.ReadFrom(from)
	return whole.Bytes(), err == nil, func() { h.problems.Release(1) }
}

// countHeaders is how many lines the headers take. In HTTP/1.1 they are counted as they are read, but by way of a proxy; net/http has a bound for
// their bytes alone.
func countHeaders(header http.Header) (n int) {
	for _, values := range header {
		n += len(values)
	}
	return n
}
