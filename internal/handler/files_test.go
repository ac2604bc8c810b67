package handler_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/testtransport"
)

// folder is a folder of handler files.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		write(t, dir, name, content)
	}
	return dir
}

// write puts a file in place at once, as the kubelet does.
func write(t *testing.T, dir, name, content string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	draft := filepath.Join(dir, "draft")
	if err := os.WriteFile(draft, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(draft, path); err != nil {
		t.Fatal(err)
	}
}

// mount puts files where a folder's links lead, and then swaps a link, as the kubelet does with a Secret.
func mount(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		write(t, dir, ".."+version+"/"+name, content)
		_ = os.Symlink("..data/"+name, filepath.Join(dir, name))
	}
	if err := os.Symlink(".."+version, filepath.Join(dir, "..tmp")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

// withHeaders is a spec with headers from a Secret.
func withHeaders(url string) v1alpha1.HTTPHandler {
	return v1alpha1.HTTPHandler{URL: url, HeadersSecretRef: &v1alpha1.LocalReference{Name: "partner"}}
}

// observed serves, and tells the headers of the last request.
func observed(t *testing.T) (url string, last *atomic.Pointer[http.Header]) {
	t.Helper()
	last = &atomic.Pointer[http.Header]{}
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		header := r.Header.Clone()
		last.Store(&header)
	}))
	t.Cleanup(server.Close)
	return server.URL, last
}

func TestHTTP_PrefersHeadersOfTheSecretToTheMessages(t *testing.T) {
	t.Parallel()
	url, last := observed(t)
	o := options()
	o.Files = folder(t, map[string]string{
		"headers/authorization": "Bearer s3cret\n", "headers/X-Api_Key": " k ", "headers/User-Agent": "shop", "headers/x-twice": "a, b\r\n",
	})
	spec := withHeaders(url)
	spec.Headers = &v1alpha1.HTTPHeaders{Prefix: new("None"), Allow: []string{"*"}}
	h := open(t, handler.NewHTTP, spec, o)
	if got := h.Handle(t.Context(), handler.Request{Headers: map[string]any{
		"Authorization": "Bearer forged", "x_api_key": "forged", "X-API-KEY": "forged", "user-agent": "forged", "X-Twice": "forged", "other": "kept",
	}}); got != nil {
		t.Fatal(show(got))
	}
	got := *last.Load()
	want := map[string]string{"Authorization": "Bearer s3cret", "X-Api_key": "k", "User-Agent": "shop", "X-Twice": "a, b", "Other": "kept"}
	for name, value := range want {
		if len(got[name]) != 1 || got[name][0] != value {
			t.Errorf("%s: got %q, want %q", name, got[name], value)
		}
	}
	for name, values := range got {
		if strings.Contains(strings.Join(values, ""), "forged") {
			t.Errorf("%s: got %q", name, values)
		}
	}
}

func TestHTTP_TakesOverARotatedSecret(t *testing.T) {
	t.Parallel()
	url, last := observed(t)
	o := options()
	o.Files = t.TempDir()
	mounted := filepath.Join(o.Files, "headers")
	mount(t, mounted, "1", map[string]string{"Authorization": "Bearer old", "X-Gone": "yes"})
	h := open(t, handler.NewBriskHTTP, withHeaders(url), o)
	handle := func() http.Header {
		if got := attempt(t, h, 10*time.Second, "body"); got != nil {
			t.Fatal(show(got))
		}
		return *last.Load()
	}
	if got := handle(); got.Get("Authorization") != "Bearer old" || got.Get("X-Gone") != "yes" {
		t.Fatalf("got %v", got)
	}
	mount(t, mounted, "2", map[string]string{"Authorization": "Bearer new"})
	if err := os.Remove(filepath.Join(mounted, "X-Gone")); err != nil {
		t.Fatal(err)
	}
	testtransport.Eventually(t, "the new header", func() bool {
		got := handle()
		return got.Get("Authorization") == "Bearer new" && got.Get("X-Gone") == ""
	})
}

