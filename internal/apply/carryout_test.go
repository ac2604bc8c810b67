package apply

import (
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// Workers that have not read yet that a quarantine queue is gone put what is delivered again there. A renaming to a strictly ordered queue that was
// taken back at once found the way to it gone, and those messages failed untried.
func TestRun_TheQuarantineQueueOfAWorkQueueThatGoesOnHasAGrace(t *testing.T) {
	for name, c := range map[string]struct {
		desired    string
		migrations []topology.Migration
		want       time.Duration
	}{
		"its work queue goes on":    {desired: "test", want: time.Minute},
		"its work queue is gone":    {desired: "other"},
		"its work queue is renamed": {desired: "orders", migrations: []topology.Migration{{Queue: "orders", Standin: "test"}}, want: time.Minute},
		"another one is renamed":    {desired: "orders", migrations: []topology.Migration{{Queue: "orders", Standin: "other"}}},
	} {
		t.Run(name, func(t *testing.T) {
			quarantine := topology.QueueState{Queue: topology.Queue{Name: "test.quarantine", Arguments: topology.Arguments{"redrive-quarantine-of": "test"}}}
			r := &run{Prepared: Prepared{
				input: Input{
					Waits: topology.Waits{Grace: time.Minute}, Desired: topology.Objects{Queues: []topology.Queue{{Name: c.desired}}},
				},
				observed:   topology.Observed{Queues: map[string]topology.QueueState{"test.quarantine": quarantine}},
				Difference: topology.Difference{Migrations: c.migrations},
			}}
			if got := r.waits("test.quarantine").Grace; got != c.want {
				t.Errorf("its grace is %s, want %s", got, c.want)
			}
		})
	}
}

// Only queues that a configuration names were asked, and none names a stand-in, or the quarantine queue of a queue that is gone. Their way back from the
// lanes was unbound while workers retried what was in them, and the retries failed.
func TestRun_WhatIsAcknowledgedInAQueueCountsWhoeverIsToldToReadIt(t *testing.T) {
	queue := func(name string, unacked, acked int64, arguments topology.Arguments) topology.QueueState {
		return topology.QueueState{
			Queue: topology.Queue{Name: name, Arguments: arguments}, Evidence: topology.Evidence{Messages: &unacked}, Unacked: unacked, Acked: acked,
		}
	}
	observed := map[string]topology.QueueState{}
	for _, q := range []topology.QueueState{
		queue("test", 0, 3, nil), queue("test.migrating", 2, 5, topology.Arguments{"redrive-migration-of": "test"}),
		queue("test.quarantine", 0, 7, topology.Arguments{"redrive-quarantine-of": "test"}), queue("other", 1, 1, nil),
	} {
		observed[q.Name] = q
	}
	r := &run{Prepared: Prepared{consumed: []string{"test"}, observed: topology.Observed{Queues: observed}}}
	for name, want := range map[string]struct {
		feeding bool
		acked   int64
	}{"test": {true, 15}, "test.migrating": {true, 15}, "test.quarantine": {false, 7}} {
		if feed := r.feeds(observed[name]); feed.Feeding != want.feeding || feed.Acked != want.acked {
			t.Errorf("%s: %+v, want %+v", name, feed, want)
		}
	}
	standin := observed["test.migrating"]
	standin.Unacked = 0
	observed[standin.Name] = standin
	if r.feeds(observed["test"]).Feeding {
		t.Error("test waits for messages that workers have only when it is gone")
	}
}

// A lane that a full queue stops brings back its retries when it goes on, long after their delay: those of a queue that had left meanwhile failed uncalled.
func TestRun_WhatAStalledLaneHoldsFeedsAQueueThatLeaves(t *testing.T) {
	now, some, none := time.Now(), int64(40), int64(0)
	mine := topology.Arguments{topology.OwnerArgument: "c1/shop/async", "x-message-ttl": int64(1000), "x-dead-letter-exchange": "async.return"}
	stalled := topology.QueueState{
		Queue: topology.Queue{Name: "async.fallback.1s", Arguments: mine}, Evidence: topology.Evidence{Messages: &some, Published: 40}, MessagesDLX: 40,
	}
	left, moves, moved, theirs := stalled, stalled, stalled, stalled
	left.MessagesDLX, left.Messages = 0, &none
	moves.Published = 70
	moved.Messages = &none
	theirs.Arguments = topology.Arguments{"x-message-ttl": int64(1000)}
	work := topology.QueueState{Queue: topology.Queue{Name: "test"}, Evidence: topology.Evidence{Messages: &none}}
	for name, c := range map[string]struct {
		lane    topology.QueueState
		looked  time.Duration
		feeding bool
	}{
		"none has left since the last look": {stalled, 5 * time.Second, true}, "the last look was this one": {stalled, time.Second, false},
		"all have left": {left, 5 * time.Second, false}, "some go and others come": {moves, 5 * time.Second, false}, "they have just left": {moved, 5 * time.Second, false},
		"it is somebody else's": {theirs, 5 * time.Second, false},
	} {
		known := stuckQueue{}.look(stalled, now.Add(-c.looked))
		r := &run{Prepared: Prepared{
			input:    Input{Desired: topology.Objects{Owner: "c1/shop/async", Prefix: "async"}, State: State{Memory: Memory{Stuck: Stuck{queues: map[string]stuckQueue{stalled.Name: known}}}}},
			observed: topology.Observed{Queues: map[string]topology.QueueState{c.lane.Name: c.lane, "test": work}}, clock: func() time.Time { return now },
		}}
		if feed := r.feeds(work); feed.Feeding != c.feeding {
			t.Errorf("%s: feeding %t", name, feed.Feeding)
		}
	}
}

// A quarantined message that fails without a crash is retried in its work queue. Once that had left the spec and looked empty, its way back was unbound, and
// it was deleted: the message came to the failure queue after one attempt.
func TestRun_WhatIsQuarantinedFeedsTheWorkQueueThatLeaves(t *testing.T) {
	one, none := int64(1), int64(0)
	quarantine := topology.QueueState{
		Queue:    topology.Queue{Name: "test.quarantine", Arguments: topology.Arguments{"redrive-quarantine-of": "test"}},
		Evidence: topology.Evidence{Messages: &one}, Acked: 4,
	}
	emptied, uncounted, forged := quarantine, quarantine, quarantine
	emptied.Messages, uncounted.Messages, forged.Name = &none, nil, "theirs"
	work := topology.QueueState{Queue: topology.Queue{Name: "test"}, Evidence: topology.Evidence{Messages: &none}, Acked: 1}
	standin, heir, other := work, work, work
	heir.Name, other.Name = "orders", "other"
	standin.Name, standin.Arguments = "test.migrating", topology.Arguments{"redrive-migration-of": "test"}
	leaves := topology.Objects{Prefix: "async"}
	stays := topology.Objects{Prefix: "async", Queues: []topology.Queue{work.Queue}}
	for name, c := range map[string]struct {
		seen, quarantine topology.QueueState
		desired          topology.Objects
		feeding          bool
		acked            int64
	}{
		"it holds one":                {work, quarantine, leaves, true, 5},
		"of a stand-in":               {standin, quarantine, leaves, true, 5},
		"of a former name":            {heir, quarantine, leaves, true, 5},
		"of another queue":            {other, quarantine, leaves, false, 1},
		"of one whose queue stays":    {standin, quarantine, stays, false, 1},
		"it is empty":                 {work, emptied, leaves, false, 5},
		"it is not counted":           {work, uncounted, leaves, true, 5},
		"another one has its mark":    {work, forged, leaves, false, 1},
		"there is none of that queue": {work, topology.QueueState{}, leaves, false, 1},
	} {
		r := &run{Prepared: Prepared{
			input: Input{Desired: c.desired},
			observed: topology.Observed{
				Queues: map[string]topology.QueueState{c.quarantine.Name: c.quarantine},
				Bindings: []topology.Binding{
					{Source: "async.return.alternate", Destination: "orders", RoutingKey: "test"}, {Source: "async", Destination: "other", RoutingKey: "test"},
				},
			},
		}}
		if feed := r.feeds(c.seen); feed.Feeding != c.feeding || feed.Acked != c.acked {
			t.Errorf("%s: %+v, want %t, %d", name, feed, c.feeding, c.acked)
		}
	}
}

func TestReport_UnreachableIsAQuarantineQueueThatWorkersWouldBeToldOf(t *testing.T) {
	binding := topology.Binding{Source: "async.return", Destination: "test.quarantine", RoutingKey: "test.quarantine"}
	withheld := Report{Withheld: []topology.Withheld{{Binding: binding}}}
	strict, quarantined := compile.Queue{Name: "test", Strict: v1alpha1.OnFailureBlock}, compile.Queue{Name: "test", Quarantine: "test.quarantine"}
	diverted := quarantined
	diverted.Name, diverted.Standin = "orders", "test"
	for name, c := range map[string]struct {
		report     Report
		last, next compile.Queue
		want       string
	}{
		"its binding is withheld":    {withheld, strict, quarantined, "test.quarantine"},
		"its binding was not tried":  {Report{Skipped: []topology.Step{{Action: topology.ActionCreate, Binding: &binding}}}, strict, quarantined, "test.quarantine"},
		"of a queue that is renamed": {withheld, strict, diverted, "test.quarantine"},
		"a binding is not removed":   {Report{Skipped: []topology.Step{{Action: topology.ActionDelete, Binding: &binding}}}, strict, quarantined, ""},
		"something leads into it":    {Report{}, strict, quarantined, ""},
		"workers know of it":         {withheld, quarantined, quarantined, ""},
		"they do not consume that":   {withheld, compile.Queue{Name: "other"}, quarantined, ""},
		"they are to know of none":   {withheld, quarantined, strict, ""},
		"another one has no way yet": {Report{Withheld: []topology.Withheld{{Binding: topology.Binding{Destination: "other.quarantine"}}}}, strict, quarantined, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.report.Unreachable(compile.Config{Queues: []compile.Queue{c.last}}, compile.Config{Queues: []compile.Queue{c.next}})
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Once a list of the management API had lacked a queue that workers were to empty, they let go of it, and no later configuration named it.
func TestRun_LeavingHoldsAQueueThatAListLacks(t *testing.T) {
	work := topology.QueueState{Queue: topology.Queue{Name: "test", Role: topology.RoleWork}}
	for name, c := range map[string]struct {
		observed   map[string]topology.QueueState
		difference topology.Difference
		want       []string
	}{
		"the list lacks it":          {nil, topology.Difference{}, []string{"test"}},
		"the list lacks it, adopted": {nil, topology.Difference{Released: []topology.ReleasedQueue{{Queue: "test"}}}, nil},
		"it is emptied to be made with other arguments": {
			nil, topology.Difference{Migrations: []topology.Migration{{Queue: "test", Drains: "test"}}}, nil,
		},
		"it is wanted again": {map[string]topology.QueueState{"test": work}, topology.Difference{}, nil},
	} {
		r := &run{Prepared: Prepared{observed: topology.Observed{Queues: c.observed}, Difference: c.difference}}
		r.report.Retiring = []v1alpha1.Retirement{{Queue: "test"}}
		if got := r.leaving(); !slices.Equal(got, c.want) {
			t.Errorf("%s: workers are to empty %v, want %v", name, got, c.want)
		}
	}
}

// A queue that was adopted, with messages in it, while its quarantine queue could not be made: what was delivered again went to the failure queue untried.
func TestReport_HoldsANewQueueWithoutAWayIntoItsQuarantineQueue(t *testing.T) {
	config := compile.Config{Queues: []compile.Queue{{Name: "test", Quarantine: "test.quarantine"}, {Name: "other", Quarantine: "other.quarantine"}}}
	report := Report{Withheld: []topology.Withheld{{Binding: topology.Binding{Source: "async.return", Destination: "test.quarantine"}}}}
	if holds := report.Holds(config, nil); len(holds) != 1 || holds["test"] != compile.HoldCutOff {
		t.Errorf("on hold are %v", holds)
	}
	if holds := report.Holds(config, []compile.Config{config}); len(holds) > 0 {
		t.Errorf("what workers consume already is on hold: %v", holds)
	}
}
