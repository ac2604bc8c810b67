package apply_test

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// liesNowAndThen are what a third of all requests is answered with, whatever they are.
func liesNowAndThen() map[string]testtransport.Lie {
	var rows atomic.Int64
	return map[string]testtransport.Lie{
		"a list lacks entries":  testtransport.Without(func(map[string]any) bool { return rows.Add(1)%5 == 0 }),
		"a list is empty":       testtransport.Empty(),
		"an old answer":         testtransport.Old(),
		"503":                   testtransport.Says(http.StatusServiceUnavailable, "text/plain", "no"),
		"a page":                testtransport.Says(http.StatusOK, "text/html", "<html>"),
		"half an answer":        testtransport.Half(),
		"no answer to anything": testtransport.Nothing(),
		"a bomb":                testtransport.Bomb(100),
	}
}

// lying lets the stage ask a management API that lies from lie(true) to lie(false).
func (s *stage) lying(answer testtransport.Lie) (lie func(bool)) {
	s.t.Helper()
	management := testtransport.NewManagement(s.t, s.config.ManagementURL)
	s.client = s.by(management)
	var asked atomic.Int64
	return func(on bool) {
		if !on {
			management.Answer(nil)
			return
		}
		management.Answer(func(*http.Request) testtransport.Lie {
			if asked.Add(1)%3 == 0 {
				return answer
			}
			return nil
		})
	}
}

// lieFor is longer than both waits of a deletion.
const lieFor = 40 * time.Second

func TestMigration_LosesNothingToAnAPIThatLiesNowAndThen(t *testing.T) {
	testbroker.OfTarget(t, "test-settings")
	for name, answer := range liesNowAndThen() {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			lie := s.lying(answer)
			f := s.settled(true, "test")
			s.queue("test").SingleActiveConsumer = new(true)
			lie(true)
			for began := time.Now(); time.Since(began) < lieFor; time.Sleep(300 * time.Millisecond) {
				report, err := s.look()
				if err == nil {
					f.follow(report, "test")
				}
			}
			lie(false)
			testtransport.EventuallyWithin(t, endsWithin, "the exchange to end", func() bool {
				report, err := s.look()
				if err != nil {
					return false
				}
				f.follow(report, "test")
				return len(report.Steps)+len(report.Migrations)+len(report.Retiring)+len(report.Failures) == 0
			})
			f.follow(apply.Report{}, "test")
			f.check("test")
		})
	}
}

func TestRemoval_LosesNothingToAnAPIThatLiesNowAndThen(t *testing.T) {
	testbroker.OfTarget(t, "test-settings")
	for name, answer := range liesNowAndThen() {
		for what, r := range removals() {
			t.Run(name+", "+what, func(t *testing.T) {
				s := newStage(t)
				s.removed(r, s.lying(answer))
			})
		}
	}
}
