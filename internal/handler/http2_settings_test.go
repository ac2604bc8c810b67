package handler_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/internal/handler"
)

// Until the server has said how many streams it takes, net/http takes it for 100: of a first burst what was above 10 was refused, and counted as a crash.
// How long that takes the server is guessed, by the time of its handshake: on a machine that stands still just then the guess fails once, and not thrice.
func TestHTTP2_SendsNoMoreStreamsThanTheServerTakes(t *testing.T) {
	t.Parallel()
	for range 3 {
		if refused := refusedOfABurst(t); refused == 0 {
			return
		}
	}
	t.Error("some of each first burst were refused")
}

// refusedOfABurst is how many of the first 100 requests a server refuses that takes 10 at a time.
func refusedOfABurst(t *testing.T) (refused int64) {
	t.Helper()
	const concurrency = 100
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(200 * time.Millisecond) }))
	server.EnableHTTP2 = true
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 10}
	server.Config.ErrorLog = silent()
	server.StartTLS()
	t.Cleanup(server.Close)
	spec, o := trusting(t, server)
	o.Concurrency = concurrency
	h := open(t, handler.NewHTTP, spec, o)
	var calls sync.WaitGroup
	var all atomic.Int64
	for range concurrency {
		calls.Go(func() {
			if got := attempt(t, h, 30*time.Second, "body"); got != nil {
				t.Log(show(got))
				all.Add(1)
			}
		})
	}
	calls.Wait()
	return all.Load()
}
