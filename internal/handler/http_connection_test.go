package handler_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
)

// A server may hang up between two requests, while one is written, and while it is read. No request is handled twice, and a
// success is one that was handled.
func TestHTTP_SendsNoRequestTwiceToAServerThatHangsUp(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	handled := map[string]int{}
	var served atomic.Int64
	h := post(t, "http://"+listen(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		for {
			request, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, request.Body)
			mu.Lock()
			handled[request.Header.Get("Redrive-Message-Id")]++
			mu.Unlock()
			n := served.Add(1)
			if n%7 == 0 {
				return // handled, and not answered
			}
			say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")(c)
			if n%3 == 0 {
				return // without a word that it would
			}
		}
	}))
	var calls sync.WaitGroup
	for worker := range 2 {
		calls.Go(func() {
			for i := range 300 {
				id := fmt.Sprint(worker, "-", i)
				got := h.Handle(t.Context(), handler.Request{ID: id, IdempotencyKey: id, Body: []byte("body")})
				mu.Lock()
				n := handled[id]
				mu.Unlock()
				if n > 1 || got == nil && n != 1 || got != nil && got.Source != retry.SourceCrash {
					t.Errorf("handled %d times, got %s", n, show(got))
				}
			}
		})
	}
	calls.Wait()
}

func TestHTTP_EndsAttemptsAtATricklingServerInTime(t *testing.T) {
	t.Parallel()
	stopped := make(chan struct{})
	t.Cleanup(func() { close(stopped) })
	h := speak(t, func(c net.Conn) {
		_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for err == nil {
			select {
			case <-stopped:
				return
			case <-time.After(5 * time.Millisecond): // the point of a trickle
				_, err = io.WriteString(c, "A: b\r\n")
			}
		}
	})
	var calls sync.WaitGroup
	for range 50 {
		calls.Go(func() {
			if got := attempt(t, h, 200*time.Millisecond, strings.Repeat("x", 100_000)); got == nil || got.Source != retry.SourceTimeout {
				t.Errorf("got %s", show(got))
			}
		})
	}
	calls.Wait()
}

func TestHTTP_TimesOutWhereAServerReadsNothing(t *testing.T) {
	t.Parallel()
	stopped := make(chan struct{})
	t.Cleanup(func() { close(stopped) })
	h := post(t, "http://"+listen(t, func(net.Conn) { <-stopped }))
	// On a busy machine a time may be over before there is a connection.
	got := attempt(t, h, 100*time.Millisecond, strings.Repeat("x", 20<<20))
	for timeout := 200 * time.Millisecond; got != nil && got.Source == retry.SourceConnection && timeout < time.Minute; timeout *= 2 {
		got = attempt(t, h, timeout, strings.Repeat("x", 20<<20))
	}
	if got == nil || got.Source != retry.SourceTimeout {
		t.Errorf("got %s", show(got))
	}
}

func TestHTTP_TakesTheHostOfTheURLForAUnixSocket(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	var host, uri string
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		host, uri = r.Host, r.URL.RequestURI()
	}))
	_ = server.Listener.Close()
	server.Listener = listenAt(t, path)
	server.Start()
	t.Cleanup(server.Close)
	h := open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: "http://shop.example:8080/messages?a=b", UnixSocket: &path}, options())
	if got := attempt(t, h, 10*time.Second, "body"); got != nil || host != "shop.example:8080" || uri != "/messages?a=b" {
		t.Errorf("got %s for %s of %s", show(got), uri, host)
	}
}

func TestHTTP_CannotConnectToAPathThatIsNoSocket(t *testing.T) {
	t.Parallel()
	file := socketPath(t)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	missing := socketPath(t)
	for name, path := range map[string]string{"a file": file, "nothing": missing, "a path through a file": file + "/h"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: "http://handler", UnixSocket: &path}, options())
			if got := attempt(t, h, 10*time.Second, "body"); got == nil || got.Source != retry.SourceConnection || !strings.Contains(got.Message, path) {
				t.Errorf("got %s", show(got))
			}
		})
	}
}

