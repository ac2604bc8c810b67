package apply_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// scene is a Transport on a simulated broker, in simulated time, with the configuration that its workers have.
type scene struct {
	*simulatedVhost
	t       *testing.T
	spec    *v1alpha1.Transport
	state   apply.State
	workers compile.Config
	report  apply.Report
	needs   compile.Needs
	// without is the key of a binding that the lists lack, and untold how often the bindings of the queue test are not told.
	without string
	untold  int
	// unlisted is a queue that the lists lack.
	unlisted string
	// refuses tells which steps RabbitMQ refuses; nil for none.
	refuses func(topology.Step) bool
}

// Bindings are not told at first.
func (s *scene) Bindings(ctx context.Context, queue string) ([]topology.Binding, error) {
	if queue == "test" && s.untold > 0 {
		s.untold--
		return nil, broker.ErrRefused
	}
	return s.simulatedVhost.Bindings(ctx, queue)
}

// Observe gives lists of which one may lack a binding.
func (s *scene) Observe(ctx context.Context) (topology.Observed, error) {
	observed, err := s.simulatedVhost.Observe(ctx)
	if s.unlisted != "" {
		observed.Queues = maps.Clone(observed.Queues)
		delete(observed.Queues, s.unlisted)
	}
	observed.Bindings = slices.DeleteFunc(observed.Bindings, func(b topology.Binding) bool { return s.without != "" && b.RoutingKey == s.without })
	return observed, err
}

// Apply refuses some steps.
func (s *scene) Apply(ctx context.Context, step topology.Step) (bool, error) {
	if s.refuses != nil && s.refuses(step) {
		return false, broker.ErrForbidden
	}
	return s.simulatedVhost.Apply(ctx, step)
}

// play runs a story of a Transport with the queues test and other, which stand.
func play(t *testing.T, story func(s *scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{simulatedVhost: &simulatedVhost{b: newSimulatedBroker(), taken: map[string][]int{}}, t: t}
		s.spec = testtransport.New("http://127.0.0.1:8080/messages")
		s.spec.Spec.Queues = []v1alpha1.Queue{{Name: "test", BindingKeys: []string{"test"}}, other()}
		s.workers = working("test", "other")
		story(s)
	})
}

func other() v1alpha1.Queue { return v1alpha1.Queue{Name: "other", BindingKeys: []string{"other"}} }

// working is the configuration of workers that consume some queues.
func working(queues ...string) (config compile.Config) {
	for _, name := range queues {
		config.Queues = append(config.Queues, compile.Queue{Name: name, Quarantine: name + compile.QuarantineSuffix})
	}
	return config
}

// looks has the operator look some times, 10 s apart.
func (s *scene) looks(number int) {
	s.t.Helper()
	for range number {
		err := s.look(s)
		if _, young := errors.AsType[*apply.TooYoungError](err); err != nil && !young {
			s.t.Fatal(err)
		}
		s.pass(10 * time.Second)
	}
}

// look has the operator look once, at the broker as it is behind a port.
func (s *scene) look(port apply.Port) error {
	s.t.Helper()
	desired, err := topology.Desired(s.spec, s.needs, owner)
	if err != nil {
		s.t.Fatal(err)
	}
	s.state.Stamps = s.state.Stamps.See(s.state.Retiring, s.state.Migrations, time.Now())
	s.state.Doubts = s.state.Doubts.See(s.state.Deletions, time.Now())
	s.report, err = apply.Once(s.t.Context(), port, apply.Input{
		Desired: desired, State: s.state, Published: []compile.Config{s.workers}, Waits: topology.DefaultWaits(), Now: time.Now(),
	}, func(context.Context, []string) error { return nil })
	s.state.Keep(&s.report)
	return err
}

