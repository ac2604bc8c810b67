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

func TestTLS_TakesNoCertificatesThatAreTooLarge(t *testing.T) {
	ours := testcert.NewAuthority(t, "ours")
	named := func(count int) testcert.Pair {
		names := []string{"127.0.0.1"}
		for i := range count {
			names = append(names, fmt.Sprintf("broker-%d.shop", i))
		}
		return ours.Issue(t, names...)
	}
	for _, c := range []struct {
		pair testcert.Pair
		text string
	}{
		{named(1000), ""},
		{named(3000), "the server sends more than 32768 bytes in the TLS handshake: its certificates are too large"},
		{ours.IssueCrowded(t, 15000), "the server's certificates take more than 262144 bytes in memory: they have too many names"},
	} {
		pair := c.pair
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
			t.Errorf("%q: %v", c.text, err)
		}
	}
}