// proxied posts a message with the proxy of its environment, to the unix socket that is its argument, if there is one.
var proxied = program("http-with-a-proxy", func() int {
	spec := v1alpha1.HTTPHandler{URL: "http://handler.test/messages"}
	if len(os.Args) > 2 {
		spec.UnixSocket = &os.Args[2]
	}
	h, err := handler.NewHTTP(spec, handler.Options{})
	if err != nil {
		_, _ = fmt.Fprintln(os.Stdout, err)
		return 1
	}
	_, _ = fmt.Fprintln(os.Stdout, show(h.Handle(context.Background(), handler.Request{Body: []byte("body")})))
	return 0
})

func TestHTTP_UsesTheEnvironmentsProxyButNotForAUnixSocket(t *testing.T) {
	t.Parallel()
	serve := func(listener net.Listener) *atomic.Pointer[string] {
		last := &atomic.Pointer[string]{}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { last.Store(&r.RequestURI) }))
		if listener != nil {
			_ = server.Listener.Close()
			server.Listener = listener
		}
		server.Start()
		t.Cleanup(server.Close)
		return last
	}
	path := socketPath(t)
	inside := serve(listenAt(t, path))
	proxy := httptest.NewUnstartedServer(nil)
	address := proxy.Listener.Addr().String()
	outside := serve(proxy.Listener)
	run := func(args ...string) {
		command := exec.Command(proxied[0], append(proxied[1:], args...)...)
		command.Env = append(os.Environ(), "HTTP_PROXY=http://"+address, "NO_PROXY=", "no_proxy=", "REQUEST_METHOD=")
		out, err := command.CombinedOutput()
		if err != nil || string(bytes.TrimSpace(out)) != "success" {
			t.Fatalf("%v: %s", err, out)
		}
	}
	run(path)
	if uri := inside.Load(); uri == nil || *uri != "/messages" || outside.Load() != nil {
		t.Errorf("at the socket %v, at the proxy %v", inside.Load(), outside.Load())
	}
	run()
	if uri := outside.Load(); uri == nil || *uri != "http://handler.test/messages" {
		t.Errorf("at the proxy %v", uri)
	}
}

func TestHTTP_BoundsTheHeadersOfAnAnswer(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 4 << 10, 12 << 10, 20 << 10, 1 << 20} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			t.Parallel()
			got := attempt(t, speak(t, func(c net.Conn) {
				_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n")
				for range size / 1024 {
					_, _ = io.WriteString(c, "A: "+strings.Repeat("b", 1024-5)+"\r\n")
				}
				_, _ = io.WriteString(c, "\r\n")
			}), 10*time.Second, "body")
			if want := size > 16<<10; (got != nil) != want || want && got.Class != handler.ClassMalformedResponse {
				t.Errorf("got %s", show(got))
			}
		})
	}
}

// A server that closes an idle connection has not seen what is sent next. Where the machine is busy its last packet may come after that: such a request
// may have been seen, and costs an attempt, but never two in a row.
func TestHTTP_SeldomLosesAnAttemptToAConnectionClosedIdle(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{})
	h := post(t, "http://"+listen(t, func(c net.Conn) {
		asked(say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))(c)
		_ = c.Close()
		closed <- struct{}{}
	}))
	late, handled := 0, true
	for range 50 {
		got := attempt(t, h, 10*time.Second, "body")
		if got != nil && (got.Class != handler.ClassConnectionReset || !handled) {
			t.Fatal(show(got))
		}
		if handled = got == nil; handled {
			<-closed
		} else {
			late++
		}
	}
	if late > 10 {
		t.Errorf("%d of 50 calls met a connection that was closed before", late)
	}
}

