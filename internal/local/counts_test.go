package local

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"redrive.dev/redrive/internal/credentials"
)

// A tunnel whose far end is gone accepts what is sent, and never answers.
func TestCounter_GivesAConnectionUpThatIsNeverAnswered(t *testing.T) {
	t.Parallel()
	tunnel, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tunnel.Close() })
	go func() {
		for {
			conn, err := tunnel.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
			go func() { _, _ = io.Copy(io.Discard, conn) }()
		}
	}()
	login, err := credentials.FromURLs("amqp://guest:guest@"+tunnel.Addr().String(), "")
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() {
		_, err := new(counter).count(context.WithoutCancel(t.Context()), Broker{Credentials: login, VHost: "/"}, []string{"orders"})
		over <- err
	}()
	select {
	case err := <-over:
		if err == nil {
			t.Error("counted without a broker")
		}
	case <-time.After(4 * countTimeout):
		t.Errorf("still waiting for an answer after %s", 4*countTimeout)
	}
}