func TestHTTP_IsNotReadyWithBadHeadersAndNamesThem(t *testing.T) {
	t.Parallel()
	url, last := observed(t)
	event := v1alpha1.HTTPFormatCloudEvents
	cases := map[string]struct {
		files  map[string]string
		format *v1alpha1.HTTPFormat
		says   string
	}{
		"a name that is none":             {map[string]string{"headers/a b": "hidden"}, nil, `"a b"`},
		"a name with a colon":             {map[string]string{"headers/a:": "hidden"}, nil, `"a:"`},
		"a line break within a value":     {map[string]string{"headers/X-Evil": "hidden\r\nHost: evil"}, nil, `"X-Evil"`},
		"a zero byte":                     {map[string]string{"headers/X-Evil": "hid\x00den"}, nil, `"X-Evil"`},
		"blanks":                          {map[string]string{"headers/X-Empty": "  "}, nil, `"X-Empty"`},
		"nothing":                         {map[string]string{"headers/X-Empty": "\n"}, nil, `"X-Empty"`},
		"a length":                        {map[string]string{"headers/Content-Length": "7"}, nil, `"Content-Length"`},
		"another host":                    {map[string]string{"headers/host": "hidden"}, nil, `"host"`},
		"the type of the body":            {map[string]string{"headers/Content-Type": "hidden"}, nil, `"Content-Type"`},
		"chunks":                          {map[string]string{"headers/Transfer-Encoding": "chunked"}, nil, `"Transfer-Encoding"`},
		"an upgrade":                      {map[string]string{"headers/Upgrade": "h2c"}, nil, `"Upgrade"`},
		"the login of a proxy":            {map[string]string{"headers/Proxy-Authorization": "hidden"}, nil, `"Proxy-Authorization"`},
		"what Redrive says":               {map[string]string{"headers/redrive_attempt": "hidden"}, nil, `"redrive_attempt"`},
		"the key of each message":         {map[string]string{"headers/Idempotency-Key": "hidden"}, nil, `"Idempotency-Key"`},
		"the same header twice":           {map[string]string{"headers/X-Api-Key": "hidden", "headers/x_api_key": "hidden"}, nil, `"x_api_key"`},
		"an attribute of an event":        {map[string]string{"headers/ce-type": "hidden"}, &event, `"ce-type"`},
		"a value of 1 MiB":                {map[string]string{"headers/X-Long": strings.Repeat("hidden", 200_000)}, nil, "X-Long"},
		"a folder":                        {map[string]string{"headers/X-Folder/a": "hidden"}, nil, "X-Folder"},
		"no folder of headers whatsoever": {nil, nil, "the Secret is missing"},
		"a folder with the kubelet's own": {map[string]string{"headers/..data/Authorization": "hidden"}, nil, "the Secret is missing"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options()
			var logged bytes.Buffer
			o.Log = slog.New(slog.NewTextHandler(&logged, nil))
			o.Files = folder(t, c.files)
			spec := withHeaders(url)
			spec.Format = c.format
			h := open(t, handler.NewIdleHTTP, spec, o)
			why, _ := h.Ready()
			if why == nil || !strings.Contains(why.Error(), c.says) {
				t.Fatalf("got %v, want it to name %s", why, c.says)
			}
			got := attempt(t, h, time.Second, "body")
			if got == nil || got.Source != retry.SourceConnection || last.Load() != nil {
				t.Errorf("got %s", show(got))
			}
			for _, text := range []string{why.Error(), got.Message, logged.String()} {
				if strings.Contains(text, "hid") {
					t.Errorf("shows the value: %s", text)
				}
			}
		})
	}
}

func TestHTTP_TakesEventAttributesForHeadersWhereRaw(t *testing.T) {
	t.Parallel()
	url, last := observed(t)
	o := options()
	o.Files = folder(t, map[string]string{"headers/ce-source": "/shop"})
	if got := attempt(t, open(t, handler.NewHTTP, withHeaders(url), o), 10*time.Second, "body"); got != nil || last.Load().Get("Ce-Source") != "/shop" {
		t.Errorf("got %s", show(got))
	}
}

func TestHTTP_BecomesReadyWithItsFiles(t *testing.T) {
	t.Parallel()
	url, _ := observed(t)
	o := options()
	o.Files = t.TempDir()
	h := open(t, handler.NewBriskHTTP, withHeaders(url), o)
	if why, _ := h.Ready(); why == nil {
		t.Fatal("ready without files")
	}
	write(t, o.Files, "headers/Authorization", "Bearer x")
	awaitReadiness(t, h, true)
	if got := attempt(t, h, 10*time.Second, "body"); got != nil {
		t.Error(show(got))
	}
}

