package apply_test

import (
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// killer kills the broker under a flow.
type killer struct {
	s     *stage
	f     *flow
	b     *testbroker.Broker
	kills int
}

// underFire is a Transport that stands on a broker of its own, with messages on their way all the time. They are published by the key
// "test", and handled as those of the queue "test", whatever its name is; some of them wait in a lane first where it parks.
func underFire(t *testing.T, parks bool) *killer {
	t.Helper()
	b := testbroker.Private(t)
	s := newStageOn(t, b)
	s.stand()
	s.waits.Young = ripe
	f := newFlow(s, parks, "test")
	f.as, f.within = map[string]string{"next": "test"}, 15*time.Minute
	f.begin()
	return &killer{s: s, f: f, b: b}
}

// kill lets some time pass, kills the broker, and waits until all its queues are there again.
func (k *killer) kill(after time.Duration, report apply.Report) {
	s, t := k.s, k.s.t
	t.Helper()
	s.pass(after)
	t.Logf("the broker is killed after\n%s", steps(report.Steps))
	k.kills++
	if err := k.b.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := k.b.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.awaitBack(report)
	s.amqp = s.channel()
	k.f.publish()
}

// killAfterSteps kills the broker a moment after each run that has done something.
func (k *killer) killAfterSteps(report apply.Report) {
	k.s.t.Helper()
	switch {
	case leads(report):
		k.kill(afterLeading, report)
	case len(report.Steps) > 0:
		k.kill(afterMaking, report)
	}
}

// awaitBack waits until a broker that was killed has counted all its queues. One that was made or deleted a moment before may be there
// without a leader, and so without a count, for good: it is deleted by hand, as docs/topology.md says. On a loaded machine that moment is
// longer than a second.
func (s *stage) awaitBack(last apply.Report) {
	s.t.Helper()
	since := time.Now()
	s.eventually("all queues to be there again", func() bool {
		observed, err := s.client.Observe(s.t.Context())
		if err != nil {
			return false
		}
		back := true
		for name, queue := range observed.Queues {
			if queue.Messages != nil {
				continue
			}
			back = false
			touched := slices.ContainsFunc(last.Steps, func(step topology.Step) bool { return step.Queue != nil && step.Queue.Name == name })
			if touched && time.Since(since) > 30*time.Second {
				s.t.Logf("queue %s has come back without a leader, and is deleted by hand", name)
				if err := s.client.DeleteQueue(s.t.Context(), name, false, false); err != nil {
					s.t.Log(err)
				}
			}
		}
		return back
	})
}

func TestRename_LosesNothingToABrokerKilledAfterEachStep(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	k := underFire(t, false)
	k.s.rename(k.f, "orders")
	k.f.migrating(k.s.client, []string{"orders"}, k.killAfterSteps)
	k.f.check("test")
	if k.s.exists("test") || k.kills < 5 {
		t.Errorf("it was killed %d times; the old queue exists: %v", k.kills, k.s.exists("test"))
	}
}

// Whoever starts while a queue is young takes it for one that was made just now.
func TestYoung_LosesNothingToAnOperatorKilledMeanwhile(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	k := underFire(t, false)
	s, killed := k.s, map[string]time.Time{}
	s.rename(k.f, "orders")
	k.f.migrating(s.client, []string{"orders"}, func(report apply.Report) {
		made := slices.ContainsFunc(report.Steps, func(step topology.Step) bool { return step.Queue != nil })
		if made {
			s.pass(ripe - 200*time.Millisecond)
			s.state.Known = nil
		}
		for _, step := range report.Steps {
			if step.Queue != nil {
				killed[step.Queue.Name] = time.Now()
			}
		}
		leadsToYoung := false
		for _, queue := range bound(report) {
			if since, young := killed[queue]; young {
				leadsToYoung = true
				delete(killed, queue)
				if age := time.Since(since); age < ripe {
					t.Errorf("%s after its start the operator leads messages into queue %s", age, queue)
				}
			}
		}
		if leadsToYoung {
			k.kill(afterLeading, report)
		}
	})
	k.f.check("test")
	if k.kills < 1 || s.exists("test") {
		t.Errorf("the broker was killed %d times; the old queue exists: %v", k.kills, s.exists("test"))
	}
}
