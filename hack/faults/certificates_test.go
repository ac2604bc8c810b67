package faults

import (
	"crypto/tls"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/testtransport"
)

// shown is the certificate that a server shows to whoever connects from now on.
type shown struct {
	pair atomic.Pointer[tls.Certificate]
}

func (s *shown) set(t testing.TB, pair testcert.Pair) {
	t.Helper()
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	s.pair.Store(&certificate)
}

// config asks for it each time. By GetCertificate a client that calls an address by no name would be shown the server's own.
func (s *shown) config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*s.pair.Load()}}, nil
	}}
}

// The certificate of a handler's server expires while the worker runs, and so does that of the authority in the Secret. Each message fails an
// attempt to connect, of the class that docs/http-handler.md names, until there is a new one; nothing is started again.
func TestWorker_CallsAHandlerAgainWhenItsCertificateIsRenewed(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		programs(t) // which may take longer than a certificate is valid
		const batch = 30
		soon := time.Now().Add(40 * time.Second)
		authority := testcert.NewAuthority(t, "handlers")
		brief, server := authority.Until(t, soon.Add(10*time.Second)), &shown{}
		server.set(t, authority.IssueUntil(t, soon, "127.0.0.1"))
		files := t.TempDir()
		write(t, filepath.Join(files, "ca.crt"), string(brief.PEM))
		// What fails in another way is not tried again.
		policy := testtransport.Explicit()
		policy.Strategies = []v1alpha1.Strategy{{
			Name: "tls", When: `error.source == "Connection" && error.class == "TLS"`, MaxRetries: new(int32(1000)),
			Backoff: &v1alpha1.Backoff{Type: v1alpha1.BackoffConstant, Delay: v1alpha1.NewDuration(time.Second)},
		}}
		calls := &visits{}
		s := newScene(t, testbroker.Shared(t), plan{
			policy: policy, secure: server.config(), files: files,
			answer: func(c call) int {
				calls.note(c)
				return http.StatusOK
			},
			change: func(worker *v1alpha1.Worker) {
				worker.Handler.HTTP.TLS = &v1alpha1.HTTPTLS{CASecretRef: v1alpha1.SecretKeyReference{Name: "authority"}}
			},
		})
		s.hasEnded(time.Until(soon), s.publish(batch))
		for _, expiry := range []struct {
			at    time.Time
			renew func()
		}{
			{soon, func() { server.set(t, authority.Issue(t, "127.0.0.1")) }},
			{soon.Add(10 * time.Second), func() { write(t, filepath.Join(files, "ca.crt"), string(authority.PEM)) }},
		} {
			s.await(atOnceWithin, "the certificate to expire", func() bool { return time.Now().After(expiry.at.Add(time.Second)) })
			s.partner.CloseClientConnections() // what is connected stays so
			parked := s.wire.count(point{fromClient, basicPublish}) + batch
			first := s.publish(batch)
			s.await(atOnceWithin, "each to have failed", func() bool { return s.wire.count(point{fromClient, basicPublish}) >= parked })
			if ended := len(s.ends()); ended != first {
				t.Errorf("%d messages ended while the certificate was expired", ended-first)
			}
			expiry.renew()
			s.hasEnded(worksWithin, first)
		}
		s.settle(bounds{faults: 2})
		if len(s.failed) != 0 {
			t.Errorf("%d messages failed of something else than their handshakes", len(s.failed))
		}
		for _, c := range calls.calls {
			if late := c.id >= batch; late != (c.attempt > 1) {
				t.Errorf("message %d came as attempt %d", c.id, c.attempt)
			}
		}
	})
}
