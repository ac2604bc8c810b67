package handler

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"syscall"
	"testing"
	"time"

	"redrive.dev/redrive/internal/retry"
)

func TestFailure_SaysWhyAConnectionDoesNotComeAbout(t *testing.T) {
	t.Parallel()
	dial := func(cause error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: cause} }
	cases := map[string]struct {
		err       error
		handshake bool
		want      string
	}{
		"nobody listens":              {dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), false, ClassConnectionRefused},
		"nobody listens at the proxy": {&net.OpError{Op: "proxyconnect", Err: dial(syscall.ECONNREFUSED)}, false, ClassConnectionRefused},
		"no packet comes back":        {dial(os.ErrDeadlineExceeded), false, ClassTimeout},
		"no route":                    {dial(syscall.EHOSTUNREACH), false, ClassUnreachable},
		"the name server is silent":   {dial(&net.DNSError{IsTimeout: true}), false, ClassDNS},
		"a handshake that takes long": {fmt.Errorf("handshake: %w", os.ErrDeadlineExceeded), true, ClassTLS},
		"a proxy that refuses":        {errors.New("Forbidden"), false, ClassUnreachable},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p progress
			p.handshake.Store(c.handshake)
			if got := p.failure(t.Context(), c.err); got.Class != c.want {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// Over HTTP/2 a request may be sent again on another connection; a server that refused it before may say so wrongly.
func TestHTTP_FailsToConnectOnlyWhereNothingWasSent(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for written, want := range map[int32]retry.Source{0: retry.SourceConnection, 1: retry.SourceTimeout} {
		var p progress
		p.written.Store(written)
		if got := p.failure(ctx, ctx.Err()); got.Source != want || got.Class != ClassTimeout {
			t.Errorf("sent %d times: got %+v", written, got)
		}
	}
	for sent, want := range map[bool]retry.Source{false: retry.SourceConnection, true: retry.SourceTimeout} {
		if got := unseen(outOfTime(ctx), sent); got.Source != want || got.Class != ClassTimeout {
			t.Errorf("sent on a connection is %t: got %+v", sent, got)
		}
	}
}

// A server that is about to go accepts connections, and ends them at once.
func TestFailure_IsOfTheConnectionBeforeARequestIsSent(t *testing.T) {
	t.Parallel()
	for written, want := range map[int32]retry.Source{0: retry.SourceConnection, 1: retry.SourceCrash} { // once on the connection before
		var p progress
		p.connected.Store(true)
		p.written.Store(written)
		if got := p.failure(t.Context(), errors.New(notEstablished)); got.Source != want {
			t.Errorf("sent %d times: got %+v", written, got)
		}
	}
}

// The words are those of net/http.
func TestNetHTTP_SaysThatAConnectionWasNotEstablished(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	transport, _ := server.Client().Transport.(*http.Transport)
	var conn net.Conn
	transport.DialContext = func(ctx context.Context, network, address string) (_ net.Conn, err error) {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return conn, err
	}
	for range 100 { // mostly the first
		closes := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
			_ = conn.Close()
			time.Sleep(time.Millisecond) // until that is seen
		}})
		request, err := http.NewRequestWithContext(closes, http.MethodPost, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := transport.RoundTrip(request)
		if err == nil {
			_ = response.Body.Close()
		} else if err.Error() == notEstablished {
			return
		}
		transport.CloseIdleConnections()
	}
	t.Error("it does not")
}