// removed has the operator delete the Transport.
func (s *scene) removed(force bool) (report apply.DeleteReport) {
	s.t.Helper()
	for range 100 {
		var err error
		s.state.Stamps = s.state.Stamps.See(s.state.Retiring, nil, time.Now())
		report, err = apply.Delete(s.t.Context(), s, apply.DeleteInput{
			Owner: owner, Prefix: "async", State: s.state, Force: force, WorkersGone: report.Drained, Waits: topology.DefaultWaits(), Now: time.Now(),
		})
		if err != nil {
			s.t.Fatal(err)
		}
		s.state.Created, s.state.Retiring, s.state.Deletions = report.Created, report.Retiring, report.Deletions
		if report.Done {
			return report
		}
		s.pass(10 * time.Second)
	}
	s.t.Error("the deletion does not end")
	return report
}

// comesTo says where a retry goes that leaves a lane by a name.
func (s *scene) comesTo(name string) []string {
	return s.b.route("async.return", simulatedMessage{key: name})
}

func (s *scene) fill(queue string, number int) {
	for i := range number {
		s.b.enqueue(s.b.queues[queue], simulatedMessage{id: i})
	}
}

// The queue that is renamed was deleted in a minute, while workers had messages of its former name, and each retry of these went to the failure queue.
func TestLeaving_KeepsARenamedQueueForTheMessagesOfItsFormerName(t *testing.T) {
	play(t, func(s *scene) {
		s.looks(3)
		s.fill("test", 100)
		s.spec.Spec.Queues = []v1alpha1.Queue{{Name: "orders", PreviousNames: []string{"test"}, BindingKeys: []string{"test"}}, other()}
		s.workers = working("orders", "other")
		s.workers.Queues[0].Standin = "test"
		s.looks(30)
		s.spec.Spec.Queues = []v1alpha1.Queue{other()}
		s.looks(30)
		if to := s.comesTo("orders"); !slices.Equal(to, []string{"orders"}) {
			t.Fatalf("with %d messages of the former name, a retry goes to %v", s.b.queues["test"].depth(), to)
		}
		s.b.queues["test"].ready = nil
		s.looks(30)
		if s.b.queues["orders"] != nil || s.b.queues["test"] != nil {
			t.Errorf("they are empty, and stay: %+v", s.state.Retiring)
		}
	})
}

// A queue that left while it was migrated lost its way back when the workers held nothing of the other one for a moment.
func TestLeaving_KeepsTheWayBackOfAQueueAndItsStandin(t *testing.T) {
	for _, c := range []struct {
		name   string
		step   v1alpha1.MigrationStep
		filled string
	}{{"the queue has messages", v1alpha1.MigrationDrain, "test"}, {"its stand-in has", v1alpha1.MigrationCleanup, "test.migrating"}} {
		t.Run(c.name, func(t *testing.T) {
			play(t, func(s *scene) {
				s.looks(3)
				if c.step == v1alpha1.MigrationDrain {
					s.fill("test", 100)
				}
				s.spec.Spec.Queues[0].Type = new(v1alpha1.QueueClassic)
				s.workers.Queues[0].Standin = "test.migrating"
				for i := 0; i < 60 && (len(s.state.Migrations) == 0 || s.state.Migrations[0].Step != c.step); i++ {
					s.looks(1)
					if c.step == v1alpha1.MigrationCleanup && s.b.queues[c.filled].depth() == 0 && len(s.state.Migrations) > 0 && s.state.Migrations[0].Step == v1alpha1.MigrationRestore {
						s.fill(c.filled, 100)
					}
				}
				if len(s.state.Migrations) == 0 || s.state.Migrations[0].Step != c.step || s.b.queues[c.filled].depth() == 0 {
					t.Fatalf("%+v, %s has %d messages", s.state.Migrations, c.filled, s.b.queues[c.filled].depth())
				}
				s.spec.Spec.Queues = []v1alpha1.Queue{other()}
				s.looks(30)
				if to := s.comesTo("test"); len(to) != 1 || isFailure(to[0]) {
					t.Errorf("with %d messages in %s, a retry goes to %v", s.b.queues[c.filled].depth(), c.filled, to)
				}
			})
		})
	}
}

