package apply_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// belated is a broker one of whose deletions is held up on its way: who asked for it hears nothing, and it is carried out later.
type belated struct {
	apply.Port

	// number of the deletion that is held up, from 1, and by how much at most.
	number int
	by     time.Duration
	// worst is closed at the worst moment for it, where that comes before.
	worst chan struct{}

	count int
	late  sync.WaitGroup
	// what was held up; empty before.
	what string
}

func (b *belated) delete(what string, request func() error) error {
	if b.count++; b.count != b.number {
		return request()
	}
	b.what = what
	b.late.Go(func() {
		select {
		case <-b.worst:
		case <-time.After(b.by):
		}
		_ = request()
	})
	return fmt.Errorf("delete %s: %w", what, broker.ErrUnreachable)
}

func (b *belated) Apply(ctx context.Context, step topology.Step) (existed bool, err error) {
	if step.Action != topology.ActionDelete || step.Binding == nil {
		return b.Port.Apply(ctx, step)
	}
	return false, b.delete(step.Ref().String(), func() error {
		_, err := b.Port.Apply(context.WithoutCancel(ctx), step)
		return err
	})
}

func (b *belated) DeleteQueue(ctx context.Context, name string, ifEmpty, ifUnused bool) error {
	return b.delete("queue/"+name, func() error { return b.Port.DeleteQueue(context.WithoutCancel(ctx), name, ifEmpty, ifUnused) })
}

// What a migration deletes are the queue, its stand-in and the ways into each. Every time a run ends without an answer its operator is
// taken for dead, and the next one knows what was written down.
//
// The worst moment is when all goes into what has been made again and the workers, for the order, have not begun to read it: the end of the first
// migration for the queue, and the middle of the second for its stand-in.
func TestMigration_LosesNothingToADeletionThatIsCarriedOutLate(t *testing.T) {
	t.Parallel()
	const deletions = 8
	for number := 1; number <= deletions; number++ {
		t.Run(fmt.Sprintf("deletion %d", number), func(t *testing.T) {
			s := newStage(t)
			f := s.settled(false, "test")
			f.within = 4 * testtransport.Patience
			s.waits.Request = time.Minute
			port := &belated{Port: s.client, number: number, by: 25 * time.Second, worst: make(chan struct{})}
			worst := sync.OnceFunc(func() { close(port.worst) })
			at := func(step v1alpha1.MigrationStep) func(apply.Report) {
				since := 0
				return func(report apply.Report) {
					if len(report.Migrations) == 1 && report.Migrations[0].Step == step && port.what != "" {
						if since++; since > 3 {
							worst()
						}
					}
				}
			}
			s.queue("test").SingleActiveConsumer = new(true)
			f.migrating(port, []string{"test"}, at(v1alpha1.MigrationCleanup))
			s.queue("test").SingleActiveConsumer = nil // once more, with a stand-in of the same name
			f.migrating(port, []string{"test"}, at(v1alpha1.MigrationDrain))
			port.late.Wait()
			f.migrating(port, []string{"test"}, nil)
			if doubled := f.check("test"); doubled > 0 {
				t.Errorf("%d messages were handled twice", doubled)
			}
			if !slices.IsSorted(f.order["test"]) {
				t.Error("the order is lost")
			}
			if t.Logf("held up was %s", port.what); port.what == "" {
				t.Error("there is no such deletion")
			}
		})
	}
}

// holding holds up one deletion of any kind until it is released, and says that it had no answer.
type holding struct {
	apply.Port

	// what is held up, such as "exchange/async.alternate".
	what    string
	release func() error
}

func (h *holding) hold(what string, request func() error) error {
	if what != h.what || h.release != nil {
		return request()
	}
	h.release = request
	return fmt.Errorf("delete %s: %w", what, broker.ErrUnreachable)
}

func (h *holding) Apply(ctx context.Context, step topology.Step) (existed bool, err error) {
	if step.Action != topology.ActionDelete {
		return h.Port.Apply(ctx, step)
	}
	return false, h.hold(step.Ref().String(), func() error {
		_, err := h.Port.Apply(context.WithoutCancel(ctx), step)
		return err
	})
}

func (h *holding) DeleteQueue(ctx context.Context, name string, ifEmpty, ifUnused bool) error {
	return h.hold("queue/"+name, func() error { return h.Port.DeleteQueue(context.WithoutCancel(ctx), name, ifEmpty, ifUnused) })
}