// awaitReadiness waits until a handler is ready, or is not, looking only when it announces a change.
func awaitReadiness(t *testing.T, h *handler.HTTP, ready bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		why, changed := h.Ready()
		if (why == nil) == ready {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("no change is announced; before: %v", why)
		}
	}
}

// serveTLS serves with a certificate for 127.0.0.1 of the authority, which may be migrated.
func serveTLS(t *testing.T, authority *testcert.Authority) (url string, exchange func(*testcert.Authority)) {
	t.Helper()
	url, show := servePairs(t)
	exchange = func(authority *testcert.Authority) { show(authority.Issue(t, "127.0.0.1")) }
	exchange(authority)
	return url, exchange
}

// servePairs serves with the certificate that was shown last.
func servePairs(t *testing.T) (url string, show func(testcert.Pair)) {
	t.Helper()
	var inUse atomic.Pointer[tls.Certificate]
	show = func(pair testcert.Pair) {
		certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		inUse.Store(&certificate)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	server.Config.ErrorLog = silent()
	server.Config.SetKeepAlivesEnabled(false) // each request shows which certificate is trusted
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*inUse.Load()}, MinVersion: tls.VersionTLS12}, nil
	}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, show
}

func TestHTTP_TrustsOnlyItsAuthorityAndTakesOverARotatedOne(t *testing.T) {
	t.Parallel()
	before, after := testcert.NewAuthority(t, "before"), testcert.NewAuthority(t, "after")
	url, exchange := serveTLS(t, before)
	o := options()
	o.Files = folder(t, map[string]string{"ca.crt": string(before.PEM)})
	h := open(t, handler.NewBriskHTTP, v1alpha1.HTTPHandler{URL: url, TLS: &v1alpha1.HTTPTLS{}}, o)
	if got := attempt(t, h, 10*time.Second, "body"); got != nil {
		t.Fatalf("before: %s", show(got))
	}
	exchange(after)
	if got := attempt(t, h, 10*time.Second, "body"); got == nil || got.Class != handler.ClassUnknownCA {
		t.Fatalf("a certificate of another authority: %s", show(got))
	}
	write(t, o.Files, "ca.crt", string(after.PEM)+string(before.PEM))
	testtransport.Eventually(t, "the new authority", func() bool { return attempt(t, h, 10*time.Second, "body") == nil })
	exchange(before)
	if got := attempt(t, h, 10*time.Second, "body"); got != nil {
		t.Errorf("two authorities in one file: %s", show(got))
	}
}

// What is connected stays so; whoever connects anew is told since when.
func TestHTTP_CannotConnectUntilAnExpiredCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	expired := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	authority := testcert.NewAuthority(t, "handlers")
	late := authority.Until(t, time.Now().Add(-time.Hour))
	cases := map[string]struct {
		trusted []byte
		shown   testcert.Pair
		renew   func(dir string, show func(testcert.Pair))
	}{
		"the server's": {
			authority.PEM, authority.IssueExpired(t, "127.0.0.1"), func(_ string, show func(testcert.Pair)) { show(authority.Issue(t, "127.0.0.1")) },
		},
		"the authority's": {
			late.PEM, authority.Issue(t, "127.0.0.1"), func(dir string, _ func(testcert.Pair)) { write(t, dir, "ca.crt", string(authority.PEM)) },
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, show := servePairs(t)
			show(c.shown)
			o := options()
			o.Files = folder(t, map[string]string{"ca.crt": string(c.trusted)})
			h := open(t, handler.NewBriskHTTP, v1alpha1.HTTPHandler{URL: url, TLS: &v1alpha1.HTTPTLS{}}, o)
			got := attempt(t, h, 10*time.Second, "body")
			if got == nil || got.Source != retry.SourceConnection || got.Class != handler.ClassTLS || !strings.Contains(got.Message, "certificate has expired") ||
				!strings.Contains(got.Message, "is after "+expired) {
				t.Fatalf("got %+v, want a failure since %s", got, expired)
			}
			c.renew(o.Files, show)
			testtransport.Eventually(t, "a success", func() bool { return attempt(t, h, 10*time.Second, "body") == nil })
		})
	}
}

