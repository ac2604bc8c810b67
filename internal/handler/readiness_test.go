package handler_test

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/testtransport"
)

// socketPath is one that is short enough for a socket.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock") //nolint:usetesting // t.TempDir is too long for the path of a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "h")
}

func listenAt(t *testing.T, path string) net.Listener {
	t.Helper()
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// sidecar is a server whose readiness can be set. It counts what it is asked and told.
type sidecar struct {
	status        atomic.Int64
	asked, posted atomic.Int64
	last          atomic.Pointer[http.Request]
}

func (s *sidecar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		_, _ = io.Copy(io.Discard, r.Body)
		s.posted.Add(1)
		return
	}
	s.last.Store(r)
	s.asked.Add(1)
	w.Header().Set("Location", "/elsewhere")
	w.WriteHeader(int(s.status.Load()))
	_, _ = io.WriteString(w, "hidden")
}

func startSidecar(t *testing.T, status int64) (*sidecar, string) {
	t.Helper()
	s := &sidecar{}
	s.status.Store(status)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return s, server.URL
}

// answered returns what a handler tells after its readiness URL was asked once.
func answered(t *testing.T, h *handler.HTTP) error {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		why, changed := h.Ready()
		if why == nil || !strings.Contains(why.Error(), "has not answered yet") {
			return why
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("no change is announced")
		}
	}
}

func TestReadiness_BeginsWithTheFirstAnswerAndFollowsThem(t *testing.T) {
	t.Parallel()
	s, url := startSidecar(t, 503)
	ready := url + "/ready?token=hidden"
	h := open(t, handler.NewBriskHTTP, v1alpha1.HTTPHandler{URL: url, ReadinessURL: &ready}, options())
	why, changed := h.Ready()
	if why == nil {
		t.Fatal("ready before it was asked")
	}
	for why == nil || !strings.Contains(why.Error(), "HTTP 503 Service Unavailable") {
		<-changed
		why, changed = h.Ready()
	}
	for range 5 {
		s.status.Store(204)
		awaitReadiness(t, h, true)
		s.status.Store(500)
		awaitReadiness(t, h, false)
		why, _ = h.Ready()
		if why != nil && strings.Contains(why.Error(), "hidden") {
			t.Errorf("shows the URL or the answer: %v", why)
		}
	}
	asked := *s.last.Load()
	if asked.URL.RequestURI() != "/ready?token=hidden" || asked.Header.Get("User-Agent") != "redrive-worker/1.2.3" {
		t.Errorf("asked for %s with %v", asked.URL, asked.Header)
	}
	if s.posted.Load() != 0 {
		t.Error("a message was posted")
	}
}

func TestReadiness_SaysWhatTheURLAnswers(t *testing.T) {
	t.Parallel()
	_, moved := startSidecar(t, 302)
	cases := map[string]struct{ url, says string }{
		"a redirect is not followed":        {moved, "HTTP 302 Found, and redirects are not followed"},
		"nobody listens":                    {"http://" + unheard(t), "ConnectionRefused"},
		"the name does not resolve":         {"http://" + strings.Repeat("a", 64) + ".test", "DNS"},
		"it does not speak HTTP":            {"http://" + listen(t, asked(say("SSH-2.0-OpenSSH\r\n"))), "MalformedResponse"},
		"it hangs up":                       {"http://" + listen(t, func(net.Conn) {}), "ConnectionReset"},
		"it does not answer in two seconds": {"http://" + listen(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }), "no answer within 2s"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ready := c.url + "/?token=hidden"
			h := open(t, handler.NewIdleHTTP, v1alpha1.HTTPHandler{URL: "http://handler.test", ReadinessURL: &ready}, options())
			why := answered(t, h)
			if why == nil || !strings.Contains(why.Error(), c.says) || strings.Contains(why.Error(), "hidden") {
				t.Errorf("got %v, want %q", why, c.says)
			}
		})
	}
}

func TestReadiness_IsAskedAtOnceAfterAFailureToConnect(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	s := &sidecar{}
	s.status.Store(200)
	server := &http.Server{Handler: s}
	done := make(chan struct{})
	listener := listenAt(t, path)
	go func() { defer close(done); _ = server.Serve(listener) }()
	ready := "http://handler/ready"
	h := open(t, handler.NewIdleHTTP, v1alpha1.HTTPHandler{URL: "http://HANDLER:80/messages", UnixSocket: &path, ReadinessURL: &ready}, options())
	awaitReadiness(t, h, true)

	_ = server.Close() // and the socket vanishes
	<-done
	got := attempt(t, h, 10*time.Second, "body")
	if got == nil || got.Source != retry.SourceConnection || got.Class != handler.ClassConnectionRefused {
		t.Fatalf("got %s", show(got))
	}
	awaitReadiness(t, h, false)
	why, _ := h.Ready()
	if !strings.Contains(why.Error(), "ConnectionRefused") {
		t.Errorf("got %v", why)
	}

	again := &http.Server{Handler: s}
	t.Cleanup(func() { _ = again.Close() })
	listener = listenAt(t, path)
	go func() { _ = again.Serve(listener) }()
	awaitReadiness(t, h, true)
	if got := attempt(t, h, 10*time.Second, "body"); got != nil {
		t.Errorf("after it came back: %s", show(got))
	}
}

// A server that dies takes several messages with it. The next ones shall wait for its successor.
func TestReadiness_IsAskedAtOnceAfterAnAttemptIsCutOff(t *testing.T) {
	t.Parallel()
	var dead atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			dead.Store(true)
			panic(http.ErrAbortHandler)
		case dead.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	h := open(t, handler.NewIdleHTTP, v1alpha1.HTTPHandler{URL: server.URL, ReadinessURL: &server.URL}, options())
	awaitReadiness(t, h, true)
	if got := attempt(t, h, 10*time.Second, "body"); got == nil || got.Source != retry.SourceCrash {
		t.Fatalf("got %s", show(got))
	}
	awaitReadiness(t, h, false)
}

