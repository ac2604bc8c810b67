package handler_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// seenConnections are those on which a server got requests, in the order of their first ones.
type seenConnections struct {
	mu    sync.Mutex
	order []string
}

// number of the connection of a request, from 1.
func (s *seenConnections) number(r *http.Request) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, address := range s.order {
		if address == r.RemoteAddr {
			return i + 1
		}
	}
	s.order = append(s.order, r.RemoteAddr)
	return len(s.order)
}

func (s *seenConnections) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.order)
}

// serveHTTP2 returns a handler for a server of HTTP/2 that is told which of its connections a request came on.
func serveHTTP2(t *testing.T, f func(w http.ResponseWriter, r *http.Request, connection int)) (*handler.HTTP, *seenConnections) {
	t.Helper()
	spec, o, seen := startHTTP2(t, f)
	return open(t, handler.NewHTTP, spec, o), seen
}

// startHTTP2 starts such a server, and returns what a handler for it is made of.
func startHTTP2(t *testing.T, f func(w http.ResponseWriter, r *http.Request, connection int)) (v1alpha1.HTTPHandler, handler.Options, *seenConnections) {
	t.Helper()
	seen := &seenConnections{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("it speaks %s", r.Proto)
		}
		f(w, r, seen.number(r))
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = silent()
	server.StartTLS()
	t.Cleanup(server.Close)
	spec, o := trusting(t, server)
	return spec, o, seen
}

// hang lasts as long as the request.
func hang(r *http.Request) { <-r.Context().Done() }

// One replica that answered pings and nothing else had all attempts of a worker, for as long as there were any.
func TestHTTP2_GivesUpAConnectionOnWhichNothingIsAnswered(t *testing.T) {
	t.Parallel()
	bodies := map[string]string{"small": "body", "large": strings.Repeat("x", 20<<10)}
	hangs := map[string]func(r *http.Request){
		"times out": hang,
		"is reset":  func(*http.Request) { panic(http.ErrAbortHandler) },
	}
	for size, body := range bodies {
		for way, bad := range hangs {
			t.Run(size+", "+way, func(t *testing.T) {
				t.Parallel()
				h, seen := serveHTTP2(t, func(_ http.ResponseWriter, r *http.Request, connection int) {
					if connection == 1 {
						bad(r)
					}
				})
				if got := attempt(t, h, time.Second, body); got == nil || got.Source == retry.SourceConnection {
					t.Fatalf("got %s", show(got))
				}
				for range 3 {
					if got := attempt(t, h, 10*time.Second, body); got != nil {
						t.Errorf("then: %s", show(got))
					}
				}
				if got := seen.count(); got != 2 {
					t.Errorf("%d connections, want that which is given up and one after it", got)
				}
			})
		}
	}
}

// The questions themselves kept the connection from being idle: a worker whose replica hung asked no other, and stood still as long as that one did.
func TestHTTP2_AsksAnotherReplicaForReadinessWhereOneHangs(t *testing.T) {
	t.Parallel()
	spec, o, seen := startHTTP2(t, func(_ http.ResponseWriter, r *http.Request, connection int) {
		if connection == 1 {
			hang(r)
		}
	})
	spec.ReadinessURL = &spec.URL
	awaitReadiness(t, open(t, handler.NewHTTP, spec, o), true)
	if got := seen.count(); got != 2 {
		t.Errorf("ready after %d connections, want 2", got)
	}
}

