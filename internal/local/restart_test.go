package local

import (
	"log/slog"
	"net/url"
	"testing"
	"time"

	"redrive.dev/redrive/internal/credentials"
	"redrive.dev/redrive/internal/manifest"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// brokerAt is a vhost as files name it, over AMQP at an address.
func brokerAt(t *testing.T, server *testbroker.Broker, vhost, address string) Broker {
	t.Helper()
	amqp, err := url.Parse(server.AMQPURL)
	if err != nil {
		t.Fatal("the AMQP URL is not a URL")
	}
	amqp.Host = address
	login, err := credentials.FromURLs(amqp.String(), server.ManagementURL)
	if err != nil {
		t.Fatal(err)
	}
	management, err := login.Management()
	if err != nil {
		t.Fatal(err)
	}
	return Broker{Credentials: login, Management: management, VHost: vhost}
}

func TestSite_LooksWhenABrokerAnswersAgain(t *testing.T) {
	server := testbroker.Shared(t)
	vhost := server.Vhost(t)
	proxy := testtransport.NewProxy(t, testtransport.Address(t, server.AMQPURL))
	units, err := Prepare(&manifest.Set{Transports: setOf("").Transports})
	if err != nil {
		t.Fatal(err)
	}
	options := Options{Log: slog.New(slog.DiscardHandler), Refresh: 20 * time.Millisecond}
	s := newSite(&options, &units[0], brokerAt(t, server, vhost, proxy.Address))
	s.queues = []string{"none"}
	ended := make(chan struct{})
	go func() { defer close(ended); s.watch() }()
	defer func() { s.end(); <-ended }()
	counted := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.counts != nil
	}
	testtransport.Eventually(t, "the queues to be counted", counted)
	if at := s.restartedAt(); !at.IsZero() {
		t.Errorf("a broker that always answered was started again at %s", at)
	}
	proxy.Refuse(true)
	proxy.Cut()
	testtransport.Eventually(t, "the broker to be silent", func() bool { return !counted() })
	proxy.Refuse(false)
	testtransport.Eventually(t, "the broker to answer again", func() bool { return !s.restartedAt().IsZero() })
	select {
	case <-s.changed:
	case <-time.After(testtransport.Patience):
		t.Error("nobody looks at it")
	}
}