// The way back by a former name went in the first look, and what waited in lanes failed.
func TestLeaving_KeepsTheWayBackByTheFormerNameOfAnAdoptedQueue(t *testing.T) {
	play(t, func(s *scene) {
		s.looks(3)
		s.spec.Spec.Queues[0] = v1alpha1.Queue{Name: "orders", PreviousNames: []string{"test"}, BindingKeys: []string{"test"}}
		s.workers = working("orders", "other")
		s.looks(40)
		s.spec.Spec.Queues[0].Adopt = new(true)
		s.looks(3)
		s.spec.Spec.Queues = []v1alpha1.Queue{other()}
		s.looks(3)
		if to := s.comesTo("test"); !slices.Equal(to, []string{"orders"}) {
			t.Errorf("while workers consume the queue, a retry by its former name goes to %v", to)
		}
		s.workers = working("other")
		s.looks(120)
		if ways := s.comesTo("test"); len(ways) != 1 || !isFailure(ways[0]) || s.b.queues["orders"] == nil {
			t.Errorf("in the end it goes to %v, and the queue is there: %t", ways, s.b.queues["orders"] != nil)
		}
	})
}

// The policy of an adopted failure queue was taken away and kept in turns, without an end.
func TestDelete_EndsBesideAnAdoptedFailureQueueThatIsEmpty(t *testing.T) {
	for _, force := range []bool{false, true} {
		play(t, func(s *scene) {
			_, _ = s.b.declareQueue(topology.Queue{
				Name: "async.failed", Type: topology.TypeQuorum, Durable: true, Arguments: topology.Arguments{"x-queue-type": "quorum"},
			})
			s.looks(3)
			report := s.removed(force)
			left := slices.ContainsFunc(report.Left, func(f topology.Finding) bool { return f.Object.Name == "async.failed" })
			if s.b.queues["async.failed"] == nil || len(s.b.policies) != 1 || !left {
				t.Errorf("the policies %v are left, told: %+v", s.b.policies, report.Left)
			}
		})
	}
}

// The policy of a failure queue stayed for good, with a priority above that of the work queue which the queue had become.
func TestStep_TakesThePinOfAFormerFailureQueueThatIsAWorkQueueByNow(t *testing.T) {
	for name, adopt := range map[string]*bool{"adopted": new(true), "migrated": nil} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				s.looks(5)
				s.spec.Spec.Failure = &v1alpha1.Failure{Queue: new("dead")}
				s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: "async.failed", Adopt: adopt})
				s.workers = working("test", "other", "async.failed")
				s.looks(60)
				applies := s.b.policy(topology.KindQueue, "async.failed", topology.TypeQuorum)
				if applies.Name != "redrive.async:queue:async.failed" {
					t.Errorf("%q applies", applies.Name)
				}
			})
		})
	}
}

// The first look took a queue that another application had bound for nobody's, by one list without that binding: it was unbound and deleted.
func TestFirstRun_KeepsAQueueThatOthersHaveBoundThoughAListLacksIt(t *testing.T) {
	play(t, func(s *scene) {
		s.looks(3)
		_ = s.b.bind(topology.Binding{Source: "amq.topic", Destination: "test", RoutingKey: "theirs"})
		s.spec.Spec.Queues, s.state, s.workers = []v1alpha1.Queue{other()}, apply.State{}, working("other")
		s.without = "theirs"
		s.looks(1)
		if len(s.report.Spared) != 1 {
			t.Errorf("told is %+v", s.report.Spared)
		}
		s.without = ""
		s.looks(30)
		if to := s.b.route("amq.topic", simulatedMessage{key: "theirs"}); !slices.Equal(to, []string{"test"}) {
			t.Errorf("what they publish goes to %v", to)
		}
	})
}

