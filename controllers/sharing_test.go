package controllers_test

import (
	"fmt"
	"testing"
	"time"

	"redrive.dev/redrive/internal/testtransport"
)

func TestTransportsOfOneVhostCostOneSnapshotForEachPoll(t *testing.T) {
	t.Parallel()
	w := newPrivateWorld(t, &operator{poll: 6 * time.Second})
	const users, polls, readsOfASnapshot = 6, 3, 5
	w.create(w.policy("policy", time.Second))
	for i := range users {
		transport, name := w.transport(), fmt.Sprintf("shared-%d", i)
		transport.Name, transport.Spec.Exchange.Name = name, name
		for q := range transport.Spec.Queues {
			transport.Spec.Queues[q].Name = name + "." + transport.Spec.Queues[q].Name
		}
		*transport.Spec.Exchange.UnroutedTo = name + ".lost"
		w.create(transport)
		w.awaitReady(transport)
	}
	quiet := -1
	testtransport.Eventually(t, "nothing to be written any more", func() bool {
		before := quiet
		quiet = len(w.operator.writes.of(w.namespace)) + int(w.proxy.writes.Load())
		w.awaitLooks(2)
		return before == quiet
	})

	reads, looks := w.proxy.reads.Load(), w.operator.reconciles(w.T, "transport")
	testtransport.Eventually(t, "some polls", func() bool {
		return w.operator.reconciles(w.T, "transport") >= looks+polls*users
	})
	looks = w.operator.reconciles(w.T, "transport") - looks
	snapshots := float64(w.proxy.reads.Load()-reads) / readsOfASnapshot
	// One round may have been half over at either end.
	if most := float64(looks)/users + 2; snapshots > most {
		t.Errorf("%.1f snapshots for %d looks of %d Transports", snapshots, looks, users)
	}
	t.Logf("%.1f snapshots for %d looks of %d Transports", snapshots, looks, users)
}
