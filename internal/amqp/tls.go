package amqp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"

	"redrive.dev/redrive/internal/credentials"
)

// secure makes a TLS connection on a socket.
func secure(ctx context.Context, socket net.Conn, target *Target) (*secured, error) {
	config := target.TLS.Clone()
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(target.Address) // it was dialled
	}
	conn := tls.Client(socket, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, credentials.ExplainTLS(target.Address, err)
	}
	return &secured{Conn: conn}, nil
}

// secured remembers why reading failed. With TLS 1.3 a broker refuses the client's certificate only after the handshake, and
// the AMQP library makes a refused login of that.
type secured struct {
	*tls.Conn

	mu  sync.Mutex
	err error
}

// Read implements net.Conn.
func (s *secured) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.err = err
	}
	return n, err //nolint:wrapcheck // a net.Conn gives the errors of its socket
}

// refusal is the broker's alert about the client's certificate; nil where there was none.
func (s *secured) refusal(address string) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	explained := credentials.ExplainTLS(address, s.err)
	if _, ok := errors.AsType[*credentials.CertificateError](explained); !ok {
		return nil
	}
	return explained
}
