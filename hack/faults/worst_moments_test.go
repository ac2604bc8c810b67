package faults

import (
	"testing"
	"time"

	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// moments are the points at which a fault is worst: the message is at two places, or nobody knows at which.
var moments = []struct {
	name string
	at   point
	// plan under which the frame at this point means just that.
	plan plan
}{
	{
		"between handler success and ack",
		point{fromClient, basicAck},
		plan{policy: testtransport.Explicit()},
	},
	{
		"between publish and confirm",
		point{fromBroker, basicAck},
		retrying(),
	},
	{
		// No attempt succeeds: what is acknowledged was published before, to a lane or to the failure exchange.
		"between confirm and ack",
		point{fromClient, basicAck},
		plan{policy: testtransport.Explicit(100 * time.Millisecond), answer: failure},
	},
}

func TestWorker_LosesNoMessageAtTheWorstMoments(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	faults := []struct {
		name string
		// fault of a scene.
		fault func(s *scene) fault
		times int
		// duplicates that one fault can make: what is on loan.
		duplicates int
	}{
		{"the worker is killed", func(s *scene) fault { return s.group.workers[0].killed }, 10, prefetch},
		// A publisher without a session stops the consumer; the next one may take its prefetch before the rest is settled.
		{"the connection is cut", func(*scene) fault { return cut }, 5, 2 * prefetch},
		{"the broker closes the channel", func(*scene) fault { return closeChannel }, 5, 2 * prefetch},
	}
	for _, moment := range moments {
		for _, f := range faults {
			t.Run(moment.name+"/"+f.name, func(t *testing.T) {
				t.Parallel()
				rounds(t, func(t *testing.T) {
					s := newScene(t, testbroker.Shared(t), moment.plan)
					s.publish(100 * f.times)
					for range f.times {
						s.strike(moment.at, f.fault(s))
					}
					s.settle(bounds{faults: f.times, duplicates: f.times * f.duplicates, atLeast: f.times})
				})
			})
		}
	}
}

// strike puts one fault in at the tenth message from now that reaches a point, and waits until messages pass there again.
func (s *scene) strike(at point, f fault) {
	s.t.Helper()
	trap := s.wire.set(at, 10, f)
	s.await(worksWithin, "the fault", func() bool {
		select {
		case <-trap.sprung:
			return true
		default:
			return false
		}
	})
	before := s.wire.count(at)
	s.group.revive()
	s.worksAgain(func() bool { return s.wire.count(at) > before })
}
