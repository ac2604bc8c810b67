package handler

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// Classes of failures that are not the handler's own words.
const (
	// ClassTimeout is an attempt, or the making of a connection, that took too long.
	ClassTimeout = "Timeout"
	// ClassCanceled is an attempt that was broken off from outside.
	ClassCanceled = "Canceled"
	// ClassConnectionRefused is a host on which nobody listens.
	ClassConnectionRefused = "ConnectionRefused"
	// ClassDNS is a name that does not resolve.
	ClassDNS = "DNS"
	// ClassTLS is a TLS handshake that failed.
	ClassTLS = "TLS"
	// ClassUnknownCA is one that failed because nobody who is trusted has signed the server's certificate.
	ClassUnknownCA = "UnknownCA"
	// ClassUnreachable is any other way in which no connection comes about.
	ClassUnreachable = "Unreachable"
	// ClassConnectionReset is a connection that ended before the answer did.
	ClassConnectionReset = "ConnectionReset"
	// ClassMalformedResponse is an answer that is not HTTP, or has no usable status.
	ClassMalformedResponse = "MalformedResponse"
)

// What is said of attempts that were ended from outside.
const (
	noAnswer     = "no complete answer in time"
	noResult     = "no result in time"
	wasBrokenOff = "the attempt was broken off"
	wasReset     = "the server reset the request after it was sent"
	wasUnsent    = "no byte of the request was sent in time"
	wasUnasked   = "the server answered and ended the connection before a byte of the request was sent"
)

// progress is how far a request came. The transport tells it from goroutines of its own.
type progress struct {
	handshake, connected, answered atomic.Bool
	// written is how often the headers of the request were sent, and repeated says that it would have been too often.
	written  atomic.Int32
	repeated atomic.Bool
	// reused is true where the connection has served another request.
	reused atomic.Bool
	// shared is the connection where it is one of HTTP/2, and heard how many answers had come on it before.
	shared atomic.Pointer[underTLS]
	heard  atomic.Int64
	// counting is the connection where it counts lines, and parsed tells it that the headers of the answer have been read.
	counting atomic.Pointer[headed]
	parsed   atomic.Pointer[func()]
	// end frees what the context holds.
	end context.CancelFunc
	// framed says that a broken-off body cannot be told from one that is malformed, as in HTTP/2.
	framed bool
}

// mostWritten is how often the headers of one request are sent: once more where the server has not seen it, as with REFUSED_STREAM
// and GOAWAY.
const mostWritten = 2

// newProgress returns one, and the context for its request. The context ends where the transport would send the request too often:
// net/http takes a stream that the server resets with PROTOCOL_ERROR for one that it has not seen, and sends the request again, without
// limit and pause.
func newProgress(ctx context.Context) (context.Context, *progress) {
	p := &progress{}
	ctx, p.end = context.WithCancel(ctx)
	ctx = context.WithValue(ctx, attemptOf{}, ctx)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { // again, where the connection taken first was closed before a byte was written
			if p.written.Load() >= mostWritten {
				p.repeated.Store(true)
				p.end()
				return
			}
			p.handshake.Store(false)
			p.connected.Store(false)
			p.answered.Store(false)
			p.shared.Store(nil)
		},
		TLSHandshakeStart: func() { p.handshake.Store(true) },
		GotConn: func(info httptrace.GotConnInfo) {
			p.connected.Store(true)
			p.reused.Store(info.Reused)
			switch c := info.Conn.(type) {
			case *headed:
				parsed := c.begin()
				p.counting.Store(c)
				p.parsed.Store(&parsed)
			case *tls.Conn:
				if shared, ok := c.NetConn().(*underTLS); ok {
					p.heard.Store(shared.answers.Load())
					p.shared.Store(shared)
					if info.Reused {
						shared.awaitSettings(ctx)
					}
				}
			}
		},
		WroteHeaders: func() { p.written.Add(1) },
		GotFirstResponseByte: func() {
			p.answered.Store(true)
			if c := p.shared.Load(); c != nil {
				c.settle()
			}
		},
	}), p
}

// roundTrip sends a request with the context of this progress.
func (p *progress) roundTrip(transport http.RoundTripper, request *http.Request) (*http.Response, error) {
	response, err := transport.RoundTrip(request)
	if parsed := p.parsed.Load(); parsed != nil {
		(*parsed)()
	}
	return response, err //nolint:wrapcheck // its caller makes a failure of it
}

// hear counts the answer for the connection that requests share.
func (p *progress) hear() {
	if c := p.shared.Load(); c != nil {
		c.answers.Add(1)
	}
}

// isMute reports whether requests share the connection, and none was answered since this one got it. One on which the server refuses streams is not mute.
func (p *progress) isMute() bool {
	c := p.shared.Load()
	return c != nil && !p.repeated.Load() && c.answers.Load() == p.heard.Load()
}

// failure makes a failure out of an error of the transport. Before there was a connection the handler has not seen the
// message (Connection); afterwards it may have, and may have done the work (Crash).
func (p *progress) failure(ctx context.Context, err error) *retry.Failure {
	switch {
	case hasEnded(ctx) && !p.connected.Load() && p.written.Load() == 0:
		return unreached(ctx, err, p.handshake.Load())
	case hasEnded(ctx):
		return outOfTime(ctx)
	case p.repeated.Load():
		return &retry.Failure{Source: retry.SourceCrash, Class: ClassConnectionReset, Message: wasReset, Logged: wasReset}
	case !p.connected.Load(), isUnwelcome(err), p.written.Load() == 0 && err.Error() == notEstablished:
		return unconnected(err, p.handshake.Load())
	case p.answered.Load() && !p.framed && !p.isEnd(err):
		if c := p.counting.Load(); c != nil && c.isTorn() {
			return lost(io.ErrUnexpectedEOF)
		}
		return malformed(err.Error())
	}
	return lost(err)
}

