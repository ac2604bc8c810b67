package apply_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// bindTheirs leads messages of another team into queues.
func (s *stage) bindTheirs(queues ...string) {
	s.t.Helper()
	if err := s.amqp.ExchangeDeclare("theirs", "fanout", true, false, false, false, nil); err != nil {
		s.t.Fatal(err)
	}
	for _, queue := range queues {
		if err := s.amqp.QueueBind(queue, "", "theirs", false, nil); err != nil {
			s.t.Fatal(err)
		}
	}
}

// Nothing but its status knows that a queue of its own making was adopted. Without that nobody may take from others what they use.
func TestSharedQueues_KeepsWhatOthersBoundWhenTheStatusIsLost(t *testing.T) {
	s := newStage(t)
	s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: "ours", BindingKeys: []string{"ours"}})
	s.once()
	s.bindTheirs("test")
	s.publish("theirs", "", nil)
	s.counted("test", 1)

	t.Log("made again without its status, and without two of its queues")
	before := s.spec.Spec.Queues
	s.spec.Spec.Queues, s.state = before[:1], apply.State{}
	report := s.once()
	if !slices.Contains(report.Adopted, "queue/test") || len(report.Spared) != 1 || !slices.Contains(report.Warnings, report.Spared[0]) ||
		!strings.Contains(report.Spared[0].String(), `queue test: it carries this Transport's mark, is not in spec.queues, and others have bound it (exchange "theirs", key "")`) {
		t.Errorf("adopted %v, spared %v, warnings %v", report.Adopted, report.Spared, report.Warnings)
	}
	if s.retiring("ours").Queue == "" {
		t.Errorf("the queue that is ours alone is kept: %+v", s.state.Retiring)
	}
	s.publish("theirs", "", nil)
	report = s.untilRetired()
	if s.exists("ours") || s.exists("test.quarantine") {
		t.Error("what is ours alone is left")
	}
	if want := []string{`theirs -> test ""`}; !slices.Equal(s.bindings("test"), want) || !slices.Contains(report.Adopted, "queue/test") || len(report.Spared) > 0 {
		t.Fatalf("bindings %q, adopted %v, spared %v", s.bindings("test"), report.Adopted, report.Spared)
	}
	s.publish("theirs", "", nil)
	s.counted("test", 3)

	t.Log("and removed where that is asked for")
	s.spec.Spec.Queues = before[:2]
	if report = s.once(); slices.Contains(report.Adopted, "queue/test") {
		t.Errorf("adopted %v", report.Adopted)
	}
	for range 3 {
		s.take("test")
	}
	s.counted("test", 0)
	s.spec.Spec.Queues = before[:1]
	s.once()
	if s.untilRetired(); s.exists("test") {
		t.Error("the queue is left")
	}
}

// One that has a past knows what was adopted, and takes its queues away as ever.
func TestRetirement_RemovesAQueueThatOthersHaveBound(t *testing.T) {
	s := newStage(t)
	s.once()
	s.bindTheirs("test")
	s.spec.Spec.Queues = s.spec.Spec.Queues[:1]
	if report := s.once(); len(report.Spared) > 0 || len(report.Adopted) > 0 {
		t.Errorf("adopted %v, spared %v", report.Adopted, report.Spared)
	}
	if s.untilRetired(); s.exists("test") {
		t.Error("the queue is left")
	}
}

