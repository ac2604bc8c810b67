package faults

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	_ "github.com/Shopify/toxiproxy/v2/toxics" // toxics register themselves
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// network is what lies between the workers' wires and the broker.
type network struct {
	t     testing.TB
	proxy *toxiproxy.Proxy
}

// through makes the network lead to an address, and returns where it begins.
func (n *network) through(address string) string {
	n.t.Helper()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(prometheus.NewRegistry()), zerolog.Nop())
	n.proxy = toxiproxy.NewProxy(server, "broker", "127.0.0.1:0", address)
	if err := n.proxy.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(n.proxy.Stop)
	return n.proxy.Listen
}

// toxic of Toxiproxy, in both directions.
type toxic struct {
	Type       string         `json:"type"`
	Attributes map[string]any `json:"attributes"`
}

func (n *network) poison(toxics ...toxic) {
	n.t.Helper()
	for _, toxic := range toxics {
		for _, stream := range []string{"upstream", "downstream"} {
			text, err := json.Marshal(map[string]any{"type": toxic.Type, "stream": stream, "attributes": toxic.Attributes})
			if err != nil {
				n.t.Fatal(err)
			}
			if _, err := n.proxy.Toxics.AddToxicJson(strings.NewReader(string(text))); err != nil {
				n.t.Fatal(err)
			}
		}
	}
}

func (n *network) cure() { n.proxy.Toxics.ResetToxics(n.t.Context()) }

// retrying is a load that publishes as much as it acknowledges.
func retrying() plan {
	return plan{policy: testtransport.Explicit(100*time.Millisecond, 100*time.Millisecond), answer: failsFirst}
}

// over lets the wires of a plan lead over a network.
func (p plan) over(n *network) plan {
	p.through = n.through
	return p
}

func TestWorker_LosesAndRepeatsNothingOnASlowNetwork(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		far := &network{t: t}
		s := newScene(t, testbroker.Shared(t), retrying().over(far))
		far.poison(
			toxic{"latency", map[string]any{"latency": 20, "jitter": 20}},
			toxic{"bandwidth", map[string]any{"rate": 50}}, // KB in a second
			toxic{"slicer", map[string]any{"average_size": 100, "size_variation": 50, "delay": 10}},
		)
		s.publish(200)
		s.acknowledgesAgain()
		s.settle(bounds{faults: 1})
	})
}

func TestWorker_LosesNothingWhenConnectionsAreReset(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		const resets = 3
		far := &network{t: t}
		s := newScene(t, testbroker.Shared(t), retrying().over(far))
		s.publish(100 * resets)
		for range resets {
			s.acknowledgesAgain()
			far.poison(toxic{"reset_peer", map[string]any{"timeout": 0}})
			dials := s.wire.dials()
			s.await(worksWithin, "the worker to connect again", func() bool { return s.wire.dials() > dials })
			far.cure()
		}
		s.acknowledgesAgain()
		s.settle(bounds{faults: resets, duplicates: resets * 2 * prefetch})
	})
}

// A firewall that forgets a connection drops all that is sent on it, and nobody is told.
func TestWorker_GivesUpHalfOpenConnections(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	rounds(t, func(t *testing.T) {
		far := &network{t: t}
		s := newScene(t, testbroker.Shared(t), retrying().over(far))
		s.publish(500)
		s.acknowledgesAgain()
		dials := s.wire.dials()
		far.poison(toxic{"timeout", map[string]any{"timeout": 0}})
		s.worksAgain(func() bool { return s.wire.dials() >= dials+2 }) // both connections
		far.cure()
		s.acknowledgesAgain()
		s.settle(bounds{faults: 1, duplicates: 2 * prefetch})
	})
}