func TestReadiness_EndsWhenAServerFallsSilent(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if silent.Load() {
			<-r.Context().Done()
		}
	}))
	t.Cleanup(server.Close)
	h := open(t, handler.NewBriskHTTP, v1alpha1.HTTPHandler{URL: "http://handler.test", ReadinessURL: &server.URL}, options())
	awaitReadiness(t, h, true)
	silent.Store(true)
	awaitReadiness(t, h, false)
	if why, _ := h.Ready(); why == nil || !strings.Contains(why.Error(), "no answer within 2s") {
		t.Errorf("got %v", why)
	}
}

// What differs each time would be a change each time, in the status of the Transport too.
func TestReadiness_SaysTheSameTroubleInTheSameWords(t *testing.T) {
	t.Parallel()
	authority := testcert.NewAuthority(t, "old")
	pair := authority.IssueExpired(t, "127.0.0.1")
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		serve func(net.Conn)
		says  string
	}{
		"a connection that is reset": {func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1))
			_ = c.(*net.TCPConn).SetLinger(0)
		}, "reset by peer"},
		"a certificate that has expired": {func(c net.Conn) {
			_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}).Handshake()
		}, "has expired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int64
			url := "https://" + listen(t, func(conn net.Conn) {
				asked.Add(1)
				c.serve(conn)
			})
			o := options()
			o.Files = folder(t, map[string]string{"ca.crt": string(authority.PEM)})
			h := open(t, handler.NewBriskHTTP, v1alpha1.HTTPHandler{URL: url, ReadinessURL: &url, TLS: &v1alpha1.HTTPTLS{}}, o)
			if why := answered(t, h); why == nil || !strings.Contains(why.Error(), c.says) {
				t.Fatalf("got %v, want %q", why, c.says)
			}
			_, changed := h.Ready()
			testtransport.Eventually(t, "more questions", func() bool { return asked.Load() > 3 })
			select {
			case <-changed:
				why, _ := h.Ready()
				t.Errorf("a change is announced: %v", why)
			default:
			}
		})
	}
}

// The readiness URL gets the Secret's headers only where the messages go as well.
func TestReadiness_GivesCredentialsToTheHandlersOriginOnly(t *testing.T) {
	t.Parallel()
	own, ownURL := startSidecar(t, 200)
	other, otherURL := startSidecar(t, 200)
	for name, c := range map[string]struct {
		asked *sidecar
		url   string
		want  string
	}{
		"its own":            {own, ownURL + "/ready", "Bearer x"},
		"that of a stranger": {other, otherURL + "/ready", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options()
			o.Files = folder(t, map[string]string{"headers/Authorization": "Bearer x"})
			spec := withHeaders(ownURL)
			spec.ReadinessURL = &c.url
			h := open(t, handler.NewHTTP, spec, o)
			awaitReadiness(t, h, true)
			if got := c.asked.last.Load().Header.Get("Authorization"); got != c.want {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestReadiness_UsesSocketAndAuthorityForTheOwnOriginOnly(t *testing.T) {
	t.Parallel()
	inside := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	path := socketPath(t)
	_ = inside.Listener.Close()
	inside.Listener = listenAt(t, path)
	inside.Config.ErrorLog = silent()
	inside.StartTLS()
	t.Cleanup(inside.Close)
	_, outside := startSidecar(t, 503)
	spec, o := trusting(t, inside)
	spec.UnixSocket = &path
	spec.URL = "https://example.com/messages" // the name in the server's certificate

	for ready, want := range map[string]string{"https://EXAMPLE.com:443/ready": "", outside: "HTTP 503"} {
		spec.ReadinessURL = &ready
		h := open(t, handler.NewIdleHTTP, spec, o)
		why := answered(t, h)
		if (why == nil) != (want == "") || why != nil && !strings.Contains(why.Error(), want) {
			t.Errorf("%s: got %v, want %q", ready, why, want)
		}
		if got := attempt(t, h, 10*time.Second, "body"); got != nil {
			t.Errorf("%s: %s", ready, show(got))
		}
	}
}

func TestNewHTTP_RefusesAReadinessURLThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"", "/ready", "ftp://host/", "http://user:hidden@host/"} {
		_, err := handler.NewHTTP(v1alpha1.HTTPHandler{URL: "http://handler.test", ReadinessURL: &url}, options())
		if err == nil || !strings.Contains(err.Error(), "readinessURL") || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%q: got %v", url, err)
		}
	}
}

func TestReadiness_IsThereUnaskedWithoutAURL(t *testing.T) {
	t.Parallel()
	s, url := startSidecar(t, 503)
	h := post(t, url)
	if why, _ := h.Ready(); why != nil {
		t.Error(why)
	}
	if got := attempt(t, h, 10*time.Second, "body"); got != nil || s.asked.Load() != 0 {
		t.Errorf("got %s, asked %d times", show(got), s.asked.Load())
	}
}

func TestReadiness_AwaitsNoEndOfAnAnswer(t *testing.T) {
	t.Parallel()
	ready := "http://" + listen(t, asked(func(c net.Conn) {
		_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		for err == nil {
			_, err = io.WriteString(c, strings.Repeat("x", 1000))
		}
	}))
	h := open(t, handler.NewBriskHTTP, v1alpha1.HTTPHandler{URL: "http://handler.test", ReadinessURL: &ready}, options())
	testtransport.Eventually(t, "readiness", func() bool { why, _ := h.Ready(); return why == nil })
}
