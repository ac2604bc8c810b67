package apply_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
)

// lateChange is what is done to a Transport under traffic.
type lateChange struct {
	change func(s *stage, f *flow)
	// deletes is true where the whole Transport goes.
	deletes bool
}

func lateChanges() map[string]lateChange {
	return map[string]lateChange{
		"single active consumer": {change: func(s *stage, _ *flow) { s.queue("test").SingleActiveConsumer = new(true) }},
		"another type":           {change: func(s *stage, _ *flow) { s.queue("test").Type = new(v1alpha1.QueueClassic) }},
		"another name":           {change: func(s *stage, f *flow) { s.rename(f, "orders") }},
		"leaves the spec": {change: func(s *stage, _ *flow) {
			s.spec.Spec.Queues = slices.DeleteFunc(s.spec.Spec.Queues, func(q v1alpha1.Queue) bool { return q.Name == "test" })
		}},
		"the Transport is deleted": {change: func(*stage, *flow) {}, deletes: true},
	}
}

// laters are after how long a request is carried out to which nobody has heard an answer, one after the other: before the waits of a deletion
// are over, in their middle, and after what is made again has traffic.
var laters = []time.Duration{2 * time.Second, 8 * time.Second, 15 * time.Second, 30 * time.Second}

// belatedWrite holds up the write of a number, from 1; 0 is none. It counts all.
type belatedWrite struct {
	number int64
	count  atomic.Int64
	what   atomic.Value
}

func (b *belatedWrite) script(r *http.Request) testtransport.Lie {
	if r.Method == http.MethodGet || b.count.Add(1) != b.number {
		return nil
	}
	b.what.Store(r.Method + " " + r.URL.Path)
	return testtransport.Late(laters[int(b.number)%len(laters)])
}

// Every request that writes, in every change under traffic, is once carried out late, after the operator has heard that its connection was cut.
func TestOnce_LosesNothingToAWriteThatIsCarriedOutLate(t *testing.T) {
	testbroker.OfTarget(t, "test-settings")
	for name, c := range lateChanges() {
		t.Run(name, func(t *testing.T) {
			all := &belatedWrite{}
			newStageOn(t, testbroker.Shared(t)).late(c, all)
			for number := int64(1); number <= all.count.Load(); number++ {
				t.Run(fmt.Sprint("write ", number), func(t *testing.T) {
					one := &belatedWrite{number: number}
					newStage(t).late(c, one)
					t.Logf("late was %v", one.what.Load())
				})
			}
		})
	}
}

// late sees a change through under traffic, and checks that nothing is lost.
func (s *stage) late(c lateChange, write *belatedWrite) {
	s.t.Helper()
	f := s.settled(false, "test")
	f.mayReturn = c.deletes
	// What finds no other way ends in these: it counts as handled.
	f.as = map[string]string{"lost": "test", "async.failed": "test"}
	c.change(s, f)
	f.mu.Lock()
	f.as["lost"], f.as["async.failed"] = "test", "test"
	f.mu.Unlock()
	management := testtransport.NewManagement(s.t, s.config.ManagementURL)
	management.Answer(write.script)
	s.client, s.waits.Request = s.by(management), 40*time.Second
	queues := []string{"test", "orders", "lost", "async.failed"}
	goOn := s.changeLate
	if c.deletes {
		goOn = s.deleteLate
	}
	idle := 0
	testtransport.EventuallyWithin(s.t, endsWithin, "the change to end", func() bool {
		if idle++; !goOn(f, queues) {
			idle = 0
		}
		return idle > 2
	})
	management.Wait() // what is late may be so after the end
	for range 3 {
		goOn(f, queues)
	}
	if c.deletes {
		f.end()
		if s.exists("test") || s.exists("async.failed") {
			s.t.Error("queues are left")
		}
	}
	f.check("test")
}

// changeLate runs the engine once, and is true where nothing is left to do.
func (s *stage) changeLate(f *flow, queues []string) bool {
	report, err := s.look()
	if err != nil {
		return false
	}
	f.follow(report, queues...)
	return len(report.Steps)+len(report.Migrations)+len(report.Retiring)+len(report.Failures) == 0
}

// deleteLate takes the deletion one run further. Its workers go when the queues are drained, and come again where some are blocked.
func (s *stage) deleteLate(f *flow, queues []string) bool {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	report, err := apply.Delete(ctx, s.client, apply.DeleteInput{
		Owner: s.owner, Prefix: "async", State: s.state, WorkersGone: s.workersGone, Waits: s.waits, Now: time.Now(), WriteDeletions: s.writeDeletions,
	})
	if err != nil {
		s.t.Log(err)
		return false
	}
	s.state.Created, s.state.Retiring, s.state.Deletions = report.Created, report.Retiring, report.Deletions
	switch {
	case s.workersGone && len(report.Blocked) == 0:
		f.follow(apply.Report{})
	default:
		f.follow(apply.Report{}, queues...)
	}
	s.workersGone = s.workersGone || report.Drained
	return report.Done
}
