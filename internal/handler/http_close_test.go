package handler_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testcert"
)

// The system kept what a server had not read, and went on sending it for minutes: with a server that stood still each attempt left another request of a
// megabyte in the memory of the pod.
func TestWhatAServerHasNotReadIsForgottenWithTheAttempt(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("how much was not sent is known on Linux alone")
	}
	const size = 8 << 20
	authority := testcert.NewAuthority(t, "still")
	pair := authority.Issue(t, "127.0.0.1")
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"http", "https"} {
		t.Run(scheme, func(t *testing.T) {
			t.Parallel()
			over, left := make(chan struct{}), make(chan error, 1)
			address := listen(t, func(c net.Conn) {
				if scheme == "https" {
					_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}).Handshake()
				}
				<-over
				_, err := io.Copy(io.Discard, c)
				left <- err
			})
			spec, o := v1alpha1.HTTPHandler{URL: scheme + "://" + address}, options()
			if scheme == "https" {
				spec.TLS = &v1alpha1.HTTPTLS{}
				o.Files = folder(t, map[string]string{"ca.crt": string(authority.PEM)})
			}
			h := open(t, handler.NewHTTP, spec, o)
			got := attempt(t, h, time.Second, strings.Repeat("x", size))
			time.Sleep(100 * time.Millisecond) // net/http closes the connection beside
			close(over)
			if got == nil || got.Source != retry.SourceTimeout {
				t.Errorf("got %s", show(got))
			}
			if err := <-left; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the server finds %v, want a reset", err)
			}
		})
	}
}