// It was asked for by the very first look alone: where that ended early, or was not told, the next one unbound and deleted the queue.
func TestFirstRun_KeepsAQueueThatOthersHaveBoundThoughItDoesNotComeToAsk(t *testing.T) {
	for name, change := range map[string]func(*scene){
		"a new queue is too young":  func(s *scene) { s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: "new"}) },
		"its bindings are not told": func(s *scene) { s.untold = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				s.looks(3)
				_ = s.b.bind(topology.Binding{Source: "amq.topic", Destination: "test", RoutingKey: "theirs"})
				s.spec.Spec.Queues, s.state, s.workers = []v1alpha1.Queue{other()}, apply.State{}, working("other")
				change(s)
				s.without = "theirs"
				s.looks(1)
				s.without = ""
				s.looks(30)
				if to := s.b.route("amq.topic", simulatedMessage{key: "theirs"}); !slices.Equal(to, []string{"test"}) {
					t.Errorf("what they publish goes to %v", to)
				}
			})
		})
	}
}

// Each new process asked for counts that were made after the longest lane had passed since its own start: a queue never left where operators end more often.
func TestLeaving_ComesToItsEndWhereOperatorsEndMoreOftenThanALaneLasts(t *testing.T) {
	play(t, func(s *scene) {
		s.needs.Lanes = retry.Lanes{3 * time.Hour}
		s.looks(5)
		s.b.enqueue(s.b.queues["async.fallback.3h"], simulatedMessage{id: 1, key: "other"})
		s.spec.Spec.Queues = []v1alpha1.Queue{other()}
		const restart = 150 * time.Minute
		for began := time.Now(); s.b.queues["test"] != nil; s.pass(time.Minute) {
			since := time.Since(began)
			if since > 5*time.Hour {
				t.Fatalf("it is there: %+v", s.state.Retiring)
			}
			if since%restart < time.Minute {
				s.state.Memory, s.state.Stamps = apply.Memory{}, nil
			}
			if lane := s.b.queues["async.fallback.3h"]; lane.depth() < 3 {
				s.b.enqueue(lane, simulatedMessage{id: 1, key: "other"}) // there is always a retry of another queue
			}
			s.looks(1)
		}
	})
}

// Nothing said why a queue stayed that workers were still told to empty.
func TestLeaving_TellsOfAQueueThatIsNotCounted(t *testing.T) {
	play(t, func(s *scene) {
		s.looks(5)
		s.spec.Spec.Queues = []v1alpha1.Queue{other()}
		s.b.queues["test"].hidden = true
		s.looks(360)
		if !slices.ContainsFunc(s.report.Warnings, func(w topology.Finding) bool { return w.Object.Name == "test" }) {
			t.Errorf("told is %v, of %+v", s.report.Warnings, s.state.Retiring)
		}
	})
}

// Each retry by the former name went to both queues for as long as the first one left.
func TestLeaving_GivesAFormerNameToOneQueue(t *testing.T) {
	for name, adopted := range map[string]*bool{"the first is adopted": new(true), "the first is deleted": nil} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				s.looks(3)
				s.spec.Spec.Queues[0] = v1alpha1.Queue{Name: "orders", PreviousNames: []string{"test"}, BindingKeys: []string{"test"}}
				s.workers = working("orders", "other")
				s.looks(40)
				s.fill("orders", 10)
				s.spec.Spec.Queues[0].Adopt = adopted
				s.looks(3)
				s.spec.Spec.Queues[0] = v1alpha1.Queue{Name: "bills", PreviousNames: []string{"test"}, BindingKeys: []string{"test"}}
				s.workers = working("bills", "orders", "other")
				for range 12 {
					s.looks(1)
					if to := s.comesTo("test"); !slices.Equal(to, []string{"bills"}) && !slices.Equal(to, []string{"orders"}) {
						t.Fatalf("a retry by the former name goes to %v", to)
					}
				}
				if to := s.comesTo("test"); !slices.Equal(to, []string{"bills"}) {
					t.Errorf("a retry by the former name goes to %v", to)
				}
			})
		})
	}
}

