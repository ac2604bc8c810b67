package broker_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"testing"

	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/testtls"
)

// What a TLS connection has computed after its handshake is on the account of no namespace.
func TestTLS_EndsAnAnswerOfKeyUpdates(t *testing.T) {
	ours := testcert.NewAuthority(t, "ours")
	pair := ours.Issue(t, "127.0.0.1")
	shown, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	flooded := make(chan int)
	go func() {
		raw, err := listener.Accept()
		if err != nil {
			t.Error(err)
			flooded <- 0
			return
		}
		peer, err := testtls.Server(t.Context(), raw, shown, true)
		answered := 0
		if err == nil {
			answered, err = peer.Flood("HTTP/1.1 200 OK\r\nX: ", 16)
		}
		if err != nil {
			t.Error(err)
		}
		flooded <- answered
	}()
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(ours.PEM)
	client := connect(t, broker.Config{
		ManagementURL: "https://" + listener.Addr().String(), Username: "user", Password: "x", VHost: "/", TLS: &tls.Config{RootCAs: trusted},
	})
	if err := client.Ping(t.Context()); !errors.Is(err, broker.ErrUnreachable) {
		t.Error(err)
	}
	if answered := <-flooded; answered > 100 {
		t.Errorf("%d KeyUpdates are answered", answered)
	}
}