// A queue that is to be taken as it is in the middle of its migration gets back what others have bound to it: they do not bind it again.
func TestMigration_RestoresBindingsOfAQueueAdoptedMeanwhile(t *testing.T) {
	testtransport.Long(t)
	s := newStage(t)
	s.once()
	if err := s.amqp.QueueBind("test", "others", "async", false, nil); err != nil {
		t.Fatal(err)
	}
	f := s.settled(false, "others", "test")
	f.as = map[string]string{"test.migrating": "test"}
	s.queue("test").Type = new(v1alpha1.QueueClassic)
	f.migrating(s.client, []string{"test"}, func(report apply.Report) {
		queue := s.queue("test")
		if queue.Adopt != nil || len(report.Migrations) == 0 || report.Migrations[0].Step != v1alpha1.MigrationDrain {
			return
		}
		if !slices.Contains(s.bindings("test.migrating"), `async -> test.migrating "others"`) {
			t.Errorf("into the stand-in lead %q", s.bindings("test.migrating"))
		}
		queue.Type, queue.Adopt = nil, new(true)
	})
	f.check("test")
	if s.exists("test.migrating") || !slices.Contains(s.bindings("test"), `async -> test "others"`) || s.snapshot().Queues["test"].Type != topology.TypeQuorum {
		t.Errorf("into the queue lead %q", s.bindings("test"))
	}
}

// uncounting is a broker that has not counted what is in its queues, as where its statistics are switched off.
type uncounting struct{ apply.Port }

func (u uncounting) Queue(ctx context.Context, name string) (topology.QueueState, error) {
	state, err := u.Port.Queue(ctx, name)
	state.Messages = nil
	return state, err
}

func TestRetirement_KeepsAndNamesAQueueThatIsNotCounted(t *testing.T) {
	s := newStage(t)
	s.once()
	s.spec.Spec.Queues, s.lanes = s.spec.Spec.Queues[:1], s.lanes[:1]
	var report apply.Report
	for range 4 {
		report = s.onceOn(uncounting{s.client})
		s.later(20 * time.Minute)
	}
	for _, queue := range []string{"test", "async.fallback.3s"} {
		if !slices.ContainsFunc(report.Warnings, func(f topology.Finding) bool {
			return f.Object.Name == queue && f.Passing && strings.Contains(f.Message, "the broker has not counted the messages in it")
		}) || !s.exists(queue) {
			t.Errorf("of %s is told %v", queue, report.Warnings)
		}
	}
	s.untilRetired()
	if report = s.once(); s.exists("test") || len(report.Warnings) > 0 {
		t.Errorf("at last: %v", report.Warnings)
	}
}

// afterEach publishes a message that no binding takes after each step that is carried out.
type afterEach struct {
	apply.Port
	step func()
}

func (p afterEach) Apply(ctx context.Context, step topology.Step) (bool, error) {
	changed, err := p.Port.Apply(ctx, step)
	p.step()
	return changed, err
}

// With equal priorities RabbitMQ went on with the policy of the first Transport, whose way was gone, until that one's next poll.
func TestUnroutedTo_MovesToAnotherTransportOfTheExchange(t *testing.T) {
	s := newStage(t)
	other := s.beside("other")
	other.spec.Spec.Exchange.Name, other.spec.Spec.Prefix = "async", new("other")
	s.once()
	other.once()
	published := 0
	looks := func(on *stage, route *string) {
		t.Helper()
		on.spec.Spec.Exchange.UnroutedTo = route
		for range 2 {
			on.onceOn(afterEach{on.client, func() {
				s.publish("async", "a key that nobody bound", nil)
				published++
			}})
		}
	}
	looks(other, new("other-work"))
	looks(s, nil)
	first, second := s.drained("lost"), s.drained("other-work")
	if first == 0 || second == 0 || first+second != published {
		t.Errorf("of %d unroutable messages %d went to the first queue, and %d to the second", published, first, second)
	}
	s.publish("async", "a key that nobody bound", nil)
	if got := s.drained("other-work"); got != 1 {
		t.Errorf("the next one went somewhere else: %d", got)
	}
}

// drained takes all messages of a queue.
func (s *stage) drained(queue string) (messages int) {
	s.t.Helper()
	for {
		_, got, err := s.amqp.Get(queue, true)
		if err != nil {
			s.t.Fatal(err)
		}
		if !got {
			return messages
		}
		messages++
	}
}
