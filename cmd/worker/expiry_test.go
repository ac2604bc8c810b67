package main_test

import (
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testcert"
	"redrive.dev/redrive/internal/testtransport"
)

// expiring is a rotating scene on a broker with TLS, of which a certificate expires.
type expiring struct {
	*rotating

	authority *testcert.Authority
	username  string
	expires   time.Time
	stream    *stream
	log       *lockedBuffer
	cuts      int
}

// newExpiring starts a worker under a stream of messages, on a broker and with a Secret of which something expires soon. It is only made when
// all else is there, for that may take long.
func newExpiring(t *testing.T, soon func(e *expiring, expires time.Time)) *expiring {
	t.Helper()
	authority := testcert.NewAuthority(t, "shop")
	server, client := authority.Issue(t, "127.0.0.1"), authority.Issue(t, "worker")
	broker := testbroker.PrivateTLS(t, testbroker.TLS{Cert: server.Cert, Key: server.Key, ClientCA: authority.PEM})
	host, port, err := net.SplitHostPort(broker.SecureAMQP)
	must(t, err)
	e := &expiring{authority: authority, log: &lockedBuffer{}, rotating: newRotating(t, broker, map[string]string{
		"host": host, "port": port, "ca.crt": string(authority.PEM), "tls.crt": string(client.Cert), "tls.key": string(client.Key),
	})}
	var password string
	e.username, password = e.user(t, "worker")
	e.mount.update(map[string]string{"username": e.username, "password": password})
	e.process.stderr = e.log
	e.process.args[slices.Index(e.process.args, "WARN")] = "INFO"
	e.expires = time.Now().Add(expiresSoon)
	soon(e, e.expires)
	e.process.start()
	e.quarantine.start()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the worker:\n%s", tail(e.log.String()))
		}
	})
	e.stream = newStream(t, e.url)
	e.awaitConnections(t, e.username, 2)
	e.stream.more(t, 300)
	return e
}

// outlive waits until a certificate has expired: the sessions that stand go on. Then it cuts them, and waits for the worker to say why it
// has none any more.
func (e *expiring) outlive(t *testing.T, why ...string) {
	t.Helper()
	testtransport.Eventually(t, "the certificate to expire", func() bool { return time.Now().After(e.expires.Add(time.Second)) })
	e.stream.more(t, 300)
	if log := e.log.String(); strings.Contains(log, why[0]) {
		t.Errorf("a session that stands has ended: %s", tail(log))
	}
	e.cuts++
	must(t, e.broker.Control(t.Context(), "close_all_user_connections", e.username, "the test cuts"))
	testtransport.Eventually(t, "the worker to say "+strings.Join(why, " … "), func() bool {
		for line := range strings.Lines(e.log.String()) {
			if strings.Contains(line, e.broker.SecureAMQP) && containsAll(line, why) {
				return true
			}
		}
		return false
	})
	e.stream.more(t, 300) // they wait
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// works waits until the worker has its sessions again, and checks at the end that nothing is lost: what was in flight at a cut, and no
// more, may have ended twice.
func (e *expiring) works(t *testing.T) {
	t.Helper()
	e.awaitConnections(t, e.username, 2)
	e.stream.more(t, 300)
	published := e.stream.stop()
	ends := map[string]int{}
	testtransport.Eventually(t, "every message handled or failed", func() bool {
		for _, d := range e.TakeAll("async.failed") {
			ends[d.MessageId]++
		}
		e.partner.mu.Lock()
		defer e.partner.mu.Unlock()
		return len(ends)+len(e.partner.handled) >= published && e.Stored() == 0
	})
	for _, p := range []*process{e.process, e.quarantine} {
		if err := p.end(syscall.SIGTERM); err != nil { // they are the processes that were started
			t.Errorf("a worker did not stop cleanly: %v\n%s", err, p.log)
		}
	}
	for id, times := range e.partner.handled {
		ends[id] += times
	}
	repeated := 0
	for _, times := range ends {
		if times > 1 {
			repeated++
		}
	}
	t.Logf("%d published, %d ended, %d of them more than once", published, len(ends), repeated)
	if inFlight := 2 * 2 * 50 * e.cuts; len(ends) != published || repeated > inFlight {
		t.Errorf("%d of %d ended, %d more than once, at most %d may", len(ends), published, repeated, inFlight)
	}
}

// expiresSoon is after the worker has its sessions, for which a second would do.
const expiresSoon = 20 * time.Second

// show lets the broker show a certificate.
func (e *expiring) show(t *testing.T, server testcert.Pair) {
	t.Helper()
	e.broker.ShowCertificate(t, testbroker.TLS{Cert: server.Cert, Key: server.Key, ClientCA: e.authority.PEM})
}

// isExpired is what the log says from when a certificate of the broker, or of its authority, is.
func (e *expiring) isExpired() []string {
	return []string{"or one that signed it, is valid from", "to " + e.expires.UTC().Format(time.RFC3339) + " only: the broker needs a new one, or key ca.crt"}
}

func TestWorker_ReturnsToABrokerWithARenewedCertificate(t *testing.T) {
	testtransport.Long(t)
	e := newExpiring(t, func(e *expiring, expires time.Time) { e.show(t, e.authority.IssueUntil(t, expires, "127.0.0.1")) })
	e.outlive(t, e.isExpired()...)
	e.show(t, e.authority.Issue(t, "127.0.0.1"))
	e.works(t)
}

func TestWorker_TakesOverARenewedAuthority(t *testing.T) {
	testtransport.Long(t)
	e := newExpiring(t, func(e *expiring, expires time.Time) {
		e.mount.update(map[string]string{"ca.crt": string(e.authority.Until(t, expires).PEM)})
	})
	// RabbitMQ sends the authority's certificate along, which is not expired: then the one in the Secret is that of nobody.
	e.outlive(t, "is signed by an unknown authority (CN=shop): key ca.crt must hold that authority's certificate, and one that is not expired")
	e.mount.update(map[string]string{"ca.crt": string(e.authority.PEM)})
	e.works(t)
}

func TestWorker_TakesOverARenewedClientCertificate(t *testing.T) {
	testtransport.Long(t)
	give := func(e *expiring, client testcert.Pair) {
		e.mount.update(map[string]string{"tls.crt": string(client.Cert), "tls.key": string(client.Key)})
	}
	e := newExpiring(t, func(e *expiring, expires time.Time) { give(e, e.authority.IssueUntil(t, expires, "worker")) })
	e.outlive(t, "refuses the client certificate (expired certificate)")
	give(e, e.authority.Issue(t, "worker"))
	e.works(t)
}
