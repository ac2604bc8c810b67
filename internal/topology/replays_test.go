package topology_test

import (
	"slices"
	"testing"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

const (
	replayID = "r-0123abcd"
	staging  = "async.replay." + replayID
)

// add puts the objects of a replay beside those of a Transport.
func (b *simulated) add(objects topology.Objects) {
	for _, queue := range objects.Queues {
		b.Queues[queue.Name] = topology.QueueState{Queue: queue}
	}
	for _, policy := range objects.Policies {
		b.Policies[policy.Name] = policy
	}
	b.Bindings = append(b.Bindings, objects.Bindings...)
}

func TestDiff_LetsTheObjectsOfAReplayBe(t *testing.T) {
	names := compile.Names{Prefix: "async"}
	checkDiff(t, []diffCase{
		{name: "of this Transport", broker: func(b *simulated) { b.add(topology.ReplayObjects(names, owner, replayID)) }},
		{
			name: "a binding of others has not the name alone",
			broker: func(b *simulated) {
				b.Queues[staging] = topology.QueueState{Queue: topology.Queue{Name: staging, Type: topology.TypeQuorum, Durable: true}}
				b.Bindings = append(b.Bindings, topology.Binding{Source: "async.return", Destination: staging, RoutingKey: "test"})
			},
			want: expectation{warnings: []string{"this private exchange has a binding of others"}},
		},
	})
}

// Its binding from the return exchange has the mark, as that of a queue that was adopted: a queue let go would lose it in the middle of a replay.
func TestDiff_DoesNotTakeAStagingQueueForOneThatWasAdopted(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.add(topology.ReplayObjects(compile.Names{Prefix: "async"}, owner, replayID))
	if got := topology.Diff(desired(t, async()), broker.Observed, []string{createdExchange}); len(got.Released) > 0 {
		t.Errorf("it lets go %+v", got.Released)
	}
}

func TestReplaysIn_NamesEachUnfinishedReplayOfThePrefix(t *testing.T) {
	broker := emptyBroker()
	names := compile.Names{Prefix: "async"}
	broker.add(topology.ReplayObjects(names, owner, replayID))
	broker.add(topology.ReplayObjects(names, owner, "r-00000001"))
	broker.add(topology.ReplayObjects(compile.Names{Prefix: "other"}, owner, "r-00000002"))
	delete(broker.Queues, names.Staging("r-00000001"))
	if got := topology.ReplaysIn(broker.Observed, names); !slices.Equal(got, []string{"r-00000001", replayID}) {
		t.Errorf("got %v", got)
	}
}

// While messages are staged, a Transport is not deleted, and no policy of others may drop them. What was told of them goes after them.
func TestBelongingsOf_HasTheQueuesOfReplays(t *testing.T) {
	broker := emptyBroker()
	broker.converge(desired(t, async()))
	broker.add(topology.ReplayObjects(compile.Names{Prefix: "async"}, owner, replayID))
	broker.queue(staging, func(q *topology.QueueState) { q.Messages = new(int64(3)) })

	got := topology.BelongingsOf(owner, "async", broker.Observed, []string{createdExchange})
	contains(t, "failure", namesOf(got.Failure), []string{"async.failed"})
	contains(t, "staged", namesOf(got.Staged), []string{staging})
	contains(t, "logs", namesOf(got.Logs), []string{staging + ".log"})
	for _, policy := range got.Policies {
		if policy.Name == "redrive.async:replay:"+replayID {
			t.Errorf("the policy %s goes before the messages", policy.Name)
		}
	}
	other := topology.BelongingsOf("test/default/other", "other", broker.Observed, nil)
	if !other.Empty() {
		t.Errorf("another Transport has some of it: %+v", other)
	}
}

func namesOf(queues []topology.QueueState) (names []string) {
	for _, queue := range queues {
		names = append(names, queue.Name)
	}
	return names
}
