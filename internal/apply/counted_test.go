package apply

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// A lane that its leader counts every minute showed none, while the retry of a queue on its way out was in it: the way back was unbound, and an hour later the
// retry failed uncalled.
func TestRun_NoCountIsBelievedThatIsOlderThanWhatMayComeBack(t *testing.T) {
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	mine := topology.Arguments{topology.OwnerArgument: "c1/shop/async", "x-message-ttl": int64(1000), "x-dead-letter-exchange": "async.return"}
	queue := func(name string, tick int64, arguments topology.Arguments) topology.QueueState {
		return topology.QueueState{
			Queue: topology.Queue{Name: name, Arguments: arguments}, Evidence: topology.Evidence{Messages: new(int64), Leader: "rabbit@one", Tick: tick},
		}
	}
	uncounted := queue("test.quarantine", 5, topology.Arguments{"redrive-quarantine-of": "test"})
	uncounted.Messages = nil
	type look struct {
		at                     int
		unbound                *metav1.Time
		work, quarantine, lane topology.QueueState
		counted                bool
	}
	work := func(tick int64) topology.QueueState { return queue("test", tick, nil) }
	quarantine := func(tick int64) topology.QueueState {
		return queue("test.quarantine", tick, topology.Arguments{"redrive-quarantine-of": "test"})
	}
	lane := func(tick int64) topology.QueueState { return queue("async.fallback.1s", tick, mine) }
	moved := lane(9)
	moved.Leader = "rabbit@two"
	holds := lane(14)
	holds.Messages, holds.Arguments = new(int64(1)), topology.Arguments{
		topology.OwnerArgument: "c1/shop/async", "x-message-ttl": int64(15_000), "x-dead-letter-exchange": "async.return",
	}
	held := holds
	held.Tick++
	quiet, again := &metav1.Time{Time: start}, &metav1.Time{Time: at(100)}
	var counted Counted
	for _, l := range []look{
		{0, nil, work(1), quarantine(1), lane(1), false},
		{10, quiet, work(2), quarantine(2), lane(1), false},
		{20, quiet, work(3), quarantine(3), lane(1), false}, // the lane has not been counted
		{30, quiet, work(4), quarantine(4), lane(2), true},
		{40, quiet, work(5), uncounted, lane(4), false},
		{50, quiet, work(6), quarantine(6), lane(5), false},
		{60, quiet, work(7), quarantine(7), lane(6), true},
		{70, quiet, work(8), quarantine(8), moved, false}, // what another leader shows may be from before
		{80, quiet, work(9), quarantine(9), lane(10), false},
		{90, quiet, work(0), quarantine(10), lane(11), true},  // a classic queue
		{100, nil, work(11), quarantine(11), lane(12), false}, // the wait begins again
		{110, again, work(12), quarantine(12), lane(13), true},
		{120, again, work(13), quarantine(13), holds, false}, // what it holds comes back until 115
		{130, again, work(14), quarantine(14), held, true},
	} {
		r := &run{quiet: map[string]time.Time{}, Prepared: Prepared{
			input: Input{Now: at(l.at), Desired: topology.Objects{Owner: "c1/shop/async", Prefix: "async"}, State: State{Memory: Memory{Counted: counted}}},
			observed: topology.Observed{Queues: map[string]topology.QueueState{
				"test": l.work, "test.quarantine": l.quarantine, "async.fallback.1s": l.lane,
			}},
		}}
		r.count(map[string]v1alpha1.Retirement{"test": {Unbound: l.unbound}, "test.quarantine": {}, "async.fallback.1s": {}})
		counted = r.report.Counted
		if got := r.feeds(l.work).Counted; got != l.counted {
			t.Errorf("at %d s: counted %t, want %t", l.at, got, l.counted)
		}
	}
	r := &run{Prepared: Prepared{input: Input{State: State{Memory: Memory{Counted: counted}}}}}
	if r.count(nil); r.report.Counted != nil {
		t.Error("it is kept although no queue is on its way out")
	}
}
