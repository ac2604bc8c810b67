package topology_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds int) time.Time       { return start.Add(time.Duration(seconds) * time.Second) }
func stamp(seconds int) *metav1.Time { return &metav1.Time{Time: at(seconds)} }

// instant is a look at a broker that answers at once.
func instant(seconds int) topology.ObservationWindow {
	return topology.ObservationWindow{Began: at(seconds), Ended: at(seconds)}
}

func sighting(messages, published int64) *topology.QueueObservation {
	return &topology.QueueObservation{Evidence: topology.Evidence{Messages: &messages, Published: published}}
}

func TestRetire_DecidesWhatIsDueAtEachLook(t *testing.T) {
	waits := topology.DefaultWaits()
	noGrace := waits
	noGrace.Grace = 0
	bound := sighting(0, 0)
	bound.Bound = true
	uncounted := sighting(0, 0)
	uncounted.Messages = nil
	returning, returned, uncountedReturning := sighting(0, 0), sighting(2, 0), sighting(0, 0)
	returning.Returning, returned.Returning, uncountedReturning.Returning = true, true, true
	uncountedReturning.Messages = nil
	returning.Acked, returned.Acked, uncountedReturning.Acked = 4, 4, 4
	returning.Counted = true
	late, countedBefore := *returning, *returning
	late.Tick, countedBefore.Counted = 100, false
	feeding := sighting(2, 0)
	feeding.Returning, feeding.Feeding, feeding.Acked = true, true, 4
	oneMinuteLane := noGrace
	oneMinuteLane.Return = time.Minute
	cases := []struct {
		name     string
		state    v1alpha1.Retirement
		seen     *topology.QueueObservation
		now      int
		waits    topology.Waits
		decision topology.Decision
		wait     time.Duration
		unbound  *metav1.Time
		empty    *metav1.Time
	}{
		{"a new one waits for its grace", v1alpha1.Retirement{}, bound, 0, waits, topology.DecisionWait, 10 * time.Minute, nil, nil},
		{"the grace is not over", v1alpha1.Retirement{Since: stamp(0)}, bound, 599, waits, topology.DecisionWait, time.Second, nil, nil},
		{"the grace is over", v1alpha1.Retirement{Since: stamp(0)}, bound, 600, waits, topology.DecisionUnbind, 15 * time.Second, nil, nil},
		{"without grace it is unbound at once", v1alpha1.Retirement{}, bound, 0, noGrace, topology.DecisionUnbind, 15 * time.Second, nil, nil},
		{
			"what nothing leads to counts as unbound from now",
			v1alpha1.Retirement{},
			sighting(0, 0), 0, noGrace,
			topology.DecisionWait, 15 * time.Second, stamp(0), nil,
		},
		{
			"it is not counted too early",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0)},
			sighting(0, 0), 14, noGrace,
			topology.DecisionWait, time.Second, stamp(0), nil,
		},
		{
			"the first count",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0)},
			sighting(0, 7), 15, noGrace,
			topology.DecisionWait, 10 * time.Second, stamp(0), stamp(15),
		},
		{
			"the second count comes too early",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Empty: stamp(15), Published: new(int64(7))},
			sighting(0, 7), 24, noGrace, topology.DecisionWait, time.Second, stamp(0), stamp(15),
		},
		{
			"the second count",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Empty: stamp(15), Published: new(int64(7))},
			sighting(0, 7), 25, noGrace, topology.DecisionDelete, 0, stamp(0), stamp(15),
		},
		{
			"something was published in between",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Empty: stamp(15), Published: new(int64(7))},
			sighting(0, 8), 25, noGrace, topology.DecisionWait, 10 * time.Second, stamp(0), stamp(25),
		},
		{
			"the broker's count began again",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Empty: stamp(15), Published: new(int64(7))},
			sighting(0, 0), 25, noGrace, topology.DecisionWait, 10 * time.Second, stamp(0), stamp(25),
		},
		{
			"messages are in it",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Empty: stamp(15), Published: new(int64(7))},
			sighting(3, 7), 25, noGrace, topology.DecisionHold, 10 * time.Second, stamp(0), nil,
		},
		{
			"the broker has not counted",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Empty: stamp(15), Published: new(int64(0))},
			uncounted, 25, noGrace, topology.DecisionUncounted, 10 * time.Second, stamp(0), nil,
		},
		{
			"somebody bound it again: what was counted is forgotten before the binding goes",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Empty: stamp(15), Published: new(int64(0))},
			bound, 25, noGrace, topology.DecisionWait, time.Second, nil, nil,
		},
		{
			"it is unbound again, now that this is forgotten",
			v1alpha1.Retirement{Since: stamp(0)},
			bound, 26, noGrace, topology.DecisionUnbind, 15 * time.Second, nil, nil,
		},
		{
			"lanes hold messages that may come back",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Acked: new(int64(4))},
			returning, 74, oneMinuteLane, topology.DecisionWait, time.Second, stamp(0), nil,
		},
		{
			"nobody handles what is in it, while lanes hold messages that may come back",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Acked: new(int64(4))},
			returned, 15, oneMinuteLane, topology.DecisionHold, time.Minute, stamp(0), nil,
		},
		{
			"what was in it when it was unbound may be handled by now",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Acked: new(int64(4))},
			returned, 14, oneMinuteLane, topology.DecisionWait, 51 * time.Second, stamp(0), nil,
		},
		{
			"all have come back, and nobody has handled them",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Acked: new(int64(4))},
			returned, 75, oneMinuteLane, topology.DecisionHold, 10 * time.Second, stamp(0), nil,
		},
		{
			"all have come back and are handled: the way back goes",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Acked: new(int64(4))},
			returning, 75, oneMinuteLane, topology.DecisionUnbind, 15 * time.Second, nil, nil,
		},
		{
			"all are handled by a count from before: the way back stays until the next one",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Tick: new(int64(100)), Acked: new(int64(4))},
			&late, 75, oneMinuteLane, topology.DecisionUncounted, 10 * time.Second, stamp(0), nil,
		},
		{
			"all are handled, but a lane was counted before what it had last could come back: the way back stays until its next count",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Acked: new(int64(4))},
			&countedBefore, 75, oneMinuteLane, topology.DecisionUncounted, 10 * time.Second, stamp(0), nil,
		},
		{
			"what may still come back is not counted before the broker counts it",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Acked: new(int64(4))},
			uncountedReturning, 75, oneMinuteLane, topology.DecisionUncounted, 10 * time.Second, stamp(0), nil,
		},
		{
			"lanes hold messages that cannot come back any more",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(80)},
			sighting(0, 0), 95, oneMinuteLane, topology.DecisionWait, 10 * time.Second, stamp(80), stamp(95),
		},
		{
			"somebody bound the way back again: what was counted is forgotten before it goes",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(80), Empty: stamp(95), Published: new(int64(0)), Acked: new(int64(4))},
			returning, 160, oneMinuteLane, topology.DecisionWait, time.Second, nil, nil,
		},
		{
			"workers have messages that may go into lanes: the wait begins when they have none",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Acked: new(int64(4))},
			feeding, 75, oneMinuteLane, topology.DecisionHold, 10 * time.Second, nil, nil,
		},
		{
			"a message has gone through the workers since the last look",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0), Acked: new(int64(3))},
			returning, 75, oneMinuteLane, topology.DecisionWait, 10 * time.Second, nil, nil,
		},
		{
			"none has since: the wait begins",
			v1alpha1.Retirement{Since: stamp(0), Acked: new(int64(4))},
			returning, 85, oneMinuteLane, topology.DecisionWait, 65 * time.Second, stamp(85), nil,
		},
		{
			"an earlier build has noted no number: the wait begins again",
			v1alpha1.Retirement{Since: stamp(0), Unbound: stamp(0)},
			returning, 75, oneMinuteLane, topology.DecisionWait, 10 * time.Second, nil, nil,
		},
		{"it is gone", v1alpha1.Retirement{Since: stamp(0)}, nil, 25, waits, topology.DecisionDone, 0, nil, nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			next, decision, wait := topology.Retire(c.state, c.seen, instant(c.now), c.waits)
			if decision != c.decision || wait != c.wait {
				t.Errorf("want %s after %s, got %s after %s", c.decision, c.wait, decision, wait)
			}
			if !next.Unbound.Equal(c.unbound) || !next.Empty.Equal(c.empty) {
				t.Errorf("want unbound %v, empty %v; got %v, %v", c.unbound, c.empty, next.Unbound, next.Empty)
			}
			if next.Since == nil {
				t.Error("since is not kept")
			}
		})
	}
}

