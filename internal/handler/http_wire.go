package handler

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"redrive.dev/redrive/internal/retry"
)

const (
	// maxTogether is the largest body that is sent in one piece with its headers. It is less than what any system takes on a new
	// connection, so that writing it does not wait for the server.
	maxTogether = 16 << 10
	// maxKept is how large a buffer may be that a connection keeps for its next request.
	maxKept = 64 << 10
	// sentWithin is the time for a large body to be written off after its answer has come whole.
	sentWithin = 50 * time.Millisecond
	// wary is for how long after a request was lost on a connection that was used before another attempt of a message gets a new one.
	wary = time.Hour
)

var errLongHeaders = errors.New("its headers exceed 16 KiB, or are more than 512")

// wire sends requests to one server in plain HTTP/1.1, which is what most handlers get that run beside the worker. To its
// caller it is like http.Transport, in about half of the time: the goroutine of the attempt writes and reads itself, and nothing
// stands between a header and the buffer that is sent. Answers are parsed by net/http.
type wire struct {
	dial  func(context.Context) (net.Conn, error)
	start string        // the request line, Host, and Connection where none is kept
	keep  int           // how many idle connections, at most; none where each serves one request
	rest  time.Duration // how long one stays idle, at most

	mu     sync.Mutex
	idle   []*wireConn // the one used last at the end
	reaper *time.Timer // nil while there are none
	closed bool
	losses losses
}

// losses remember when a request was last lost on a connection that was used before, as where a server closes connections early.
type losses struct{ last atomic.Int64 }

func (l *losses) note() { l.last.Store(time.Now().UnixNano()) }

// recent is true where other attempts of a message get a new connection: such a server must not cost a message all of its attempts.
func (l *losses) recent() bool {
	last := l.last.Load()
	return last != 0 && time.Since(time.Unix(0, last)) < wary
}

func newWire(target *url.URL, keep int, rest time.Duration, dial func(context.Context) (net.Conn, error)) *wire {
	uri, host := strings.ReplaceAll(target.RequestURI(), " ", "%20"), strings.TrimSuffix(target.Host, ":")
	start := http.MethodPost + " " + uri + " HTTP/1.1\r\nHost: " + host + "\r\n"
	if keep == 0 {
		start += "Connection: close\r\n"
	}
	return &wire{dial: dial, keep: keep, rest: rest, start: start}
}

// wireConn is a connection. Whoever has taken it from the wire is alone with it.
type wireConn struct {
	net.Conn

	in     *bufio.Reader // of this connection, by way of Read
	quota  int64         // how much more may be read
	lines  int           // how many more, of headers
	got    received      // since the request was sent
	out    []byte
	fields fields

	raw   syscall.RawConn // nil where there is none
	alive bool            // what peek found
	used  bool            // since the reaper last came
}

// Read reads no more than the quota.
func (c *wireConn) Read(p []byte) (int, error) {
	if c.quota <= 0 || c.lines <= 0 {
		return 0, errLongHeaders
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.quota)])
	c.quota -= int64(n)
	c.got.add(p[:n], err)
	if c.lines < math.MaxInt {
		c.lines -= bytes.Count(p[:n], []byte("\n"))
	}
	return n, err //nolint:wrapcheck // a reader's errors are told apart by their type
}

// take returns an idle connection, or else a new one; always a new one for another attempt where a used one may be lost.
func (w *wire) take(ctx context.Context, again bool) (c *wireConn, reused bool, err error) {
	if !again || !w.losses.recent() {
		for c := w.pop(); c != nil; c = w.pop() {
			if c.isAlive() {
				return c, true, nil
			}
			_ = c.Close()
		}
	}
	conn, err := w.dial(ctx)
	if err != nil {
		return nil, false, err
	}
	c = &wireConn{Conn: conn}
	c.in = bufio.NewReader(c)
	if system, ok := conn.(syscall.Conn); ok {
		c.raw, _ = system.SyscallConn() // without it nobody looks at the connection before its use
	}
	return c, false, nil
}

func (w *wire) pop() *wireConn {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.idle) - 1
	if last < 0 {
		return nil
	}
	c := w.idle[last]
	w.idle[last] = nil
	w.idle = w.idle[:last]
	return c
}

// miss closes the idle connections after a request was lost on one that was used before: the server may be closing them all.
func (w *wire) miss() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.losses.note()
	for _, c := range w.idle {
		_ = c.Close()
	}
	clear(w.idle)
	w.idle = w.idle[:0]
}

// put keeps a connection for the next request.
func (w *wire) put(c *wireConn) {
	c.used = true
	if cap(c.out) > maxKept {
		c.out = nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || len(w.idle) >= w.keep || c.in.Buffered() > 0 { // what nobody asked for would be taken for the next answer
		_ = c.Close()
		return
	}
	w.idle = append(w.idle, c)
	if w.reaper == nil {
		w.reaper = time.AfterFunc(w.rest/2, w.reap)
	}
}

// reap closes the connections that were not used since it last came.
func (w *wire) reap() {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := w.idle[:0]
	for _, c := range w.idle {
		if !c.used {
			_ = c.Close()
			continue
		}
		c.used = false
		kept = append(kept, c)
	}
	clear(w.idle[len(kept):])
	w.idle, w.reaper = kept, nil
	if len(kept) > 0 && !w.closed {
		w.reaper = time.AfterFunc(w.rest/2, w.reap)
	}
}

// close closes the idle connections, and the others after their attempt.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	if w.reaper != nil {
		w.reaper.Stop()
	}
	for _, c := range w.idle {
		_ = c.Close()
	}
	w.idle = nil
}

