package handler_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/handler/handlertest"
)

func TestHTTPConforms(t *testing.T) {
	t.Parallel()
	protocols := map[string]func(*httptest.Server){
		"HTTP/1.1":      (*httptest.Server).Start,
		"HTTP/2 on TLS": func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() },
	}
	for name, start := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handlertest.Run(t, func(t *testing.T) handlertest.Subject {
				t.Helper()
				hanging := make(chan struct{}, 16)
				server := httptest.NewUnstartedServer(program{hanging})
				server.Config.ErrorLog = silent()
				start(server)
				t.Cleanup(server.Close)
				subject, err := handler.NewHTTP(server.URL, handler.HTTPOptions{Concurrency: 4})
				if err != nil {
					t.Fatal(err)
				}
				handler.Trust(subject, server.Certificate())
				t.Cleanup(func() { _ = subject.Close() })
				return handlertest.Subject{Handler: subject, Hanging: hanging}
			})
		})
	}
}

// program obeys the orders of handlertest over HTTP.
type program struct {
	hanging chan<- struct{}
}

func (p program) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	switch handlertest.Order(r.Header.Get(handlertest.OrderHeader)) {
	case handlertest.Succeed:
		if !handlertest.Matches(body, r.Header.Get(handlertest.SumHeader)) {
			problem(w, http.StatusBadRequest, "Mismatch", "the body is another one")
		}
	case handlertest.Refuse:
		refusal := handlertest.Refusal()
		w.Header().Set("Retry-After", strconv.Itoa(int(refusal.RetryAfter.Seconds())))
		problem(w, http.StatusConflict, refusal.Class, refusal.Message)
	case handlertest.Describe:
		problem(w, http.StatusTeapot, "Described", handlertest.Description(seen(r)))
	case handlertest.Hang:
		p.hanging <- struct{}{}
		<-r.Context().Done()
	case handlertest.Crash:
		panic(http.ErrAbortHandler)
	case handlertest.FloodFailure:
		w.WriteHeader(http.StatusBadGateway)
		flood(w)
	case handlertest.FloodSuccess:
		flood(w)
	default:
		problem(w, http.StatusNotImplemented, "NoOrder", "")
	}
}

func flood(w io.Writer) {
	part := []byte(strings.Repeat("flood ", 10_000))
	for written := 0; written < handlertest.FloodSize; {
		n, err := w.Write(part)
		if err != nil {
			return
		}
		written += n
	}
}

// problem answers as RFC 9457 says.
func problem(w http.ResponseWriter, status int, kind, detail string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"type": kind, "detail": detail})
}

// seen is the request as the program sees it.
func seen(r *http.Request) handler.Request {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(r.Header.Get(name), 10, 64)
		return n
	}
	first, _ := time.Parse(time.RFC3339, r.Header.Get("Redrive-First-Failure"))
	return handler.Request{
		ID: r.Header.Get("Redrive-Message-Id"), IdempotencyKey: r.Header.Get("Idempotency-Key"),
		Attempt: number("Redrive-Attempt"), Retries: number("Redrive-Retries"), Queue: r.Header.Get("Redrive-Queue"),
		RoutingKey: r.Header.Get("Redrive-Routing-Key"), ContentType: r.Header.Get("Content-Type"), FirstFailure: first,
	}
}