func TestRetire_RoundsTimesUpToWholeSeconds(t *testing.T) {
	next, _, _ := topology.Retire(v1alpha1.Retirement{}, sighting(0, 0),
		topology.ObservationWindow{Began: start, Ended: start.Add(time.Millisecond)}, topology.Waits{})
	if !next.Unbound.Time.Equal(at(1)) {
		t.Errorf("whole seconds are rounded up, got %v", next.Unbound)
	}
}

func TestDrain_NeedsAllQueuesEmptyTogether(t *testing.T) {
	type look struct {
		name    string
		now     int
		test    topology.QueueObservation
		lane    topology.QueueObservation
		cut     bool
		drained bool
		wait    time.Duration
	}
	empty, one := *sighting(0, 1), *sighting(1, 1)
	looks := []look{
		{"the ways in were just cut", 0, empty, empty, true, false, 15 * time.Second},
		{"too early to count", 14, empty, empty, false, false, time.Second},
		{"a message waits in the lane", 15, empty, one, false, false, 10 * time.Second},
		{"it is back in its queue while the lane is empty", 25, one, empty, false, false, 10 * time.Second},
		{"first count", 35, empty, empty, false, false, 10 * time.Second},
		{"one has come back from the lane, which counts as no publish", 45, one, empty, false, false, 10 * time.Second},
		{"first count again", 55, empty, empty, false, false, 10 * time.Second},
		{"a message ran through in between", 65, *sighting(0, 2), empty, false, false, 10 * time.Second},
		{"too early for the second count", 70, *sighting(0, 2), empty, false, false, 5 * time.Second},
		{"second count", 75, *sighting(0, 2), empty, false, true, 0},
		{"somebody bound a queue again", 76, *sighting(0, 2), empty, true, false, 15 * time.Second},
	}
	var states []v1alpha1.Retirement
	for _, l := range looks {
		next, drained, wait := topology.Drain(states, map[string]topology.Evidence{"test": l.test.Evidence, "lane": l.lane.Evidence}, l.cut, instant(l.now),
			topology.DefaultWaits())
		if drained != l.drained || wait != l.wait {
			t.Errorf("%s: want drained %v after %s, got %v after %s", l.name, l.drained, l.wait, drained, wait)
		}
		states = next
	}
}

