package httpserver_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/internal/httpserver"
)

// served is the address of a server whose handler counts its requests.
func served(t *testing.T) (address string, handled *atomic.Int64) {
	t.Helper()
	listener, err := httpserver.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	handled = &atomic.Int64{}
	server := httpserver.New(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { handled.Add(1) }))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		serving.Wait()
	})
	return listener.Addr().String(), handled
}

// 250 connections that always had the next request had the operator do nothing else for minutes.
func TestNew_AnswersFewOfTheRequestsThatAnAddressSendsWithoutAPause(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]string{
		"a path":       "GET /none HTTP/1.1\r\nHost: a\r\n\r\n",
		"OPTIONS of *": "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const lasts, most = time.Second, 2 * httpserver.MaxConnections
			address, handled := served(t)
			answered := flood(t, address, request, lasts, func() {
				begun := time.Now()
				response, err := (&http.Client{Timeout: lasts}).Get("http://" + address)
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				if took := time.Since(begun); response.StatusCode != http.StatusOK || took > lasts/2 {
					t.Errorf("another address is answered %s after %s", response.Status, took)
				}
			})
			// A slow machine takes longer than that second.
			if all := handled.Load(); all > 2*most {
				t.Errorf("%d requests are handled, want about %d", all, most)
			}
			if answered > 4*most {
				t.Errorf("%d requests are answered, want about %d", answered, most)
			}
		})
	}
}

// flood has 50 connections of an address send a request without a pause, and does something meanwhile.
func flood(t *testing.T, address, request string, lasts time.Duration, meanwhile func()) (answered int64) {
	t.Helper()
	block := []byte(strings.Repeat(request, 1500))
	from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}, Deadline: time.Now().Add(lasts)}
	var all sync.WaitGroup
	var answers atomic.Int64
	for range 50 {
		all.Go(func() {
			for time.Now().Before(from.Deadline) {
				conn, err := from.DialContext(t.Context(), "tcp", address)
				if err != nil {
					return
				}
				_ = conn.SetDeadline(from.Deadline)
				all.Go(func() {
					got, _ := io.ReadAll(conn)
					answers.Add(int64(strings.Count(string(got), "HTTP/1.1 ")))
				})
				for err == nil {
					_, err = conn.Write(block)
				}
				_ = conn.Close()
			}
		})
	}
	time.Sleep(lasts / 4)
	meanwhile()
	all.Wait()
	return answers.Load()
}
