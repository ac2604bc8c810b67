package faults

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// A process reaches more than one address of loopback on Linux without set-up, and elsewhere not.

// portOf is the port of an address.
func portOf(t testing.TB, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// listenAt listens at a port of another address.
func listenAt(t testing.TB, address netip.Addr, port string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address.String(), port))
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// move lets the wire begin at another address. All connections at the one before end.
func (w *wire) move(t testing.TB, to netip.Addr) {
	t.Helper()
	_ = w.listener.Close()
	w.cut()
	w.listener = listenAt(t, to, portOf(t, w.address))
	go w.accept(w.listener)
}

// move lets the partner serve at another address.
func (p *partner) move(t testing.TB, to netip.Addr) {
	t.Helper()
	port := portOf(t, p.Listener.Addr().String())
	p.CloseClientConnections()
	p.Close()
	moved := &httptest.Server{Listener: listenAt(t, to, port), Config: &http.Server{Handler: p.Config.Handler, ReadHeaderTimeout: time.Minute}}
	moved.Start()
	t.Cleanup(moved.CloseClientConnections)
	t.Cleanup(moved.Close)
	p.Server = moved
}

// A broker that moves, as a Service without an address of its own or a name in a cloud does: for a while its name leads nowhere, and then
// elsewhere.
func TestWorker_FindsItsBrokerAgainWhereTheNameLeads(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		failures := []lookup{noSuchName, serverFails, noAnswer}
		load := retrying()
		load.names = newNameserver(t)
		s := newScene(t, testbroker.Shared(t), load)
		s.publish(200 * (len(failures) + 1))
		to := netip.MustParseAddr("127.0.0.1")
		for _, how := range failures {
			s.acknowledgesAgain()
			to = to.Next()
			load.names.refuse(brokerName, how)
			asked := load.names.count(brokerName)
			for _, p := range s.group.all() {
				p.wire.move(t, to)
			}
			// Both sessions of both processes, each for A and AAAA, and again after a pause.
			s.await(atOnceWithin, "the name to be looked up in vain", func() bool { return load.names.count(brokerName) >= asked+16 })
			s.await(atOnceWithin, "the log to say so", func() bool { return saysOfLookup(s.group.workers[0].log, brokerName, how) })
			load.names.lead(brokerName, to)
			s.acknowledgesAgain()
		}
		s.settle(bounds{faults: len(failures), duplicates: len(failures) * 2 * prefetch})
	})
}

// saysOfLookup tells whether a log says that the lookup of a name failed, and how.
func saysOfLookup(log *output, name string, how lookup) bool {
	for line := range strings.Lines(string(log.end())) {
		if strings.Contains(line, "lookup "+name) && strings.Contains(line, string(how)) {
			return true
		}
	}
	return false
}

// A lookup that fails is a failed attempt, of the class that docs/http-handler.md names, and the policy decides; the next one looks again.
func TestWorker_FindsItsHandlerAgainWhereTheNameLeads(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		const batch = 30
		failures := []lookup{noSuchName, serverFails}
		calls := &visits{}
		// What fails in another way is not tried again.
		policy := testtransport.Explicit()
		policy.Strategies = []v1alpha1.Strategy{{
			Name: "dns", When: `error.source == "Connection" && error.class == "DNS"`, MaxRetries: new(int32(1000)),
			Backoff: &v1alpha1.Backoff{Type: v1alpha1.BackoffConstant, Delay: v1alpha1.NewDuration(time.Second)},
		}}
		n := newNameserver(t)
		s := newScene(t, testbroker.Shared(t), plan{policy: policy, names: n, answer: func(c call) int {
			calls.note(c)
			return http.StatusOK
		}})
		s.hasEnded(atOnceWithin, s.publish(batch))
		to := netip.MustParseAddr("127.0.0.1")
		for _, how := range failures {
			to = to.Next()
			n.refuse(partnerName, how)
			s.partner.move(t, to)
			parked := s.wire.count(point{fromClient, basicPublish}) + batch
			first := s.publish(batch)
			s.await(atOnceWithin, "each to have failed", func() bool { return s.wire.count(point{fromClient, basicPublish}) >= parked })
			if ended := len(s.ends()); ended != first {
				t.Errorf("%d messages ended while the name led nowhere", ended-first)
			}
			n.lead(partnerName, to)
			s.hasEnded(worksWithin, first)
		}
		s.settle(bounds{faults: len(failures)})
		if len(s.failed) != 0 {
			t.Errorf("%d messages failed of something else than their lookups", len(s.failed))
		}
		for _, c := range calls.calls {
			if moved := c.id >= batch; moved != (c.attempt > 1) {
				t.Errorf("message %d came as attempt %d", c.id, c.attempt)
			}
		}
	})
}
