package handler_test

import (
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/handler/handlertest"
)

func TestHTTP_Conforms(t *testing.T) {
	t.Parallel()
	protocols := map[string]func(*testing.T, *httptest.Server) (v1alpha1.HTTPHandler, handler.Options){
		"HTTP/1.1": func(_ *testing.T, s *httptest.Server) (v1alpha1.HTTPHandler, handler.Options) {
			s.Start()
			return v1alpha1.HTTPHandler{URL: s.URL}, options()
		},
		"HTTP/1.1 with all else there is": func(t *testing.T, s *httptest.Server) (v1alpha1.HTTPHandler, handler.Options) {
			t.Helper()
			s.Start()
			o := options()
			o.Files = folder(t, map[string]string{"headers/Authorization": "Bearer x"})
			return v1alpha1.HTTPHandler{
				URL: s.URL, Format: new(v1alpha1.HTTPFormatCloudEvents), ReadinessURL: new(s.URL + "/ready"),
				HeadersSecretRef: &v1alpha1.LocalReference{Name: "partner"},
			}, o
		},
		"HTTP/1.1 on a unix socket": func(t *testing.T, s *httptest.Server) (v1alpha1.HTTPHandler, handler.Options) {
			t.Helper()
			path := socketPath(t)
			_ = s.Listener.Close()
			s.Listener = listenAt(t, path)
			s.Start()
			return v1alpha1.HTTPHandler{URL: "http://handler/", UnixSocket: &path}, options()
		},
		"HTTP/1.1 on TLS": func(t *testing.T, s *httptest.Server) (v1alpha1.HTTPHandler, handler.Options) {
			t.Helper()
			s.StartTLS()
			return trusting(t, s)
		},
		"HTTP/2 on TLS": func(t *testing.T, s *httptest.Server) (v1alpha1.HTTPHandler, handler.Options) {
			t.Helper()
			s.EnableHTTP2 = true
			s.StartTLS()
			return trusting(t, s)
		},
	}
	for name, start := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			handlertest.Run(t, func(t *testing.T) handlertest.Subject {
				t.Helper()
				program := httptest.NewUnstartedServer(server{})
				program.Config.ErrorLog = silent()
				spec, options := start(t, program)
				t.Cleanup(program.Close)
				options.Concurrency = 4
				return handlertest.Subject{Handler: open(t, handler.NewHTTP, spec, options)}
			})
		})
	}
}

// trusting returns the spec of a handler that trusts a TLS server.
func trusting(t *testing.T, s *httptest.Server) (v1alpha1.HTTPHandler, handler.Options) {
	t.Helper()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	o := options()
	o.Files = folder(t, map[string]string{"ca.crt": string(certificate)})
	return v1alpha1.HTTPHandler{URL: s.URL, TLS: &v1alpha1.HTTPTLS{}}, o
}

// server obeys the orders of handlertest over HTTP.
type server struct{}

func (server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		return // it is ready
	}
	request := seen(r)
	if handlertest.OrderOf(request.Headers) != handlertest.SucceedUnread {
		var err error
		if request.Body, err = io.ReadAll(r.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	answer := handlertest.Obey(request)
	switch failure := answer.Failure; {
	case answer.Hangs:
		answer.Hang(r.Context().Done())
		return
	case answer.Crash:
		panic(http.ErrAbortHandler)
	case failure != nil:
		if failure.RetryAfter != nil {
			w.Header().Set("Retry-After", strconv.Itoa(int(failure.RetryAfter.Seconds())))
		}
		if failure.Advice != "" {
			w.Header().Set("Redrive-Advice", strings.ToLower(string(failure.Advice)))
		}
		problem(w, http.StatusConflict, failure.Class, failure.Message)
	}
	flood(w, answer.Flood)
}

func flood(w io.Writer, size int) {
	part := []byte(strings.Repeat("flood ", 10_000))
	for written := 0; written < size; {
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

// seen is the request as the program sees it, without its body.
func seen(r *http.Request) handler.Request {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(r.Header.Get(name), 10, 64)
		return n
	}
	moment := func(name string) time.Time {
		t, _ := time.Parse(time.RFC3339, r.Header.Get(name))
		return t
	}
	headers, err := public.DecodeHTTPHeaders(r.Header, public.HTTPHeaderPrefix)
	if err != nil {
		panic(err)
	}
	return handler.Request{
		Headers: headers, ContentType: r.Header.Get("Content-Type"), ContentEncoding: r.Header.Get("Content-Encoding"),
		ID: r.Header.Get("Redrive-Message-Id"), IdempotencyKey: r.Header.Get("Idempotency-Key"),
		Attempt: number("Redrive-Attempt"), Retries: number("Redrive-Retries"), Queue: r.Header.Get("Redrive-Queue"),
		Exchange: r.Header.Get("Redrive-Exchange"), RoutingKey: r.Header.Get("Redrive-Routing-Key"),
		Type: r.Header.Get("Redrive-Type"), CorrelationID: r.Header.Get("Redrive-Correlation-Id"),
		ReplyTo: r.Header.Get("Redrive-Reply-To"), AppID: r.Header.Get("Redrive-App-Id"), UserID: r.Header.Get("Redrive-User-Id"),
		Priority: uint8(number("Redrive-Priority")), Expiration: r.Header.Get("Redrive-Expiration"),
		Timestamp: moment("Redrive-Timestamp"), FirstFailure: moment("Redrive-First-Failure"),
		Traceparent: r.Header.Get("Traceparent"), Tracestate: r.Header.Get("Tracestate"),
	}
}