// send makes an attempt by the wire. It takes another connection as long as not a byte of the request has left, which happens
// where the server has closed an idle one.
func (h *HTTP) send(ctx context.Context, link *link, request Request) *retry.Failure {
	for {
		if err := ctx.Err(); err != nil {
			return unreached(ctx, err, false)
		}
		c, reused, err := h.wire.take(ctx, request.Attempt > 1)
		switch {
		case err == nil:
		case hasEnded(ctx):
			return unreached(ctx, err, false)
		default:
			return unconnected(err, false)
		}
		c.compose(h, link, request)
		failure, sent := h.exchange(ctx, c, request.Body)
		if reused && sent && failure != nil && failure.Class == ClassConnectionReset {
			h.wire.miss()
		}
		if sent || !reused {
			return unseen(failure, sent)
		}
	}
}

// unseen makes a failure to connect out of a connection that ended, or an attempt that was over, before a byte was sent. What came on it is no answer,
// whatever it says.
func unseen(failure *retry.Failure, sent bool) *retry.Failure {
	switch {
	case sent:
		return failure
	case failure == nil || failure.Source == retry.SourceHandler:
		return &retry.Failure{Source: retry.SourceConnection, Class: ClassUnreachable, Message: wasUnasked, Logged: wasUnasked}
	case failure.Source == retry.SourceTimeout:
		return &retry.Failure{Source: retry.SourceConnection, Class: ClassTimeout, Message: wasUnsent, Logged: wasUnsent}
	case failure.Source == retry.SourceCrash:
		failure.Source, failure.Class = retry.SourceConnection, ClassUnreachable
	}
	return failure
}

// compose writes the request's headers into the connection's buffer.
func (c *wireConn) compose(h *HTTP, link *link, request Request) {
	h.describe(&c.fields, request, link.headers)
	out := c.out[:0]
	out = append(out, h.wire.start...)
	for _, f := range c.fields.list {
		out = append(append(append(append(out, f.name...), ": "...), f.value...), "\r\n"...)
	}
	out = strconv.AppendInt(append(out, "Content-Length: "...), int64(len(request.Body)), 10)
	out = append(out, "\r\n\r\n"...)
	c.out = out
	clear(c.fields.list) // nothing of a message is kept
	c.fields.list = c.fields.list[:0]
}

// exchange sends the request that is in the connection's buffer, and reads its answer. sent is false where not a byte has left.
// The connection is the wire's again, or closed.
func (h *HTTP) exchange(ctx context.Context, c *wireConn, body []byte) (failure *retry.Failure, sent bool) {
	release := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	written := c.write(body)
	failure, whole := h.answer(ctx, c)
	sent, wrote := written(whole)
	if release() && whole && wrote {
		h.wire.put(c)
	} else {
		_ = c.Close()
	}
	return failure, sent
}

// write sends what is in the buffer, and the body. It has no error: the answer, or its lack, says more. A large body is sent
// while the answer is awaited, for a server may answer and read no further. The function that is returned ends that by closing the
// connection, but gives it some time if the answer is there whole: mostly that means that the body was read. It says whether any
// byte was sent, and whether all were.
func (c *wireConn) write(body []byte) func(patient bool) (some, all bool) {
	size := int64(len(c.out) + len(body))
	if len(body) <= maxTogether {
		c.out = append(c.out, body...)
		n, _ := c.Write(c.out)
		return func(bool) (some, all bool) { return n > 0, int64(n) == size }
	}
	done := make(chan int64, 1)
	go func() {
		parts := net.Buffers{c.out, body}
		n, _ := parts.WriteTo(c.Conn)
		done <- n
	}()
	return func(patient bool) (some, all bool) {
		wait := time.NewTimer(0)
		if patient {
			wait.Reset(sentWithin)
		}
		defer wait.Stop()
		select {
		case n := <-done:
			return n > 0, n == size
		case <-wait.C:
		}
		_ = c.Close()
		return <-done > 0, false
	}
}

// answer reads the answer and says what it means, and whether all of it was read and the connection is to be kept.
func (h *HTTP) answer(ctx context.Context, c *wireConn) (failure *retry.Failure, whole bool) {
	cut := func(err error) *retry.Failure {
		switch {
		case hasEnded(ctx):
			return outOfTime(ctx)
		case isCut(err):
			return lost(err)
		case c.got.isTorn():
			return lost(io.ErrUnexpectedEOF)
		}
		return malformed(err.Error())
	}
	c.got = received{}
	c.quota, c.lines = maxAnswerHeaders, maxAnswerLines
	for {
		response, err := http.ReadResponse(c.in, nil) //nolint:bodyclose // that would read all of it; the connection is closed instead
		if err != nil {
			return cut(err), false
		}
		if code := response.StatusCode; code >= 100 && code < 200 && code != http.StatusSwitchingProtocols {
			continue // informational: the answer comes after it
		}
		c.quota, c.lines = math.MaxInt64, math.MaxInt // judge reads no more than it wants
		failure, whole = h.judge(ctx, response, cut)
		return failure, whole && !response.Close
	}
}
