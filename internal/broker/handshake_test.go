package broker_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/testcert"
)

// Certificates are kept as long as their connection, in thirty times the memory of their text.
func TestTLS_TakesNoCertificatesThatAreTooLarge(t *testing.T) {
	ours := testcert.NewAuthority(t, "ours")
	for _, c := range []struct {
		names int
		text  string
	}{{100, ""}, {3000, "the server sends more than 32768 bytes in the TLS handshake: its certificates are too large"}} {
		names := []string{"127.0.0.1"}
		for i := range c.names {
			names = append(names, fmt.Sprintf("broker-%d.shop", i))
		}
		pair := ours.Issue(t, names...)
		shown, err := tls.X509KeyPair(pair.Cert, pair.Key)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
		server.TLS = &tls.Config{Certificates: []tls.Certificate{shown}}
		server.StartTLS()
		defer server.Close()
		trusted := x509.NewCertPool()
		trusted.AppendCertsFromPEM(ours.PEM)
		err = connect(t, broker.Config{ManagementURL: server.URL, Username: "user", Password: "x", VHost: "/", TLS: &tls.Config{RootCAs: trusted}}).Ping(t.Context())
		if c.text == "" && err != nil || c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)) {
			t.Errorf("%d names: %v", c.names, err)
		}
	}
}