func (h *holding) DeleteExchange(ctx context.Context, name string) error {
	return h.hold("exchange/"+name, func() error { return h.Port.DeleteExchange(context.WithoutCancel(ctx), name) })
}

// A Transport that is made again must lose nothing to a deletion of the one before, whatever that deletes.
func TestDeletion_IsNotDoneWhileARequestMayBeCarriedOut(t *testing.T) {
	for _, what := range []string{"exchange/async.alternate", "policy/redrive.async:exchange", "binding/async.return -> test \"test\""} {
		t.Run(what, func(t *testing.T) {
			s := newStage(t)
			s.once()
			s.allCounted()
			port := &holding{Port: s.client, what: what}
			var heldAt time.Time
			s.eventually("the deletion to be done", func() bool {
				report, err := apply.Delete(context.Background(), ahead{port, s.moved}, apply.DeleteInput{
					Owner: s.owner, Prefix: "async", State: s.state, WorkersGone: s.workersGone, Waits: s.waits, Now: s.now, WriteDeletions: s.writeDeletions,
				})
				s.state.Created, s.state.Retiring, s.state.Deletions = report.Created, report.Retiring, report.Deletions
				if heldAt.IsZero() && port.release != nil {
					heldAt = s.now
				}
				s.workersGone = s.workersGone || report.Drained
				if err == nil && report.Done {
					return true
				}
				s.later(max(report.RequeueAfter, 11*time.Second))
				return false
			})
			if port.release == nil {
				t.Fatal("nothing was held up")
			}
			if passed := s.now.Sub(heldAt); passed < s.waits.Request {
				t.Errorf("the deletion is done %s after a request that may live for %s", passed, s.waits.Request)
			}
		})
	}
}

// A queue moves from one Transport to another while a deletion of it by the first had no answer.
func TestDoubts_KeepsAnotherTransportFromMakingTheQueue(t *testing.T) {
	s := newStage(t)
	s.once()
	s.allCounted()
	s.spec.Spec.Queues = s.spec.Spec.Queues[:1]
	port := &holding{Port: s.client, what: "queue/test"}
	s.eventually("the queue to be gone", func() bool {
		report, err := apply.Once(context.Background(), ahead{port, s.moved}, s.input(), func(context.Context, []string) error { return nil })
		if err != nil {
			t.Log(err)
		}
		s.state.Keep(&report)
		s.later(16 * time.Second)
		return port.release != nil && !s.exists("test") && !s.exists("test.quarantine")
	})
	other := s.beside("other")
	other.spec.Spec.Queues = []v1alpha1.Queue{{Name: "test", BindingKeys: []string{"test"}}}
	other.others, other.now = s.state.Deletions, s.now
	report := other.once()
	if s.exists("test") || !slices.ContainsFunc(report.Problems, func(f topology.Finding) bool { return f.Object.Name == "test" }) {
		t.Fatalf("the queue is made, or nothing is said: %v", report.Problems)
	}
	_ = port.release()
	other.now = other.now.Add(s.waits.Request + time.Second) // the lists may be that old
	other.once()
	if !s.exists("test") {
		t.Error("the queue is not made when no request can take it any more")
	}
}

// The clock of who sent the request was ten minutes behind, and is put right; or who takes over has another clock.
func TestDoubts_KeepsADeletionByAClockThatIsBehind(t *testing.T) {
	s := newStage(t)
	s.once()
	s.allCounted()
	all := s.spec.Spec.Queues
	s.spec.Spec.Queues = slices.Clone(all[:1])
	port := &holding{Port: s.client, what: "queue/test"}
	s.eventually("the deletion to be sent", func() bool {
		report, err := apply.Once(t.Context(), ahead{port, s.moved}, s.input(), func(context.Context, []string) error { return nil })
		s.state.Keep(&report)
		if port.release == nil && err != nil {
			t.Fatal(err)
		}
		s.later(16 * time.Second)
		return port.release != nil
	})
	if err := s.client.DeleteQueue(t.Context(), "test", false, false); err != nil { // as another request did that got through
		t.Fatal(err)
	}
	s.now, s.state.Doubts = s.now.Add(10*time.Minute), nil // seconds later
	s.spec.Spec.Queues = all
	s.once()
	if s.exists("test") {
		t.Error("it is made again while a request that may still be carried out would take it")
	}
	if err := port.release(); err != nil {
		t.Fatal(err)
	}
	s.later(s.waits.Request + time.Second) // the lists may be that old
	s.once()
	for range 5 {
		s.publish("async", "test", nil)
	}
	s.holds("test", 5)
}