// A socket takes connections before anybody accepts them, and drops them with whoever listened.
func TestHTTP_TakesAConnectionThatEndsUnusedForUnreachable(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	listener := listenAt(t, path)
	t.Cleanup(func() { _ = listener.Close() })
	h := open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: "http://handler", UnixSocket: &path}, options())
	h.AfterDial(func() {
		if c, err := listener.Accept(); err == nil {
			_ = c.Close()
		}
	})
	if got := attempt(t, h, 10*time.Second, "body"); got == nil || got.Source != retry.SourceConnection || got.Class != handler.ClassUnreachable {
		t.Errorf("got %s", show(got))
	}
}

// Whether a partner that is unreachable had seen the message depended on timeout being longer than a dial may take.
func TestHTTP_FailsToConnectWhereTimeEndsBefore(t *testing.T) {
	t.Parallel()
	const timeout = 100 * time.Millisecond
	silent := listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	undialed := post(t, "http://"+silent)
	undialed.HoldDials()
	cases := map[string]struct {
		h     *handler.HTTP
		class string
	}{
		"no handshake":         {post(t, "https://"+silent), handler.ClassTLS},
		"no packet comes back": {undialed, handler.ClassTimeout},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, body := range []string{"body", strings.Repeat("x", 100_000)} {
				got := attempt(t, c.h, timeout, body)
				if got == nil || got.Source != retry.SourceConnection || got.Class != c.class || !strings.Contains(got.Message, "in time") {
					t.Errorf("%d bytes: got %s", len(body), show(got))
				}
			}
		})
	}
}

// In TLS 1.3 a client is told so after its handshake.
func TestHTTP_CannotConnectToAServerThatWantsACertificate(t *testing.T) {
	t.Parallel()
	for name, version := range map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewUnstartedServer(http.NotFoundHandler())
			server.Config.ErrorLog = silent()
			server.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: version, MaxVersion: version}
			server.StartTLS()
			t.Cleanup(server.Close)
			spec, o := trusting(t, server)
			got := attempt(t, open(t, handler.NewHTTP, spec, o), 10*time.Second, "body")
			if got == nil || got.Source != retry.SourceConnection || got.Class != handler.ClassTLS {
				t.Errorf("got %s", show(got))
			}
		})
	}
}

func TestHTTP_TakesNothingAfterAnAnswerForTheNext(t *testing.T) {
	t.Parallel()
	h := speak(t, say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 500 Forged\r\nContent-Length: 0\r\n\r\n"))
	for range 20 {
		if got := attempt(t, h, 10*time.Second, "body"); got != nil {
			t.Fatal(show(got))
		}
	}
}

func TestHTTP_ClosesIdleConnections(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	states := map[net.Conn]http.ConnState{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	server.Config.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		states[c] = state
	}
	server.Start()
	t.Cleanup(server.Close)
	h := open(t, handler.NewBriskHTTP, v1alpha1.HTTPHandler{URL: server.URL}, options())
	for range 2 { // also those that come after all were closed
		var calls sync.WaitGroup
		for range 10 {
			calls.Go(func() {
				if got := attempt(t, h, 10*time.Second, "body"); got != nil {
					t.Error(show(got))
				}
			})
		}
		calls.Wait()
		testtransport.Eventually(t, "the end of all connections", func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, state := range states {
				if state != http.StateClosed {
					return false
				}
			}
			return len(states) > 0
		})
	}
}

// Bodies around the sizes at which they are sent in another way, to servers that read, that do not, and that hang up meanwhile.
func TestHTTP_DeliversBodiesOfAllSizesWholeOrFails(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 4 << 10, 16<<10 - 1, 16 << 10, 16<<10 + 1, 64 << 10, 1 << 20, 5<<20 + 1} {
		t.Run(strconv.Itoa(size), func(t *testing.T) {
			t.Parallel()
			body := strings.Repeat("x", size)
			var arrived atomic.Int64
			whole := serve(t, func(_ http.ResponseWriter, r *http.Request) {
				n, _ := io.Copy(io.Discard, r.Body)
				arrived.Store(n)
			})
			for range 3 {
				if got := attempt(t, whole, 10*time.Second, body); got != nil || arrived.Load() != int64(size) {
					t.Errorf("%d bytes arrive, %s", arrived.Load(), show(got))
				}
			}
			deaf := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
			for range 3 {
				if got := attempt(t, deaf, 10*time.Second, body); got == nil || got.Status != http.StatusForbidden {
					t.Errorf("without being read: %s", show(got))
				}
			}
			gone := post(t, "http://"+listen(t, func(c net.Conn) { _, _ = io.CopyN(io.Discard, c, int64(size/2+100)) }))
			for range 3 {
				if got := attempt(t, gone, 10*time.Second, body); got == nil || got.Source != retry.SourceCrash {
					t.Errorf("hung up on: %s", show(got))
				}
			}
		})
	}
}

