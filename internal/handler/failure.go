package handler

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http/httptrace"
	"sync/atomic"
	"syscall"

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
	// ClassUnreachable is any other way in which no connection comes about.
	ClassUnreachable = "Unreachable"
	// ClassConnectionReset is a connection that ended before the answer did.
	ClassConnectionReset = "ConnectionReset"
	// ClassMalformedResponse is an answer that is not HTTP, or has no usable status.
	ClassMalformedResponse = "MalformedResponse"
)

// progress is how far a request came. The transport tells it from goroutines of its own.
type progress struct {
	handshake, connected, answered atomic.Bool
}

func (p *progress) trace() *httptrace.ClientTrace {
	return &httptrace.ClientTrace{
		TLSHandshakeStart:    func() { p.handshake.Store(true) },
		GotConn:              func(httptrace.GotConnInfo) { p.connected.Store(true) },
		GotFirstResponseByte: func() { p.answered.Store(true) },
	}
}

// failure makes a failure out of an error of the transport. Before there was a connection the handler has not seen the
// message (Connection); afterwards it may have, and may have done the work (Crash).
func (p *progress) failure(ctx context.Context, err error) *retry.Failure {
	failed := func(source retry.Source, class string) *retry.Failure {
		return &retry.Failure{Source: source, Class: class, Message: message.Text(err.Error(), message.MaxText)}
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &retry.Failure{Source: retry.SourceTimeout, Class: ClassTimeout, Message: "no complete answer in time"}
	case ctx.Err() != nil:
		return &retry.Failure{Source: retry.SourceConnection, Class: ClassCanceled, Message: "the attempt was broken off"}
	case !p.connected.Load():
		return failed(retry.SourceConnection, p.connectionClass(err))
	case p.answered.Load() && !isCut(err):
		return malformed(err.Error())
	}
	return failed(retry.SourceCrash, ClassConnectionReset)
}

// connectionClass says why no connection came about.
func (p *progress) connectionClass(err error) string {
	var (
		dns     *net.DNSError
		network net.Error
	)
	switch {
	case errors.As(err, &dns):
		return ClassDNS
	case p.handshake.Load():
		return ClassTLS
	case errors.Is(err, syscall.ECONNREFUSED):
		return ClassConnectionRefused
	case errors.As(err, &network) && network.Timeout():
		return ClassTimeout
	}
	return ClassUnreachable
}

// isCut reports whether the connection ended where more of the answer was to come.
func isCut(err error) bool {
	var network *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &network)
}

func malformed(text string) *retry.Failure {
	return &retry.Failure{
		Source:  retry.SourceHandler,
		Class:   ClassMalformedResponse,
		Message: message.Text("not an HTTP answer: "+text, message.MaxText),
	}
}
