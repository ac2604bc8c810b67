package handler

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"
)

func TestAConnectionThatDoesNotComeAboutSaysWhy(t *testing.T) {
	t.Parallel()
	dial := func(cause error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: cause} }
	cases := map[string]struct {
		err       error
		handshake bool
		want      string
	}{
		"nobody listens":              {dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), false, ClassConnectionRefused},
		"nobody listens at the proxy": {&net.OpError{Op: "proxyconnect", Err: dial(syscall.ECONNREFUSED)}, false, ClassConnectionRefused},
		"no packet comes back":        {dial(os.ErrDeadlineExceeded), false, ClassTimeout},
		"no route":                    {dial(syscall.EHOSTUNREACH), false, ClassUnreachable},
		"the name server is silent":   {dial(&net.DNSError{IsTimeout: true}), false, ClassDNS},
		"a handshake that takes long": {fmt.Errorf("handshake: %w", os.ErrDeadlineExceeded), true, ClassTLS},
		"a proxy that refuses":        {errors.New("Forbidden"), false, ClassUnreachable},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p progress
			p.handshake.Store(c.handshake)
			if got := p.failure(t.Context(), c.err); got.Class != c.want {
				t.Errorf("got %+v", got)
			}
		})
	}
}
