package handler_test

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testcert"
)

// The system kept what a server had not read, and went on sending it for minutes: with a server that stood still each attempt left another request of a
// megabyte in the memory of the pod.
func TestHTTP_DropsUnreadBytesWithTheAttempt(t *testing.T) {
	t.Parallel()
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
			left := make(chan error, 1)
			address := listen(t, func(c net.Conn) {
				if scheme == "https" {
					_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}).Handshake()
				}
				awaitHangUp(t, c)
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
			if got == nil || got.Source != retry.SourceTimeout {
				t.Errorf("got %s", show(got))
			}
			if err := <-left; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("the server finds %v, want a reset", err)
			}
		})
	}
}

// awaitHangUp waits until the other end has closed or reset a connection, of which nothing is read meanwhile.
func awaitHangUp(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Error(err)
		return
	}
	state := []unix.PollFd{{Events: unix.POLLRDHUP}}
	for end := time.Now().Add(20 * time.Second); state[0].Revents == 0; time.Sleep(time.Millisecond) {
		err := raw.Control(func(fd uintptr) {
			state[0].Fd = int32(fd)
			_, _ = unix.Poll(state, 0)
		})
		if err != nil || time.Now().After(end) {
			t.Errorf("the connection stays open (%v)", err)
			return
		}
	}
}
