package topology_test

import (
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// clocks of whoever wrote a time down before this process took over: by how many seconds they were ahead.
var clocks = map[string]int{"years ahead": 3 * 365 * 24 * 3600, "hours ahead": 5 * 3600, "right": 0, "hours behind": -5 * 3600}

func TestRetire_NoWaitBelievesTheClockOfAnotherProcess(t *testing.T) {
	lane := sighting(0, 1)
	lane.Returning, lane.Acked, lane.Counted = true, 4, true
	bound := sighting(0, 1)
	bound.Bound = true
	withLane := topology.DefaultWaits()
	withLane.Grace, withLane.Return = 0, time.Hour
	grace := topology.DefaultWaits()
	for name, ahead := range clocks {
		for stage, c := range map[string]struct {
			state v1alpha1.Retirement
			seen  *topology.QueueObservation
			waits topology.Waits
			wait  time.Duration
			over  time.Duration
			then  topology.Decision
		}{
			"the grace of a lane": {v1alpha1.Retirement{Since: stamp(ahead)}, bound, grace, 10 * time.Minute, 10 * time.Minute, topology.DecisionUnbind},
			"what waits in lanes": {
				v1alpha1.Retirement{Since: stamp(ahead), Unbound: stamp(ahead), Acked: new(int64(4))},
				lane, withLane,
				// The look before the last one shows which counts are from before.
				time.Hour + 5*time.Second, time.Hour + 15*time.Second, topology.DecisionUnbind,
			},
			"the second count": {
				v1alpha1.Retirement{Since: stamp(ahead - 20), Unbound: stamp(ahead - 20), Empty: stamp(ahead), Published: new(int64(1))},
				sighting(0, 1), grace,
				// Before it, what was unbound is left alone once more.
				15 * time.Second, 15 * time.Second, topology.DecisionDelete,
			},
		} {
			c.state.Queue = "test"
			took := at(100) // when this process takes over
			stamps := topology.Stamps(nil).See([]v1alpha1.Retirement{c.state}, nil, took)
			look := func(after time.Duration) (topology.Decision, time.Duration) {
				now := took.Add(after)
				_, decision, wait := topology.Retire(c.state, c.seen, topology.ObservationWindow{Began: now, Ended: now, Stamps: stamps}, c.waits)
				return decision, wait
			}
			// Times are whole seconds: one more where the clock may have been ahead.
			if decision, wait := look(0); decision != topology.DecisionWait || wait < c.wait || wait > c.wait+time.Second {
				t.Errorf("%s, by a clock that was %s: %s for %s, and not for %s", stage, name, decision, wait, c.wait)
			}
			if decision, wait := look(c.over + time.Second); decision != c.then {
				t.Errorf("%s, by a clock that was %s: %s for %s once it is over", stage, name, decision, wait)
			}
		}
	}
}

func TestDrain_NoWaitBelievesTheClockOfAnotherProcess(t *testing.T) {
	seen := map[string]topology.Evidence{"test": sighting(0, 1).Evidence}
	for name, ahead := range clocks {
		states := []v1alpha1.Retirement{{Queue: "test", Since: stamp(ahead - 20), Empty: stamp(ahead), Published: new(int64(1))}}
		stamps := topology.Stamps(nil).See(states, nil, at(100))
		look := func(now int) bool {
			_, drained, _ := topology.Drain(states, seen, false, topology.ObservationWindow{Began: at(now), Ended: at(now), Stamps: stamps},
				topology.DefaultWaits())
			return drained
		}
		if look(100) || look(114) || !look(116) {
			t.Errorf("by a clock that was %s: drained %t, %t, %t", name, look(100), look(114), look(116))
		}
	}
}

func TestStamps_CountFromWhenThisProcessWroteOrSawThem(t *testing.T) {
	state := v1alpha1.Retirement{Queue: "test", Since: stamp(1)}
	step := v1alpha1.Migration{Queue: "test", Step: v1alpha1.MigrationPrepare, Since: stamp(1)}
	stamps := topology.Stamps(nil).See([]v1alpha1.Retirement{state}, []v1alpha1.Migration{step}, at(0))
	stamps = stamps.See([]v1alpha1.Retirement{state}, []v1alpha1.Migration{step}, at(50))
	if left, inStep := stamps.SinceLeft(state, at(60)), stamps.SinceStep(step, at(60)); left != 59*time.Second || inStep != 59*time.Second {
		t.Errorf("a second look made them younger, or older: %s, %s", left, inStep)
	}
	next := step
	next.Step = v1alpha1.MigrationDivert
	if stamps = stamps.See(nil, []v1alpha1.Migration{next}, at(70)); stamps.SinceStep(next, at(80)) != 10*time.Second {
		t.Error("another step has the time of the one before")
	}
	if stamps.SinceLeft(state, at(80)) != 79*time.Second {
		t.Error("a time that nobody has seen counts as it is written")
	}
	counted := stamps.Migrations([]v1alpha1.Migration{next}, at(80))
	if counted[0].Since.Equal(next.Since) || !next.Since.Equal(stamp(1)) {
		t.Errorf("the times from which to count are in the list itself: %v", counted)
	}
}

// Where operators end each night, one that began a wait of a day anew never came to its end.
func TestStamps_BelieveWhatWasWrittenAfterAnHour(t *testing.T) {
	const hour = 3600
	state := v1alpha1.Retirement{Queue: "test", Since: stamp(0)}
	stamps := topology.Stamps(nil).See([]v1alpha1.Retirement{state}, nil, at(23*hour))
	for now, want := range map[int]time.Duration{23*hour + 5: 5 * time.Second, 24*hour - 1: time.Hour - time.Second, 24 * hour: 24 * time.Hour} {
		if passed := stamps.SinceLeft(state, at(now)); passed != want {
			t.Errorf("%d s after a take-over, %s have passed, want %s", now-23*hour, passed, want)
		}
	}
}