func TestHTTP_NamesAMissingAuthority(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]string{"ca.crt: not there; the Secret is missing": t.TempDir(), "was given no folder": ""} {
		o := options()
		o.Files = dir
		h := open(t, handler.NewIdleHTTP, v1alpha1.HTTPHandler{URL: "https://handler.test", TLS: &v1alpha1.HTTPTLS{}}, o)
		if why, _ := h.Ready(); why == nil || !strings.Contains(why.Error(), name) {
			t.Errorf("got %v, want %q", why, name)
		}
	}
}

func TestHTTP_RefusesABrokenAuthorityAndKeepsTheLastGoodOne(t *testing.T) {
	t.Parallel()
	authority := testcert.NewAuthority(t, "good")
	pair := authority.Issue(t, "127.0.0.1")
	url, _ := serveTLS(t, authority)
	good := string(authority.PEM)
	cases := map[string]struct{ content, says string }{
		"an empty file":                 {"", "no certificate"},
		"a text":                        {"-----BEGIN hidden", "no certificate"},
		"a private key":                 {string(pair.Key), "PRIVATE KEY"},
		"a certificate and a key":       {good + string(pair.Key), "block 2"},
		"a certificate that is cut off": {good + good[:len(good)/2], "follows certificate 1"},
		"a certificate of nothing":      {"-----BEGIN CERTIFICATE-----\naGlkZGVu\n-----END CERTIFICATE-----\n", "certificate 1"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options()
			logged := &lockedBuffer{}
			o.Log = slog.New(slog.NewTextHandler(logged, nil))
			o.Files = folder(t, map[string]string{"ca.crt": c.content})
			h := open(t, handler.NewBriskHTTP, v1alpha1.HTTPHandler{URL: url, TLS: &v1alpha1.HTTPTLS{}}, o)
			why, _ := h.Ready()
			if why == nil || !strings.Contains(why.Error(), c.says) || !strings.Contains(why.Error(), "ca.crt") {
				t.Fatalf("got %v, want %q", why, c.says)
			}
			write(t, o.Files, "ca.crt", good)
			awaitReadiness(t, h, true)
			write(t, o.Files, "ca.crt", c.content)
			testtransport.Eventually(t, "a second error in the log", func() bool { return strings.Count(logged.String(), "level=ERROR") == 2 })
			if why, _ := h.Ready(); why != nil {
				t.Errorf("no more ready: %v", why)
			}
			if got := attempt(t, h, 10*time.Second, "body"); got != nil {
				t.Errorf("the good one does not stay: %s", show(got))
			}
			if strings.Contains(logged.String(), "hidden") {
				t.Errorf("logged the content: %s", logged)
			}
		})
	}
}

// lockedBuffer is a buffer for a log.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}

// Rotations, requests and questions at the same time: the race detector is the judge, and no attempt fails.
func TestHTTP_LosesNoAttemptWhileFilesChange(t *testing.T) {
	t.Parallel()
	authorities := []*testcert.Authority{testcert.NewAuthority(t, "a"), testcert.NewAuthority(t, "b")}
	url, _ := serveTLS(t, authorities[0])
	o := options()
	contents := []string{string(authorities[0].PEM), string(authorities[0].PEM) + string(authorities[1].PEM)}
	o.Files = folder(t, map[string]string{"ca.crt": contents[0], "headers/X-Round": "0"})
	spec := withHeaders(url)
	spec.TLS = &v1alpha1.HTTPTLS{}
	spec.ReadinessURL = &url
	h := open(t, handler.NewBriskHTTP, spec, o)
	var calls sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		calls.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if got := attempt(t, h, 10*time.Second, "body"); got != nil {
					t.Errorf("got %s", show(got))
					return
				}
				_, _ = h.Ready()
			}
		})
	}
	for round := range 40 {
		write(t, o.Files, "headers/X-Round", strconv.Itoa(round))
		write(t, o.Files, "ca.crt", contents[round%2])
	}
	close(stop)
	calls.Wait()
}
