package handler_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
)

// TestHTTP_OpensAConnectionPerRequestWithoutKeepAlive asks servers of each kind that the handler speaks to, one request after the other and two at a time.
func TestHTTP_OpensAConnectionPerRequestWithoutKeepAlive(t *testing.T) {
	t.Parallel()
	const requests = 10
	cases := map[string]struct {
		tls, http2 bool
		protocol   string
	}{"HTTP/1.1": {false, false, "HTTP/1.1"}, "HTTP/1.1 over TLS": {true, false, "HTTP/1.1"}, "HTTP/2": {true, true, "HTTP/2.0"}}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var served, closing atomic.Int64
			var connections sync.Map // by the client's address
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if r.Proto == c.protocol {
					served.Add(1)
				}
				if _, before := connections.LoadOrStore(r.RemoteAddr, true); before {
					t.Error("a connection has a second request")
				}
				if r.Close {
					closing.Add(1)
				}
				_, _ = io.Copy(io.Discard, r.Body)
			}))
			server.Config.ErrorLog = silent()
			server.EnableHTTP2 = c.http2
			spec, made := v1alpha1.HTTPHandler{}, options()
			if c.tls {
				server.StartTLS()
				spec, made = trusting(t, server)
			} else {
				server.Start()
			}
			t.Cleanup(server.Close)
			spec.URL, spec.KeepAlive = server.URL, new(false)
			h := open(t, handler.NewHTTP, spec, made)
			done := make(chan string)
			for range 2 {
				go func() {
					for range requests / 2 {
						done <- show(attempt(t, h, 10*time.Second, "body"))
					}
				}()
			}
			for range requests {
				if got := <-done; got != show(nil) {
					t.Error(got)
				}
			}
			if got := served.Load(); got != requests {
				t.Errorf("%d requests of %s, want %d", got, c.protocol, requests)
			}
			if got := closing.Load(); !c.http2 && got != requests {
				t.Errorf("%d requests say that theirs is the last, want all", got)
			}
		})
	}
}

// The server gives its second answer on a connection to the first request, as one does that has answered once too often.
func TestHTTP_MixesUpNoAnswersWithoutKeepAlive(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		keepAlive *bool
		successes int
	}{"kept": {nil, 1}, "not kept": {new(false), 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := listen(t, func(c net.Conn) {
				in := bufio.NewReader(c)
				for n := 0; ; n++ {
					request, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, request.Body)
					status := "500 Internal Server Error"
					if n == 1 {
						status = "200 OK"
					}
					_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n", status)
				}
			})
			h := open(t, handler.NewHTTP, v1alpha1.HTTPHandler{URL: "http://" + address, KeepAlive: c.keepAlive}, options())
			successes := 0
			for range 3 {
				if attempt(t, h, 10*time.Second, "body") == nil {
					successes++
				}
			}
			if successes != c.successes {
				t.Errorf("%d messages count as handled, want %d", successes, c.successes)
			}
		})
	}
}