// notEstablished is how net/http says that a connection of HTTP/2 ended before its first request was sent, as that of a server which is about to
// go. It gives no other sign of that.
const notEstablished = "http2: client conn could not be established"

// hasEnded reports whether a context has ended, or is about to: a dialer gives up at its deadline, maybe a moment before it.
func hasEnded(ctx context.Context) bool {
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	return ctx.Err() != nil
}

// outOfTime is the failure of an attempt whose context has ended.
func outOfTime(ctx context.Context) *retry.Failure {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &retry.Failure{Source: retry.SourceTimeout, Class: ClassTimeout, Message: noAnswer, Logged: noAnswer}
	}
	return &retry.Failure{Source: retry.SourceConnection, Class: ClassCanceled, Message: wasBrokenOff, Logged: wasBrokenOff}
}

// unreached is the failure of an attempt whose context ended before it had a connection: the handler has not seen the message, however long the making of
// a connection may take by itself.
func unreached(ctx context.Context, err error, handshake bool) *retry.Failure {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return outOfTime(ctx)
	}
	return unconnected(fmt.Errorf("no connection in time: %w", err), handshake)
}

// unconnected is the failure of one for which no connection came about.
func unconnected(err error, handshake bool) *retry.Failure {
	text := message.Text(err.Error(), message.MaxText)
	return &retry.Failure{Source: retry.SourceConnection, Class: connectionClass(err, handshake), Message: text, Logged: text}
}

// lost is the failure of one whose connection ended.
func lost(err error) *retry.Failure {
	return &retry.Failure{
		Source: retry.SourceCrash, Class: ClassConnectionReset,
		Message: message.Text(err.Error(), message.MaxText), Logged: message.Text(kindOf(err), message.MaxText),
	}
}

// What net/http says of a stream of HTTP/2 that it ends because of what came on it, or that the server resets. Then the text ends with fromPeer.
const (
	streamError = "stream error: "
	fromPeer    = "received from peer"
)

// brokeOff is what the log has of a connection whose end net/http tells in words that are not known here.
const brokeOff = "the connection ended, or broke HTTP/2"

// kindOf says how a connection ended. What net/http says of HTTP/2 may quote the server, which may repeat a message: the debug data of a
// GOAWAY, and the name of a header that has none of HTTP's characters. So of that only the words are taken that are net/http's own.
func kindOf(err error) string {
	text := err.Error()
	switch {
	case isCut(err): // by the network, or by a server that said nothing
		return text
	case strings.HasPrefix(text, streamError):
		parts := strings.SplitN(text, "; ", 3) // the stream, the code, and what else there is to it
		if len(parts) == 3 && parts[2] != fromPeer {
			parts = parts[:2]
		}
		return strings.Join(parts, "; ")
	case strings.HasPrefix(text, "http2: server sent GOAWAY "):
		known, said, _ := strings.Cut(text, "debug=")
		if said != "" {
			known += "and debug data"
		}
		return known
	case strings.HasPrefix(text, "connection error: "), text == "http2: client connection lost": // the latter answered no ping
		return text
	}
	return brokeOff
}

// connectionClass says why no connection came about.
func connectionClass(err error, handshake bool) string {
	var (
		dns     *net.DNSError
		network net.Error
	)
	switch {
	case errors.As(err, &dns):
		return ClassDNS
	case handshake && isOfUnknownCA(err):
		return ClassUnknownCA
	case handshake:
		return ClassTLS
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist): // the latter is a unix socket's
		return ClassConnectionRefused
	case errors.As(err, &network) && network.Timeout():
		return ClassTimeout
	}
	return ClassUnreachable
}

// isUnwelcome reports whether a server refuses the certificate of this end, or the lack of one. In TLS 1.3 it says so when the handshake
// is over for the client, which may have sent its request by then.
func isUnwelcome(err error) bool {
	network, ok := errors.AsType[*net.OpError](err)
	return ok && network.Op == "remote error" && strings.Contains(network.Err.Error(), "certificate")
}

// isOfUnknownCA reports whether a server's certificate is signed by nobody who is trusted.
func isOfUnknownCA(err error) bool {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	return unknown
}

// isCut reports whether the connection ended where more of the answer was to come.
func isCut(err error) bool {
	var network *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}

// isEnd reports whether the connection or the stream ended where more of the answer was to come. In HTTP/2 nothing else is wrong but with what net/http
// itself ends a stream for: the errors for how a connection ended are of many kinds.
func (p *progress) isEnd(err error) bool {
	if p.shared.Load() == nil {
		return isCut(err)
	}
	text := err.Error()
	return !strings.HasPrefix(text, streamError) || strings.HasSuffix(text, fromPeer)
}

func malformed(text string) *retry.Failure {
	return &retry.Failure{
		Source:  retry.SourceHandler,
		Class:   ClassMalformedResponse,
		Message: message.Text("not an HTTP answer: "+text, message.MaxText),
		Logged:  "not an HTTP answer",
	}
}
