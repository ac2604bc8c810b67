package apply_test

import (
	"slices"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// rename gives the queue "test" another name in the spec. What is handled of the two counts as of one.
func (s *stage) rename(f *flow, name string) {
	queue := s.queue("test")
	queue.Name, queue.PreviousNames = name, []string{"test"}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.as = map[string]string{name: "test"}
}

// home is how messages come back that left a queue.
func (s *stage) home(key string) (queues []string) {
	for _, exchange := range []string{"async.return", "async.return.alternate"} {
		for _, binding := range s.snapshot().Bindings {
			if binding.Source == exchange && binding.RoutingKey == key {
				queues = append(queues, binding.Destination)
			}
		}
	}
	return queues
}

func TestRename_LosesNothingUnderTraffic(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change  func(q *v1alpha1.Queue)
		ordered bool
	}{
		"as it is":               {func(*v1alpha1.Queue) {}, false},
		"Classic":                {func(q *v1alpha1.Queue) { q.Type = new(v1alpha1.QueueClassic) }, false},
		"single active consumer": {func(q *v1alpha1.Queue) { q.SingleActiveConsumer = new(true) }, true},
		"Strict order":           {func(q *v1alpha1.Queue) { q.Ordering = &v1alpha1.Ordering{Type: v1alpha1.OrderingStrict} }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			c.change(s.queue("test"))
			f := s.settled(!c.ordered, "test")
			s.rename(f, "orders")
			f.migrating(s.client, []string{"orders"}, nil)
			if doubled := f.check("test"); doubled > 0 {
				t.Errorf("%d messages were handled twice", doubled)
			}
			if c.ordered && !slices.IsSorted(f.order["test"]) {
				t.Error("the order is lost")
			}
			if s.exists("test") || s.exists("test.quarantine") {
				t.Error("the old queues are left")
			}
			if queues := s.home("test"); !slices.Equal(queues, []string{"orders"}) {
				t.Errorf("what left the queue by its old name comes back to %v", queues)
			}
			if !topology.Diff(s.input().Desired, s.snapshot(), s.state.Created).Empty() {
				t.Error("something differs at the end")
			}
			s.queue("orders").PreviousNames = nil
			s.eventually("the old name to be forgotten", func() bool {
				_, err := s.onceBy(s.client)
				return err == nil && len(s.home("test")) == 0
			})
		})
	}
}

func TestRename_GoesOnWhenKilledAfterEachStep(t *testing.T) {
	t.Parallel()
	for name, ordered := range map[string]bool{"without an order": false, "in order": true} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			if ordered {
				s.queue("test").SingleActiveConsumer = new(true)
			}
			f := s.settled(!ordered, "test")
			s.bindByAnApplication("test")
			s.rename(f, "orders")
			port := &mortal{Port: s.client}
			f.migrating(port, []string{"orders"}, nil)
			s.isBoundByTheApplication("orders")
			if doubled := f.check("test"); doubled > 0 {
				t.Errorf("%d messages were handled twice", doubled)
			}
			if ordered && !slices.IsSorted(f.order["test"]) {
				t.Error("the order is lost")
			}
			if port.kills < 5 {
				t.Errorf("only %d runs were killed", port.kills)
			}
		})
	}
}

func TestRename_LosesNothingWithAnotherTypeAtOnce(t *testing.T) {
	testtransport.Long(t)
	s := newStage(t)
	s.queue("test").Type = new(v1alpha1.QueueClassic)
	f := s.settled(true, "test")
	s.queue("test").Type = nil
	s.rename(f, "orders")
	f.migrating(s.client, []string{"orders"}, nil)
	if doubled := f.check("test"); doubled > 0 {
		t.Errorf("%d messages were handled twice", doubled)
	}
	if kind := s.snapshot().Queues["orders"].Type; kind != topology.TypeQuorum || s.exists("test") {
		t.Errorf("the queue is %q at the end", kind)
	}
}

// What comes by a former name has a way home while the queue is migrated, too.
// Whoever has bound a queue does not do so again under its new name.
func TestRename_TakesBindingsOfOthersThroughAnotherTurn(t *testing.T) {
	t.Parallel()
	for name, turn := range map[string]func(q *v1alpha1.Queue){
		"the new queue is adopted": func(q *v1alpha1.Queue) { q.Adopt = new(true) },
		"it is renamed again":      func(q *v1alpha1.Queue) { q.Name, q.PreviousNames = "bills", []string{"orders", "test"} },
	} {
		for _, step := range []v1alpha1.MigrationStep{v1alpha1.MigrationRecreate, v1alpha1.MigrationRestore} {
			t.Run(name+" in step "+string(step), func(t *testing.T) {
				s := newStage(t)
				s.once()
				if err := s.amqp.QueueBind("test", "others", "async", false, nil); err != nil {
					t.Fatal(err)
				}
				f := s.settled(false, "others", "test")
				s.rename(f, "orders")
				f.as["bills"] = "test"
				last, turned := []string{"orders"}, false
				f.migrating(s.client, last, func(report apply.Report) {
					if !turned && len(report.Migrations) > 0 && report.Migrations[0].Step == step {
						queue := s.queue("orders")
						turn(queue)
						last[0], turned = queue.Name, true
					}
				})
				if f.check("test"); !turned {
					t.Fatal("there was no such step")
				}
				if !slices.Contains(s.bindings(last[0]), "async -> "+last[0]+` "others"`) || s.exists("test") {
					t.Errorf("into %s lead %q", last[0], s.bindings(last[0]))
				}
			})
		}
	}
}

