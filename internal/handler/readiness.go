package handler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"redrive.dev/redrive/internal/retry"
)

// pace is how often the HTTP handler looks at something, on average.
type pace struct {
	// ready and notReady are the times from one question at the readiness URL to the next, and doubted that of the next one at
	// the earliest where an attempt found nobody.
	ready, notReady, doubted time.Duration
	// files is the time after which files are read anew.
	files time.Duration
	// answer is the time that the readiness URL has to answer.
	answer time.Duration
	// silence is how long a connection of HTTP/2 may be silent before it is pinged, and pong the time to answer that.
	silence, pong time.Duration
	// idle is how long a connection is kept at most that is not used.
	idle time.Duration
}

func usualPace() pace {
	return pace{
		ready: 5 * time.Second, notReady: time.Second, doubted: 100 * time.Millisecond, answer: 2 * time.Second, files: time.Second,
		silence: 15 * time.Second, pong: 30 * time.Second, idle: idleTimeout,
	}
}

const (
	// maxReadinessAnswer is how much of its body is read, so that the connection can be used again.
	maxReadinessAnswer = 4 << 10
	// maxSilences is after how many questions in a row without an answer in time a handler is no more ready. One that is busy with
	// its messages may answer late.
	maxSilences = 3
)

var (
	errNotAsked = errors.New("the readinessURL has not answered yet")
	errNoAnswer = errors.New("the readinessURL gives no answer")
	// passing is what differs from one error to the next of the same kind: ports of this end, and the time of day.
	passing = regexp.MustCompile(`\S+->|: current time .*`)
)

// gate is what Ready tells.
type gate struct {
	mu      sync.Mutex
	changed chan struct{}
	// files is what is wrong with the files, and answer with that of the readiness URL.
	files, answer error
}

// set changes one of the gate's reasons. The same text again is no change.
func (g *gate) set(reason *error, why error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := *reason
	*reason = why
	if (before == nil) == (why == nil) && (why == nil || before.Error() == why.Error()) {
		return
	}
	close(g.changed)
	g.changed = make(chan struct{})
}

// Ready is an error as long as a file that the spec needs was never good, or the readiness URL does not answer with 200 to 299.
func (h *HTTP) Ready() (why error, changed <-chan struct{}) { //nolint:revive,staticcheck // the order is Handler's
	h.gate.mu.Lock()
	defer h.gate.mu.Unlock()
	why = h.gate.files
	if why == nil {
		why = h.gate.answer
	}
	return why, h.gate.changed
}

// readiness is where the handler is asked whether it is ready; nowhere, if url is nil.
type readiness struct {
	url *url.URL
	// transports is nil where the URL has the origin of the handler's, and what holds for that holds for it.
	transports *transports
	// doubts has an element where an attempt gives reason to ask at once.
	doubts chan struct{}
}

func (r *readiness) prepare(rawURL string, handler *url.URL, pace pace) error {
	target, err := parseURL(rawURL)
	if err != nil {
		return err
	}
	if origin(target) != origin(handler) {
		dialer, err := newDialer(target, nil, 1, pace)
		if err != nil {
			return err
		}
		own := dialer.transports(nil)
		r.transports = &own
	}
	r.url, r.doubts = target, make(chan struct{}, 1)
	return nil
}

// origin is the scheme, host and port of a URL.
func origin(u *url.URL) string {
	port := u.Port()
	switch {
	case port != "":
	case u.Scheme == schemeTLS:
		port = "443"
	default:
		port = "80"
	}
	return u.Scheme + "://" + strings.ToLower(u.Hostname()) + ":" + port
}

// doubt makes the handler ask soon.
func (r *readiness) doubt() {
	if r.url == nil {
		return
	}
	select {
	case r.doubts <- struct{}{}:
	default: // one is enough
	}
}

func (r *readiness) close() {
	if r.transports != nil {
		r.transports.closeIdleConnections()
	}
}

// watchReadiness asks again and again, until ctx ends.
func (h *HTTP) watchReadiness(ctx context.Context) {
	silences := maxSilences // of one that has not been ready, the first counts
	for {
		select {
		case <-h.readiness.doubts: // this question settles them
		default:
		}
		why := h.askReadiness(ctx)
		asked := time.Now()
		if ctx.Err() != nil {
			return
		}
		silences = h.heed(why, silences)
		pause := h.pace.ready
		if why != nil {
			pause = h.pace.notReady
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(spread(pause)):
			continue
		case <-h.readiness.doubts:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(h.pace.doubted - time.Since(asked)):
		}
	}
}

// heed puts an answer in force, unless it is a silence that may pass. It takes and returns how many there were in a row.
func (h *HTTP) heed(why error, silences int) int {
	switch {
	case why == nil:
		silences = 0
	case errors.Is(why, errNoAnswer):
		silences = min(silences+1, maxSilences)
	default:
		silences = maxSilences
	}
	if silences == 0 || silences == maxSilences {
		h.gate.set(&h.gate.answer, why)
	}
	return silences
}

// spread keeps many workers from asking at the same time.
func spread(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1) //nolint:gosec // it spreads load and guards nothing
}

// askReadiness asks once. Its error is for people, and says in the same words what is the same.
func (h *HTTP) askReadiness(ctx context.Context) error {
	header := http.Header{"User-Agent": {h.userAgent}}
	transports := h.readiness.transports
	if transports == nil {
		link := h.link.Load()
		if link == nil {
			return errNotAsked // the files say why
		}
		transports = &link.transports
		for _, own := range link.headers.list {
			header[own.name] = []string{own.value}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, h.pace.answer)
	defer cancel()
	traced, progress := newProgress(ctx)
	defer progress.end()
	transport := transports.of(nil, false)
	response, err := progress.roundTrip(transport, (&http.Request{
		Method: http.MethodGet, URL: h.readiness.url, Host: h.readiness.url.Host, Header: header,
	}).WithContext(traced))
	switch {
	case err == nil:
	case hasEnded(ctx): // without a connection, too: that may pass
		if progress.isMute() {
			transports.giveUp(transport)
		}
		return h.unanswered(outOfTime(ctx))
	default:
		return h.unanswered(progress.failure(ctx, err))
	}
	_, _ = io.CopyN(io.Discard, response.Body, maxReadinessAnswer)
	_ = response.Body.Close()
	switch code := response.StatusCode; {
	case code >= 200 && code <= 299:
		return nil
	case code >= 300 && code <= 399:
		return fmt.Errorf("the readinessURL answers %s, and redirects are not followed", statusLine(code))
	default:
		return fmt.Errorf("the readinessURL answers %s", statusLine(code))
	}
}

func (h *HTTP) unanswered(failure *retry.Failure) error {
	switch failure.Source {
	case retry.SourceTimeout:
		return fmt.Errorf("%w within %s", errNoAnswer, h.pace.answer)
	case retry.SourceConnection:
		return fmt.Errorf("the readinessURL cannot be reached: %s: %s", failure.Class, passing.ReplaceAllString(failure.Message, ""))
	default: // what else is in the text may be another one each time
		return fmt.Errorf("the readinessURL gives no answer: %s", failure.Class)
	}
}
