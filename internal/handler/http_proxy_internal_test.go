package handler

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// tunnels is a proxy that leads to the address which it is asked for. It notes who asked.
type tunnels struct {
	*httptest.Server

	asked, login atomic.Value
}

func (p *tunnels) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.asked.Store(r.Method + " " + r.Host)
	p.login.Store(r.Header.Get("Proxy-Authorization"))
	if strings.HasPrefix(r.Host, "refused.test") {
		http.Error(w, "secret words", http.StatusForbidden)
		return
	}
	there, err := (&net.Dialer{}).DialContext(r.Context(), "tcp", r.Host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	here, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(here, "HTTP/1.1 200 Connection established\r\n\r\n")
	join(here, there)
}

func join(here, there net.Conn) {
	go func() { _, _ = io.Copy(there, here); _ = there.Close() }()
	_, _ = io.Copy(here, there)
	_ = here.Close()
}

// serveSocks leads one connection of SOCKS 5 to where it asks (RFC 1928), for an address of IPv4.
func serveSocks(here net.Conn) {
	in, head := bufio.NewReader(here), [10]byte{}
	_, _ = io.ReadFull(in, head[:2])
	_, _ = io.CopyN(io.Discard, in, int64(head[1]))
	_, _ = here.Write([]byte{5, 0})
	_, _ = io.ReadFull(in, head[:])
	there, err := net.DialTCP("tcp", nil, &net.TCPAddr{IP: head[4:8], Port: int(binary.BigEndian.Uint16(head[8:]))})
	if err != nil {
		_ = here.Close()
		return
	}
	_, _ = here.Write([]byte{5, 0, 0, 1, 0, 0, 0, 0, 0, 0})
	join(here, there)
}

// behind is a dialer that goes by way of a proxy, and whom it trusts.
func behind(t *testing.T, proxy string, servers ...*httptest.Server) (*dialer, *x509.CertPool) {
	t.Helper()
	at, err := url.Parse(proxy)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	for _, server := range servers {
		if certificate := server.Certificate(); certificate != nil {
			roots.AddCert(certificate)
		}
	}
	d := &dialer{tunnel: at, connections: 1, proxyRoots: roots}
	d.dials.most = 2
	return d, roots
}

// ask makes a request by way of the dialer, and returns the status and the version of HTTP.
func ask(t *testing.T, d *dialer, roots *x509.CertPool, address string) (status, version int, err error) {
	t.Helper()
	transport := d.transport(roots)
	t.Cleanup(transport.CloseIdleConnections)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	traced, progress := newProgress(ctx)
	t.Cleanup(progress.end)
	request, err := http.NewRequestWithContext(traced, http.MethodPost, address, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	response, err := progress.roundTrip(transport, request)
	if err != nil {
		return 0, 0, err
	}
	_ = response.Body.Close()
	return response.StatusCode, response.ProtoMajor, nil
}

func TestDialer_GoesByWayOfAnyKindOfProxy(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	for scheme, start := range map[string]func(*httptest.Server){"http": (*httptest.Server).Start, "https": (*httptest.Server).StartTLS} {
		proxy := &tunnels{}
		proxy.Server = httptest.NewUnstartedServer(proxy)
		proxy.EnableHTTP2 = true // which is not to be spoken with it
		start(proxy.Server)
		t.Cleanup(proxy.Close)
		d, roots := behind(t, strings.Replace(proxy.URL, "://", "://user:word@", 1), server, proxy.Server)
		status, version, err := ask(t, d, roots, server.URL)
		if err != nil || status != http.StatusNoContent || version != 2 {
			t.Fatalf("%s: %d in HTTP/%d, %v", scheme, status, version, err)
		}
		asked, login := proxy.asked.Load(), proxy.login.Load()
		if asked != "CONNECT "+server.Listener.Addr().String() || login != "Basic dXNlcjp3b3Jk" {
			t.Errorf("%s: asked for %v with %v", scheme, asked, login)
		}
		_, _, err = ask(t, d, roots, "https://refused.test/")
		if err == nil || !strings.Contains(err.Error(), "the proxy answers 403 Forbidden") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: got %v of one that refuses", scheme, err)
		}
	}
	socks, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socks.Close() })
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for conn, err := socks.Accept(); err == nil; conn, err = socks.Accept() {
			go serveSocks(conn)
		}
	}()
	d, roots := behind(t, "socks5://"+socks.Addr().String(), server)
	if status, _, err := ask(t, d, roots, server.URL); err != nil || status != http.StatusNoContent {
		t.Errorf("socks5: %d, %v", status, err)
	}
	_ = socks.Close()
	<-closed // the kernel takes connections as long as the accept lasts
	if _, _, err := ask(t, d, roots, server.URL); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("without a proxy: %v", err)
	}
}