// Workers went on with the new name alone, whose queue was gone: nobody read the queue of the old one, which got all messages.
func TestLeaving_IsReadOnWhereARenamingIsTakenBackBesideAConflict(t *testing.T) {
	for name, single := range map[string]*bool{"without an order": nil, "with a single active consumer": new(true)} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				_, _ = s.b.declareQueue(topology.Queue{
					Name: "blocked", Type: topology.TypeClassic, Durable: true, Arguments: topology.Arguments{"x-queue-type": "classic"},
				})
				s.spec.Spec.Queues[0].SingleActiveConsumer = single
				s.looks(3)
				s.spec.Spec.Queues = []v1alpha1.Queue{
					{Name: "orders", PreviousNames: []string{"test"}, BindingKeys: []string{"test"}, SingleActiveConsumer: single}, other(),
				}
				s.looks(2)
				s.workers = working("orders", "other")
				s.workers = s.workers.WithStandIns(s.report.StandIns)
				s.spec.Spec.Queues = []v1alpha1.Queue{
					{Name: "test", PreviousNames: []string{"orders"}, BindingKeys: []string{"test"}, SingleActiveConsumer: single}, other(), {Name: "blocked"},
				}
				s.follow(30)
				if to, read := s.b.route("async", simulatedMessage{key: "test"}), s.workers.Queues[0].Consumed(); !slices.Equal(to, read) {
					t.Errorf("with the conflicts %v new messages go to %v, and workers consume %v", s.report.Conflicts, to, read)
				}
			})
		})
	}
}

// While an unrelated queue was in conflict, a key that moved led into both queues, and each message was handled twice.
func TestStep_MovesAKeyBesideAConflict(t *testing.T) {
	play(t, func(s *scene) {
		_, _ = s.b.declareQueue(topology.Queue{
			Name: "blocked", Type: topology.TypeClassic, Durable: true, Arguments: topology.Arguments{"x-queue-type": "classic"},
		})
		goesTo := func() []string { return s.b.route("async", simulatedMessage{key: "moves"}) }
		s.spec.Spec.Queues = []v1alpha1.Queue{{Name: "test", BindingKeys: []string{"test", "moves"}}, other()}
		s.looks(3)
		s.spec.Spec.Queues = []v1alpha1.Queue{
			{Name: "test", BindingKeys: []string{"test"}}, {Name: "other", BindingKeys: []string{"other"}}, {Name: "blocked", BindingKeys: []string{"moves"}},
		}
		s.looks(30)
		if to := goesTo(); !slices.Equal(to, []string{"test"}) {
			t.Errorf("the key moves to a queue that is not there, and goes to %v", to)
		}
		s.spec.Spec.Queues[1].BindingKeys, s.spec.Spec.Queues[2].BindingKeys = []string{"other", "moves"}, []string{"blocked"}
		s.looks(30)
		if to := goesTo(); len(s.report.Conflicts) == 0 || !slices.Equal(to, []string{"other"}) {
			t.Errorf("with the conflicts %v it goes to %v", s.report.Conflicts, to)
		}
	})
}

// The policy of the Transport took the place of one by which others kept unroutable messages, and led them to a queue that did not exist yet.
func TestUnrouted_TakesNoMessagesFromOthersForAQueueThatDoesNotExist(t *testing.T) {
	play(t, func(s *scene) {
		_, _ = s.b.declareExchange(topology.Exchange{Name: "async", Type: topology.TypeDirect, Durable: true})
		_, _ = s.b.declareExchange(topology.Exchange{Name: "their-alternate", Type: topology.TypeFanout, Durable: true})
		quorum := topology.Arguments{"x-queue-type": "quorum"}
		_, _ = s.b.declareQueue(topology.Queue{Name: "theirs", Type: topology.TypeQuorum, Durable: true, Arguments: quorum})
		_ = s.b.bind(topology.Binding{Source: "their-alternate", Destination: "theirs"})
		_, _ = s.b.apply(topology.Step{Action: topology.ActionCreate, Policy: &topology.Policy{
			Name: "theirs", Pattern: "^async$", ApplyTo: "exchanges", Priority: 10, Definition: topology.Arguments{"alternate-exchange": "their-alternate"},
		}})
		s.spec.Spec.Queues = []v1alpha1.Queue{{Name: "test", BindingKeys: []string{"test"}}, {Name: "lost", Adopt: new(true)}}
		s.spec.Spec.Exchange.UnroutedTo = new("lost")
		goesTo := func() []string { return s.b.route("async", simulatedMessage{key: "nobody's"}) }
		s.looks(5)
		if to := goesTo(); !slices.Equal(to, []string{"theirs"}) {
			t.Errorf("without the queue an unroutable message goes to %v", to)
		}
		_, _ = s.b.declareQueue(topology.Queue{Name: "lost", Type: topology.TypeQuorum, Durable: true, Arguments: quorum})
		s.looks(5)
		if to := goesTo(); !slices.Equal(to, []string{"lost"}) {
			t.Errorf("with it, it goes to %v", to)
		}
	})
}

