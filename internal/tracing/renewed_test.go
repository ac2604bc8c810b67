package tracing_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/testcollector"
)

// put renews the files of a folder as kubelet does for a Secret: all at once, by another target of a symbolic link.
func put(t *testing.T, folder string, files map[string][]byte) {
	t.Helper()
	made := t.TempDir()
	var err error
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(made, name), text, 0o600))
		if _, missing := os.Lstat(filepath.Join(folder, name)); missing != nil {
			err = errors.Join(err, os.Symlink(filepath.Join("..data", name), filepath.Join(folder, name)))
		}
	}
	next := filepath.Join(folder, "..next")
	if err = errors.Join(err, os.Symlink(made, next), os.Rename(next, filepath.Join(folder, "..data"))); err != nil {
		t.Fatal(err)
	}
}

// The files were read once: when the certificates had been renewed, and those before had expired, no span came any more until the pod began anew.
func TestStart_TakesOverRenewedCertificates(t *testing.T) {
	folder := t.TempDir()
	var server atomic.Pointer[tls.Config]
	renew := func(name string) {
		authority := testcert.NewAuthority(t, name)
		pair := authority.Issue(t, "127.0.0.1")
		certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		clients := x509.NewCertPool()
		clients.AppendCertsFromPEM(authority.PEM)
		server.Store(&tls.Config{
			Certificates: []tls.Certificate{certificate}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
		})
		put(t, folder, map[string][]byte{"ca.crt": authority.PEM, "tls.crt": pair.Cert, "tls.key": pair.Key})
	}
	renew("first")
	collector := testcollector.NewUnstarted()
	collector.Server.TLS = server.Load().Clone()
	collector.Server.TLS.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return server.Load(), nil }
	collector.Server.StartTLS()
	t.Cleanup(collector.Server.Close)
	provider, shutdown, log := start(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT":           collector.Server.URL,
		"OTEL_EXPORTER_OTLP_CERTIFICATE":        filepath.Join(folder, "ca.crt"),
		"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": filepath.Join(folder, "tls.crt"),
		"OTEL_EXPORTER_OTLP_CLIENT_KEY":         filepath.Join(folder, "tls.key"),
		"OTEL_EXPORTER_OTLP_TIMEOUT":            "2000",
		"OTEL_BSP_SCHEDULE_DELAY":               "20",
	})
	spans(provider, 1)
	eventually(t, "a span before the renewal", func() bool { return len(collector.Spans()) == 1 })
	renew("second")
	collector.Server.CloseClientConnections()
	spans(provider, 1)
	shutdown()
	if got := len(collector.Spans()); got != 2 {
		t.Errorf("%d spans came, want 2; log: %s", got, log.text.String())
	}
	if log.lines("PRIVATE") > 0 {
		t.Errorf("log: %s", log.text.String())
	}
}

// A file that cannot be read for a while, or half of a pair that is written in place, changes nothing.
func TestStart_KeepsTheCertificatesWhereTheNextOnesAreBad(t *testing.T) {
	authority := testcert.NewAuthority(t, "collectors")
	pair, other := authority.Issue(t, "127.0.0.1"), authority.Issue(t, "127.0.0.1")
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	collector := testcollector.NewUnstarted()
	collector.Server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS12}
	collector.Server.StartTLS()
	t.Cleanup(collector.Server.Close)
	folder := t.TempDir()
	put(t, folder, map[string][]byte{"ca.crt": authority.PEM, "tls.crt": pair.Cert, "tls.key": pair.Key})
	provider, shutdown, log := start(t, map[string]string{
		"OTEL_EXPORTER_OTLP_ENDPOINT":           collector.Server.URL,
		"OTEL_EXPORTER_OTLP_CERTIFICATE":        filepath.Join(folder, "ca.crt"),
		"OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": filepath.Join(folder, "tls.crt"),
		"OTEL_EXPORTER_OTLP_CLIENT_KEY":         filepath.Join(folder, "tls.key"),
	})
	put(t, folder, map[string][]byte{"ca.crt": nil, "tls.crt": pair.Cert, "tls.key": other.Key})
	spans(provider, 1)
	shutdown()
	if len(collector.Spans()) != 1 {
		t.Errorf("no span came; log: %s", log.text.String())
	}
}