func TestRetire_KeepsItsWaitsWithASlowBroker(t *testing.T) {
	waits := topology.DefaultWaits()
	// Each look takes 20 s, and the next begins when the last has ended.
	look := func(began int) topology.ObservationWindow {
		return topology.ObservationWindow{Began: at(began), Ended: at(began + 20)}
	}
	state, decision, wait := topology.Retire(v1alpha1.Retirement{Since: stamp(0)}, sighting(0, 0), look(600), waits)
	if decision != topology.DecisionWait || wait != waits.Unbound || !state.Unbound.Equal(stamp(620)) {
		t.Fatalf("%s for %s, unbound %v", decision, wait, state.Unbound)
	}
	if _, decision, wait = topology.Retire(state, sighting(0, 0), look(621), waits); decision != topology.DecisionWait || wait != 14*time.Second {
		t.Errorf("%s for %s, one second after it was seen unbound", decision, wait)
	}
	state, _, _ = topology.Retire(state, sighting(0, 0), look(635), waits)
	if !state.Empty.Equal(stamp(655)) {
		t.Fatalf("first seen empty at %v", state.Empty)
	}
	if _, decision, _ = topology.Retire(state, sighting(0, 0), look(656), waits); decision != topology.DecisionWait {
		t.Errorf("%s one second after the first count", decision)
	}
	if _, decision, _ = topology.Retire(state, sighting(0, 0), look(665), waits); decision != topology.DecisionDelete {
		t.Errorf("%s ten seconds after the first count", decision)
	}

	seen := map[string]topology.Evidence{"test": sighting(0, 0).Evidence}
	states, drained, _ := topology.Drain(nil, seen, true, look(0), waits)
	states, drained2, _ := topology.Drain(states, seen, false, look(35), waits)
	_, drained3, _ := topology.Drain(states, seen, false, look(56), waits)
	if drained || drained2 || drained3 {
		t.Error("drained one second after the first count")
	}
}

func TestDrain_TakesOverNoEarlierCounts(t *testing.T) {
	waits := topology.DefaultWaits()
	old := v1alpha1.Retirement{Queue: "test", Since: stamp(0), Unbound: stamp(0), Empty: stamp(15), Published: new(int64(0))}
	states, drained, _ := topology.Drain([]v1alpha1.Retirement{old}, map[string]topology.Evidence{"test": sighting(0, 0).Evidence}, false,
		instant(100), waits)
	if drained || states[0].Unbound != nil || states[0].Empty != nil {
		t.Errorf("counts from before the deletion were taken over: %+v", states[0])
	}
	if _, decision, _ := topology.Retire(states[0], sighting(0, 0), instant(200), waits); decision != topology.DecisionWait {
		t.Errorf("%s at the first look without workers", decision)
	}
}

