package httpserver_test

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/internal/httpserver"
	"redrive.dev/redrive/internal/testcert"
)

// countingKey notes how many signatures are computed at a time.
type countingKey struct {
	crypto.Signer

	now, most atomic.Int64
}

func (k *countingKey) Sign(random io.Reader, digest []byte, options crypto.SignerOpts) ([]byte, error) {
	if now := k.now.Add(1); now > k.most.Load() {
		k.most.Store(now)
	}
	defer k.now.Add(-1)
	runtime.Gosched()
	time.Sleep(time.Millisecond)
	return k.Signer.Sign(random, digest, options)
}

// secured is a server over TLS, and the key of its certificate.
func secured(t *testing.T) (address string, key *countingKey, client *http.Client) {
	t.Helper()
	authority := testcert.NewAuthority(t, "port")
	issued := authority.Issue(t, "127.0.0.1")
	pair, err := tls.X509KeyPair(issued.Cert, issued.Key)
	if err != nil {
		t.Fatal(err)
	}
	key = &countingKey{Signer: pair.PrivateKey.(crypto.Signer)}
	pair.PrivateKey = key
	plain, err := httpserver.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := httpserver.New(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("answered")) }))
	listener := httpserver.Secure(t.Context(), plain, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		_ = server.Close()
		served.Wait()
	})
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM)
	client = &http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
	}
	return plain.Addr().String(), key, client
}

// hello is what a client sends first.
func hello(t *testing.T) []byte {
	t.Helper()
	client, server := net.Pipe()
	go func() {
		_ = tls.Client(client, &tls.Config{ServerName: "port", MinVersion: tls.VersionTLS12}).Handshake()
	}()
	sent := make([]byte, 16<<10)
	n, err := server.Read(sent)
	if err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	return bytes.Clone(sent[:n])
}

func ask(t *testing.T, client *http.Client, address string) {
	t.Helper()
	response, err := client.Get("https://" + address)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = response.Body.Close() }()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "answered" {
		t.Errorf("it answers %q, %v", body, err)
	}
}

// 200 clients that repeated a recorded hello had the operator stand still for all teams for minutes: each signature is a millisecond or two.
func TestSecure_ComputesOneHandshakeAtATime(t *testing.T) {
	t.Parallel()
	address, key, client := secured(t)
	first := hello(t)
	flood := make(chan struct{})
	for range 50 {
		go func() {
			defer func() { flood <- struct{}{} }()
			for range 4 {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					continue
				}
				_, _ = conn.Write(first)
				_, _ = conn.Read(make([]byte, 1))
				_ = conn.Close()
			}
		}()
	}
	ask(t, client, address)
	for range 50 {
		<-flood
	}
	if most := key.most.Load(); most != 1 {
		t.Errorf("%d signatures are computed at a time", most)
	}
}

func TestSecure_CallersThatKeepTheirHandshakesWaitingKeepNoOther(t *testing.T) {
	t.Parallel()
	address, _, client := secured(t)
	first := hello(t)
	for i := range 100 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write(first[:len(first)*(i%3)/2]) // nothing, a half, all of it
	}
	for range 3 {
		ask(t, client, address) // in less time than the others may take one after the other
	}
}