func TestHTTP2_LetsRequestsEndOnAConnectionThatItGivesUp(t *testing.T) {
	t.Parallel()
	begun, finish := make(chan struct{}), make(chan struct{})
	h, _ := serveHTTP2(t, func(_ http.ResponseWriter, r *http.Request, connection int) {
		switch {
		case connection > 1:
		case r.Header.Get("Idempotency-Key") == "long":
			close(begun)
			<-finish
		default:
			hang(r)
		}
	})
	long := make(chan *retry.Failure)
	go func() {
		long <- h.Handle(t.Context(), handler.Request{Body: []byte("body"), IdempotencyKey: "long"})
	}()
	<-begun
	if got := attempt(t, h, 300*time.Millisecond, "body"); got == nil || got.Class != handler.ClassTimeout {
		t.Fatalf("got %s", show(got))
	}
	if got := attempt(t, h, 10*time.Second, "body"); got != nil {
		t.Errorf("after that: %s", show(got))
	}
	close(finish)
	if got := <-long; got != nil {
		t.Errorf("the one under way: %s", show(got))
	}
}

func TestHTTP2_KeepsAConnectionOnWhichOthersAreAnswered(t *testing.T) {
	t.Parallel()
	begun := make(chan struct{})
	h, seen := serveHTTP2(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		if r.ContentLength == 4 {
			close(begun)
			hang(r)
		}
	})
	slow := make(chan *retry.Failure)
	go func() { slow <- attempt(t, h, time.Second, "slow") }()
	<-begun
	if got := attempt(t, h, 10*time.Second, "quick"); got != nil {
		t.Errorf("beside it: %s", show(got))
	}
	if got := <-slow; got == nil || got.Class != handler.ClassTimeout {
		t.Errorf("got %s", show(got))
	}
	if got := attempt(t, h, 10*time.Second, "quick"); got != nil {
		t.Errorf("after it: %s", show(got))
	}
	if got := seen.count(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
}

// A partner that is slow gets no more connections than there are timeouts one after another, however many requests run into them.
func TestHTTP2_BoundsConnectionsToAPartnerThatAnswersNothing(t *testing.T) {
	t.Parallel()
	const senders, times = 20, 4
	h, seen := serveHTTP2(t, func(_ http.ResponseWriter, r *http.Request, _ int) { hang(r) })
	var calls sync.WaitGroup
	for i := range senders {
		calls.Go(func() {
			time.Sleep(time.Duration(i) * 10 * time.Millisecond) // they do not all time out together
			for n := range times {
				ctx, cancel := handler.WithTimeout(t.Context(), 500*time.Millisecond, time.Second)
				got := h.Handle(ctx, handler.Request{Body: []byte("body"), IdempotencyKey: "key", Attempt: int64(n + 1)})
				cancel()
				if got == nil { // on a busy machine some have no connection in time
					t.Error("an answer")
				}
			}
		})
	}
	calls.Wait()
	if got := seen.count(); got < 2 || got > times+2 {
		t.Errorf("%d connections for %d timeouts one after another, in %d attempts", got, times, senders*times)
	}
}

// As for HTTP/1: such a server must not cost a message all of its attempts.
func TestHTTP2_TakesANewConnectionAfterALostRequest(t *testing.T) {
	t.Parallel()
	h, _ := speakHTTP2(t, handler.NewHTTP, func(f framed) {
		if f.stream > 1 {
			_ = f.conn.Close() // the second request on a connection is read, and lost
			return
		}
		_ = f.headers(true, ":status", "204")
	})
	losesItsSecondRequestOnly(t, h, 4)
}

// The connection goes on and serves others: that one message has its request reset is no reason to make one for each retry of all. The worker tries another
// one once, where nothing else was answered meanwhile.
func TestHTTP2_MakesNoConnectionForEachRetryAfterAResetRequest(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	connections := map[net.Conn]bool{}
	h, _ := speakHTTP2(t, handler.NewHTTP, func(f framed) {
		mu.Lock()
		connections[f.conn] = true
		mu.Unlock()
		if f.number == 2 {
			_ = f.WriteRSTStream(f.stream, http2.ErrCodeInternal)
			return
		}
		_ = f.headers(true, ":status", "204")
	})
	losesItsSecondRequestOnly(t, h, 10)
	mu.Lock()
	defer mu.Unlock()
	if len(connections) > 2 {
		t.Errorf("%d connections for 12 requests", len(connections))
	}
}
