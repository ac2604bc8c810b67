package handler_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"redrive.dev/redrive/internal/handler"
)

// Until the server has said how many streams it takes, net/http takes it for 100: of a first burst what was above 10 was refused, and counted as a crash.
func TestHTTP2_SendsNoMoreStreamsThanTheServerTakes(t *testing.T) {
	t.Parallel()
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
	for range concurrency {
		calls.Go(func() {
			if got := attempt(t, h, 30*time.Second, "body"); got != nil {
				t.Error(show(got))
			}
		})
	}
	calls.Wait()
}