// A server that closes its connections right after an answer cost a message all of its attempts, and never saw it.
func TestHTTP_TakesANewConnectionAfterALostRequest(t *testing.T) {
	t.Parallel()
	var connections atomic.Int64
	address := listen(t, func(c net.Conn) {
		connections.Add(1)
		in := bufio.NewReader(c)
		for n := 0; ; n++ {
			request, err := http.ReadRequest(in)
			if err != nil || n == 1 {
				return // the second request on a connection is read, and lost
			}
			_, _ = io.Copy(io.Discard, request.Body)
			say("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")(c)
		}
	})
	h := post(t, "http://"+address)
	losesItsSecondRequestOnly(t, h, 3)
	if got := connections.Load(); got != 4 {
		t.Errorf("%d connections, want one for the first and one for each other attempt", got)
	}
}

// net/http has a dial go on when its attempt is over. A server that accepted connections and said nothing had 5,000 of them at a time from 100
// attempts of 200 ms, and a worker of 256 MiB was killed.
func TestHTTP_BoundsHandshakesThatHang(t *testing.T) {
	t.Parallel()
	const attempts, times = 20, 6
	var begun, standing atomic.Int64
	address := listen(t, func(c net.Conn) {
		begun.Add(1)
		standing.Add(1)
		defer standing.Add(-1)
		_, _ = io.Copy(io.Discard, c)
		_ = c.Close()
	})
	h := post(t, "https://"+address)
	var calls sync.WaitGroup
	for range attempts {
		calls.Go(func() {
			for range times {
				if got := attempt(t, h, 100*time.Millisecond, "body"); got == nil || got.Source != retry.SourceConnection {
					t.Errorf("got %s", show(got))
				}
			}
		})
	}
	calls.Wait()
	for end := time.Now().Add(5 * time.Second); standing.Load() > 2*attempts; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d of %d connections stand after their attempts", standing.Load(), begun.Load())
		}
	}
}

// Each attempt is over before the handshake that it began. It serves another one.
func TestHTTP_ReachesAServerWithALongHandshake(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		time.Sleep(400 * time.Millisecond)
		return nil, nil //nolint:nilnil // the server's own
	}}
	server.StartTLS()
	t.Cleanup(server.Close)
	o := options()
	o.Files = folder(t, map[string]string{"ca.crt": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))})
	h := open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: server.URL, TLS: &v1alpha1.HTTPTLS{}}, o)
	for end := time.Now().Add(30 * time.Second); attempt(t, h, 300*time.Millisecond, "body") != nil; {
		if time.Now().After(end) {
			t.Fatal("it is never reached")
		}
	}
}

// losesItsSecondRequestOnly makes a request that succeeds, one that is lost, and others for second attempts, which succeed.
func losesItsSecondRequestOnly(t *testing.T, h handler.Handler, others int) {
	t.Helper()
	call := func(attempt int64) *retry.Failure {
		return h.Handle(t.Context(), handler.Request{ID: "1", IdempotencyKey: "1", Attempt: attempt, Body: []byte("body")})
	}
	if got := call(1); got != nil {
		t.Fatal(show(got))
	}
	if got := call(1); got == nil || got.Class != handler.ClassConnectionReset {
		t.Fatalf("the second request: %s", show(got))
	}
	for range others {
		if got := call(2); got != nil {
			t.Errorf("another attempt: %s", show(got))
		}
	}
}