func TestRetire_WaitsAgainForTheCountOfAnotherLeader(t *testing.T) {
	noGrace := topology.DefaultWaits()
	noGrace.Grace = 0
	by := func(leader string) *topology.QueueObservation {
		seen := sighting(0, 0)
		seen.Leader = leader
		return seen
	}
	state := v1alpha1.Retirement{Queue: "test"}
	for _, look := range []struct {
		now      int
		leader   string
		decision topology.Decision
	}{
		{0, "a", topology.DecisionWait},
		{15, "a", topology.DecisionWait}, // counted for the first time
		{25, "b", topology.DecisionWait},
		{39, "b", topology.DecisionWait},
		{40, "b", topology.DecisionWait},
		{50, "", topology.DecisionWait},
		{51, "b", topology.DecisionWait},
		{66, "b", topology.DecisionWait},
		{75, "b", topology.DecisionWait},
		{76, "b", topology.DecisionDelete},
	} {
		next, decision, _ := topology.Retire(state, by(look.leader), instant(look.now), noGrace)
		if decision != look.decision || next.Leader != look.leader {
			t.Errorf("after %d s by %q: %s, %+v", look.now, look.leader, decision, next)
		}
		state = next
	}
	states, _, _ := topology.Drain(nil, map[string]topology.Evidence{"test": by("a").Evidence}, true, instant(0), noGrace)
	for _, look := range []struct {
		now     int
		leader  string
		drained bool
	}{{15, "a", false}, {25, "b", false}, {40, "b", false}, {50, "b", true}} {
		var drained bool
		states, drained, _ = topology.Drain(states, map[string]topology.Evidence{"test": by(look.leader).Evidence}, false, instant(look.now), noGrace)
		if drained != look.drained {
			t.Errorf("after %d s by %q it is drained: %v", look.now, look.leader, drained)
		}
	}
}

func TestRetire_UsesACountOnceItsLeaderHasCountedAgain(t *testing.T) {
	noGrace := topology.DefaultWaits()
	noGrace.Grace = 0
	counted := func(tick int64, messages int64) *topology.QueueObservation {
		seen := sighting(messages, 0)
		seen.Leader, seen.Tick = "a", tick
		return seen
	}
	bound := counted(100, 0)
	bound.Bound = true
	state := v1alpha1.Retirement{Queue: "test"}
	for _, look := range []struct {
		now      int
		seen     *topology.QueueObservation
		decision topology.Decision
	}{
		{0, bound, topology.DecisionUnbind},
		{1, counted(100, 0), topology.DecisionWait}, // unbound; the count is from before
		{14, counted(100, 0), topology.DecisionWait},
		{15, counted(100, 0), topology.DecisionUncounted}, // it still is
		{61, counted(200, 0), topology.DecisionWait},      // it may be from between the unbinding and the look at 1 s, and is the first
		{75, counted(200, 0), topology.DecisionUncounted}, // not counted since
		{121, counted(300, 20), topology.DecisionHold},    // what came in directly before the unbinding
		{131, counted(300, 20), topology.DecisionHold},
		{181, counted(400, 0), topology.DecisionWait},
		{191, counted(400, 0), topology.DecisionUncounted},
		{241, counted(500, 0), topology.DecisionDelete},
	} {
		next, decision, _ := topology.Retire(state, look.seen, instant(look.now), noGrace)
		if decision != look.decision {
			t.Errorf("after %d s: %s, want %s; %+v", look.now, decision, look.decision, next)
		}
		if decision == topology.DecisionUnbind {
			next.Unbound = stamp(look.now)
		}
		state = next
	}
}

func TestDrain_NeedsCountsThatFollowTheCut(t *testing.T) {
	noGrace := topology.DefaultWaits()
	by := func(tick int64) map[string]topology.Evidence {
		evidence := sighting(0, 0).Evidence
		evidence.Leader, evidence.Tick = "a", tick
		return map[string]topology.Evidence{"test": evidence, "classic": sighting(0, 0).Evidence}
	}
	states, _, _ := topology.Drain(nil, by(100), true, instant(0), noGrace)
	for _, look := range []struct {
		now     int
		tick    int64
		drained bool
	}{{15, 100, false}, {25, 100, false}, {61, 200, false}, {71, 200, false}, {121, 300, true}} {
		var drained bool
		if states, drained, _ = topology.Drain(states, by(look.tick), false, instant(look.now), noGrace); drained != look.drained {
			t.Errorf("after %d s it is drained: %v", look.now, drained)
		}
	}
}

func TestEvidence_FollowsNoTickThatNobodyNoted(t *testing.T) {
	quorum, classic := topology.Evidence{Tick: 100}, topology.Evidence{}
	if quorum.Follows(nil) || quorum.Follows(new(int64(100))) || !quorum.Follows(new(int64(99))) || !classic.Follows(nil) {
		t.Error("a count is taken for one that was made since, and may be from before")
	}
}