// A key that moved out of the migrated queue to one in conflict kept the migration standing in the middle, and what came first unread.
func TestMigration_GoesOnWhereAKeyMovesToAQueueInConflict(t *testing.T) {
	quorum := func(queue string, owner string) topology.Queue {
		return topology.Queue{Name: queue, Type: topology.TypeQuorum, Durable: true, Arguments: topology.Arguments{
			"x-queue-type": "quorum", "x-dead-letter-exchange": "async.failed", "x-dead-letter-strategy": "at-least-once",
			"x-overflow": "reject-publish", topology.OwnerArgument: owner,
		}}
	}
	classic := topology.Queue{Type: topology.TypeClassic, Durable: true, Arguments: topology.Arguments{"x-queue-type": "classic"}}
	named := func(queue topology.Queue, name string) topology.Queue { queue.Name = name; return queue }
	single := new(true)
	for name, c := range map[string]struct {
		theirs        topology.Queue
		single, adopt *bool
	}{
		"of another type, without an order":         {named(classic, "blocked"), nil, nil},
		"of another type":                           {named(classic, "blocked"), single, nil},
		"another Transport's":                       {quorum("blocked", "elsewhere/shop/other"), single, nil},
		"whose quarantine queue is of another type": {named(classic, "blocked.quarantine"), single, nil},
		"to be adopted, and another Transport's":    {quorum("blocked", "elsewhere/shop/other"), single, new(true)},
		"to be adopted, and is not there":           {quorum("somewhere else", ""), single, new(true)},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, func(s *scene) {
				_, _ = s.b.declareQueue(c.theirs)
				s.spec.Spec.Queues = []v1alpha1.Queue{{Name: "test", BindingKeys: []string{"test", "moves"}, SingleActiveConsumer: c.single}, other()}
				s.looks(3)
				s.spec.Spec.Queues = []v1alpha1.Queue{
					{Name: "test", BindingKeys: []string{"test"}, SingleActiveConsumer: c.single, Type: new(v1alpha1.QueueClassic)},
					other(),
					{Name: "blocked", BindingKeys: []string{"moves"}, Adopt: c.adopt},
				}
				s.follow(60)
				to, moved := s.b.route("async", simulatedMessage{key: "test"}), s.b.route("async", simulatedMessage{key: "moves"})
				if len(s.report.Migrations) > 0 || !slices.Equal(to, []string{"test"}) || !slices.Equal(moved, []string{"test"}) {
					t.Errorf("with the conflicts %v the migration is at %v, and new messages go to %v and %v", s.report.Conflicts, s.report.Migrations, to, moved)
				}
			})
		})
	}
}

// follow takes looks, after each of which workers read as they are to.
func (s *scene) follow(looks int) {
	for range looks {
		s.looks(1)
		if s.report.StandIns != nil { // else it ended early
			s.workers, _ = s.workers.Following(s.report.StandIns, s.report.Leaving, s.report.There())
		}
	}
}