// Behind a proxy a server could send 256 KiB of certificates, and as many lines of headers as it liked.
func TestDialer_BoundsWhatAServerSendsBehindAProxyToo(t *testing.T) {
	t.Parallel()
	proxy := &tunnels{}
	proxy.Server = httptest.NewServer(proxy)
	t.Cleanup(proxy.Close)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range 2000 {
			w.Header().Add("A", "")
		}
	}))
	server.StartTLS()
	t.Cleanup(server.Close)
	d, roots := behind(t, proxy.URL, server)
	if _, _, err := ask(t, d, roots, server.URL); !errors.Is(err, errLongHeaders) {
		t.Errorf("of 2000 headers got %v", err)
	}

	long := httptest.NewUnstartedServer(http.NotFoundHandler())
	pair := server.TLS.Certificates[0]
	for range 3 {
		pair.Certificate = append(slices.Clip(pair.Certificate), make([]byte, 15<<10))
	}
	long.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	long.StartTLS()
	t.Cleanup(long.Close)
	if _, _, err := ask(t, d, roots, long.URL); !errors.Is(err, errLongHandshake) {
		t.Errorf("of a handshake of 45 KiB got %v", err)
	}
}

// A proxy that waits for a server held a connection for each attempt that had ended, for a minute.
func TestDialer_AwaitsNoMoreTunnelsThanDials(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	var made, open atomic.Int32
	go func() {
		for conn, err := silent.Accept(); err == nil; conn, err = silent.Accept() {
			made.Add(1)
			open.Add(1)
			t.Cleanup(func() { _ = conn.Close() })
			go func() { _, _ = io.Copy(io.Discard, conn); open.Add(-1) }()
		}
	}()
	d, roots := behind(t, "http://"+silent.Addr().String())
	transport := d.transport(roots)
	const attempts = 6
	for n := range int32(attempts) {
		ctx, cancel := context.WithCancel(t.Context())
		traced, progress := newProgress(ctx)
		request, err := http.NewRequestWithContext(traced, http.MethodPost, "https://handler.test/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for made.Load() <= n {
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		if response, err := transport.RoundTrip(request); err == nil {
			_ = response.Body.Close()
			t.Error("there is an answer")
		}
		progress.end()
	}
	for end := time.Now().Add(5 * time.Second); int(open.Load()) > d.dials.most && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	if int(open.Load()) > d.dials.most {
		t.Errorf("%d tunnels are awaited, of attempts that have ended", open.Load())
	}
}

// net/http's errors quote what cannot be parsed, and a proxy may repeat the login that it was sent.
func TestDialer_KeepsNoWordOfAProxysAnswer(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"a line that is no header":  "HTTP/1.1 407 No\r\nyour login LOGIN is wrong\r\n\r\n",
		"a status that is none":     "HTTP/1.1 407-LOGIN No\r\n\r\n",
		"a version that is unknown": "LOGIN\r\n\r\n",
		"words in its status":       "HTTP/1.1 407 LOGIN\r\n\r\n",
	} {
		proxy, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = proxy.Close() })
		go func() {
			conn, err := proxy.Accept()
			if err != nil {
				return
			}
			if request, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				_, login, _ := strings.Cut(request.Header.Get("Proxy-Authorization"), " ")
				_, _ = io.WriteString(conn, strings.ReplaceAll(answer, "LOGIN", login))
			}
			_ = conn.Close()
		}()
		d, roots := behind(t, "http://joe:s3cr3t@"+proxy.Addr().String())
		_, _, err = ask(t, d, roots, "https://handler.test/")
		if login := base64.StdEncoding.EncodeToString([]byte("joe:s3cr3t")); err == nil || strings.Contains(err.Error(), login) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A proxy with a password that was not encoded was left out, and the server called directly.
func TestProxyFor_RefusesOneThatCannotBeRead(t *testing.T) {
	for name, tt := range map[string]struct {
		named, without, target string
		proxy                  string
		refused                bool
	}{
		"a password that is not encoded": {named: "http://joe:p%ss@10.0.0.1:3128", target: "http://partner.test/", refused: true},
		"the same, over TLS":             {named: "http://joe:p%ss@10.0.0.1:3128", target: "https://partner.test/", refused: true},
		"one that is encoded":            {named: "http://joe:p%25ss@10.0.0.1:3128", target: "https://partner.test/", proxy: "10.0.0.1:3128"},
		"without a scheme":               {named: "10.0.0.1:3128", target: "http://partner.test/", proxy: "10.0.0.1:3128"},
		"of no concern to the host":      {named: "http://joe:p%ss@10.0.0.1:3128", without: "partner.test", target: "http://partner.test/"},
		"of no concern to localhost":     {named: "http://joe:p%ss@10.0.0.1:3128", target: "http://localhost/"},
		"none":                           {target: "http://partner.test/"},
	} {
		for _, variable := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
			t.Setenv(variable, tt.named)
			t.Setenv(strings.ToLower(variable), "")
		}
		t.Setenv("NO_PROXY", tt.without)
		t.Setenv("REQUEST_METHOD", "")
		target, err := url.Parse(tt.target)
		if err != nil {
			t.Fatal(err)
		}
		got, err := proxyFor(target)
		if refused := err != nil; refused != tt.refused || refused && strings.Contains(err.Error(), "p%ss") {
			t.Errorf("%s: %v", name, err)
		}
		if got == nil {
			got = &url.URL{}
		}
		if got.Host != tt.proxy {
			t.Errorf("%s: the proxy is %q, want %q", name, got.Host, tt.proxy)
		}
	}
}
