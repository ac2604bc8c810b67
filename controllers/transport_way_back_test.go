package controllers_test

import (
	"slices"
	"testing"

	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// Lanes send what has expired as soon as the exchange is there that they dead-letter to. Until it had its bindings, retries went to the failure queue untried:
// for a second with many queues, and for as long as no operator was there where it was killed in between.
func TestTransport_RetriesComeBackBeforeTheWayBackHasItsBindingsAgain(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{})
	transport := w.ready()
	arrived := func(messages int) func() bool {
		return func() bool { return w.amqp.Ready(testtransport.Queue)+w.amqp.Ready("async.failed") == messages }
	}
	w.deadAt("PUT", "/exchanges/[^/]+/async.return$", true, func() {
		must(t, w.amqp.Channel().ExchangeDelete("async.return", false, false))
	}, func() {
		w.park("1s", "first")
		testtransport.Eventually(t, "the retry to come back", arrived(1))
	})
	w.awaitReady(transport)
	w.awaitNoBridge()
	w.park("1s", "second")
	testtransport.Eventually(t, "the next retry to come back", arrived(2))
	if failed := w.amqp.Ready("async.failed"); failed > 0 {
		t.Errorf("%d retries went to the failure queue untried", failed)
	}
}

// awaitNoBridge waits until the alternate exchange of the way back leads to no queue any more.
func (w *world) awaitNoBridge() {
	w.Helper()
	testtransport.Eventually(w, "the bridge to be removed", func() bool {
		return !slices.ContainsFunc(w.observed().Bindings, func(b topology.Binding) bool { return b.Source == "async.return.alternate" && !b.ToExchange })
	})
}