// Workers went on with the stand-in alone: what had come to the queue of the new name was not read.
func TestLeaving_IsReadWhereAnOrderedRenamingIsTakenBackBesideAConflict(t *testing.T) {
	play(t, func(s *scene) {
		single := new(true)
		spec := []v1alpha1.Queue{{Name: "test", BindingKeys: []string{"test"}, SingleActiveConsumer: single}, other()}
		s.spec.Spec.Queues = spec
		s.looks(3)
		s.fill("test", 5)
		s.spec.Spec.Queues = []v1alpha1.Queue{
			{Name: "orders", PreviousNames: []string{"test"}, BindingKeys: []string{"test"}, SingleActiveConsumer: single}, other(),
		}
		s.workers = working("orders", "other")
		s.workers.Queues[0].Standin, s.workers.Queues[0].Reads = "test", compile.ReadsStandin
		s.follow(20)
		s.fill("orders", 3)
		_, _ = s.b.declareQueue(topology.Queue{
			Name: "blocked", Type: topology.TypeClassic, Durable: true, Arguments: topology.Arguments{"x-queue-type": "classic"},
		})
		s.spec.Spec.Queues = slices.Concat(spec, []v1alpha1.Queue{{Name: "blocked"}})
		for range 20 {
			s.follow(1)
			s.b.queues["test"].ready = nil // workers read it
		}
		if !slices.ContainsFunc(s.workers.Queues, func(q compile.Queue) bool { return slices.Contains(q.Consumed(), "orders") }) {
			t.Errorf("with the conflicts %v nothing reads orders, which has %d messages", s.report.Conflicts, s.b.queues["orders"].depth())
		}
	})
}

// isRead is an error for each queue that gets messages and that workers do not consume.
func (s *scene) isRead(keys ...string) {
	s.t.Helper()
	var consumed []string
	for _, q := range s.workers.Queues {
		consumed = append(consumed, q.Consumed()...)
	}
	to := s.b.route("async", simulatedMessage{key: "test"})
	for _, key := range keys {
		to = slices.Concat(to, s.comesTo(key))
	}
	for _, queue := range to {
		if !slices.Contains(consumed, queue) {
			s.t.Errorf("with the conflicts %v messages come to %s, and workers consume %v; it migrates %v", s.report.Conflicts, queue, consumed, s.report.Migrations)
		}
	}
}

// The queue of the third name was made and got all messages, though workers were not told of it: they read that of the first name as a stand-in.
func TestRename_WaitsBesideAConflictWhereWorkersReadAStandIn(t *testing.T) {
	classic := topology.Queue{Type: topology.TypeClassic, Durable: true, Arguments: topology.Arguments{"x-queue-type": "classic"}}
	for _, former := range [][]string{{"orders", "test"}, {"test", "orders"}} {
		for _, conflict := range []string{"blocked", "post.quarantine"} {
			t.Run(former[0]+" first, beside "+conflict, func(t *testing.T) {
				play(t, func(s *scene) {
					s.looks(3)
					s.fill("test", 5)
					s.renamed()
					s.looks(6)
					theirs := classic
					theirs.Name = conflict
					_, _ = s.b.declareQueue(theirs)
					s.spec.Spec.Queues = []v1alpha1.Queue{{Name: "post", PreviousNames: former, BindingKeys: []string{"test"}}, other()}
					if conflict == "blocked" {
						s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: "blocked"})
					}
					s.follow(60)
					s.isRead("test", "orders")
				})
			})
		}
	}
}

func TestRename_WaitsBesideAConflictInTheMiddleOfAMigration(t *testing.T) {
	play(t, func(s *scene) {
		s.looks(3)
		s.spec.Spec.Queues[0].Type = new(v1alpha1.QueueClassic)
		s.workers.Queues[0].Standin = "test.migrating"
		for i := 0; i < 30 && s.b.queues["test"] != nil; i++ {
			s.looks(1)
		}
		s.fill("test.migrating", 5)
		_, _ = s.b.declareQueue(topology.Queue{
			Name: "blocked", Type: topology.TypeClassic, Durable: true, Arguments: topology.Arguments{"x-queue-type": "classic"},
		})
		s.spec.Spec.Queues = []v1alpha1.Queue{{Name: "orders", PreviousNames: []string{"test"}, BindingKeys: []string{"test"}}, other(), {Name: "blocked"}}
		s.follow(60)
		s.isRead("test")
	})
}