func TestRename_TakesBindingsOfOthersAlongDuringAMigration(t *testing.T) {
	testtransport.Long(t)
	s := newStage(t)
	s.once()
	if err := s.amqp.QueueBind("test", "others", "async", false, nil); err != nil {
		t.Fatal(err)
	}
	f := s.settled(false, "others", "test")
	s.queue("test").Type = new(v1alpha1.QueueClassic)
	last := []string{"test"}
	f.migrating(s.client, last, func(report apply.Report) {
		if last[0] == "test" && len(report.Migrations) > 0 && report.Migrations[0].Step == v1alpha1.MigrationDrain {
			s.rename(f, "orders")
			f.as["test.migrating"] = "test"
			last[0] = "orders"
		}
	})
	f.check("test")
	if !slices.Contains(s.bindings("orders"), `async -> orders "others"`) || s.exists("test") || s.exists("test.migrating") {
		t.Errorf("into the queue lead %q", s.bindings("orders"))
	}
}

func TestMigration_KeepsTheWayHomeOfAPreviousName(t *testing.T) {
	s := newStage(t)
	f := s.settled(true, "test")
	s.queue("test").PreviousNames = []string{"earlier"}
	s.queue("test").Type = new(v1alpha1.QueueClassic)
	f.migrating(s.client, []string{"test"}, func(apply.Report) {
		if len(s.home("earlier")) == 0 {
			t.Error("what left the queue by its old name has no way home")
		}
	})
	if doubled := f.check("test"); doubled > 0 {
		t.Errorf("%d messages were handled twice", doubled)
	}
	if queues := s.home("earlier"); !slices.Equal(queues, []string{"test"}) {
		t.Errorf("what left the queue by its old name comes back to %v", queues)
	}
}

// A queue that leaves the spec is emptied by who consumed it; what waited in lanes comes back to it until then.
func TestRetirement_EmptiesAQueueBeforeItGoes(t *testing.T) {
	s := newStage(t)
	f := s.settled(true, "test")
	f.as = map[string]string{"lost": "test"} // which gets what is unroutable from then on
	f.follow(apply.Report{}, "test", "lost")
	s.spec.Spec.Queues = slices.DeleteFunc(s.spec.Spec.Queues, func(q v1alpha1.Queue) bool { return q.Name == "test" })
	f.migrating(s.client, []string{"lost"}, nil)
	f.check("test")
	if s.exists("test") || s.exists("test.quarantine") {
		t.Error("the queues are left")
	}
}

// "Keep what is there, and bound what comes": the bound was that of both.
func TestFailureQueue_DropsNothingOfTheFormerOneByItsBound(t *testing.T) {
	s := newStage(t)
	s.once()
	for range 20 {
		s.publish("async.failed", "test", nil)
	}
	s.counted("async.failed", 20)
	s.spec.Spec.Failure = &v1alpha1.Failure{Queue: new("bounded.failed"), DropOldestAfter: new(int64(3))}
	for range 3 {
		s.once()
		s.allCounted()
		s.later(11 * time.Second)
	}
	for range 5 {
		s.publish("async.failed", "test", nil)
	}
	s.eventually("the new one to drop what is beyond its bound", func() bool {
		queue, err := s.channel().QueueDeclarePassive("bounded.failed", true, false, false, false, nil)
		return err == nil && queue.Messages == 3
	})
	s.holds("async.failed", 20)
}

// A spec that changes again before a migration has ended leaves a queue without a name in the spec: the stand-in of a former name, or a former name of a
// former name.
func TestRename_TakesBindingsOfOthersThroughASecondChange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		first   func(*stage, *flow)
		step    v1alpha1.MigrationStep
		second  []string // the names that it had before
		ordered bool
	}{
		"renamed while its stand-in has all": {
			first: func(s *stage, _ *flow) { s.queue("test").SingleActiveConsumer = new(true) },
			step:  v1alpha1.MigrationRecreate, second: []string{"test"}, ordered: true,
		},
		"renamed twice, the older name first": {
			first: func(s *stage, f *flow) { s.rename(f, "orders") },
			step:  v1alpha1.MigrationCleanup, second: []string{"test", "orders"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.queue("test").SingleActiveConsumer = new(!c.ordered)
			f := s.settled(false, "test")
			s.bindByAnApplication("test")
			c.first(s, f)
			queue, changed := &s.spec.Spec.Queues[1], false
			consumed := []string{queue.Name}
			f.mu.Lock()
			f.as = map[string]string{"bills": "test", "orders": "test", "test.migrating": "test"}
			f.mu.Unlock()
			f.migrating(s.client, consumed, func(report apply.Report) {
				if !changed && len(report.Migrations) > 0 && report.Migrations[0].Step == c.step {
					changed, queue.Name, queue.PreviousNames = true, "bills", c.second
					consumed[0] = queue.Name
				}
			})
			s.isBoundByTheApplication("bills")
			if doubled := f.check("test"); c.ordered && (doubled > 0 || !slices.IsSorted(f.order["test"])) {
				t.Errorf("the order is lost, and %d messages were handled twice", doubled)
			}
		})
	}
}
