package httpserver_test

import (
	"net"
	"testing"

	"redrive.dev/redrive/internal/testtls"
)

// 200 callers without a token, that sent headers in this way, had new Transports of all teams wait for ten seconds.
func TestSecure_EndsAConnectionOfKeyUpdates(t *testing.T) {
	t.Parallel()
	address, _, client := secured(t)
	raw, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	peer, err := testtls.Client(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	if answered, err := peer.Flood("GET / HTTP/1.1\r\nHost: port\r\nX: ", 16); err != nil || answered > 100 {
		t.Errorf("%d KeyUpdates are answered, %v", answered, err)
	}
	ask(t, client, address)
}
