package apply_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// faulty is a port without a broker behind it: it is empty, accepts everything, and fails where a test says so.
type faulty struct {
	observed topology.Observed
	// refuse says with which error a step fails; nil where it does not.
	refuse func(step topology.Step) error
	// existed says what is there already; nil where nothing is.
	existed func(step topology.Step) bool
	done    []string
	removed []string
	queues  map[string]topology.QueueState
	deleted error
	// by is how long it takes to delete a queue.
	by time.Duration
}

func (f *faulty) Observe(context.Context) (topology.Observed, error) { return f.observed, nil }

func (f *faulty) Apply(_ context.Context, step topology.Step) (bool, error) {
	if f.refuse != nil {
		if err := f.refuse(step); err != nil {
			return false, err
		}
	}
	f.done = append(f.done, step.String())
	return f.existed != nil && f.existed(step), nil
}

func (f *faulty) Queue(_ context.Context, name string) (topology.QueueState, error) {
	if state, ok := f.queues[name]; ok {
		return state, nil
	}
	return topology.QueueState{}, broker.ErrNotFound
}

func (f *faulty) Bindings(context.Context, string) ([]topology.Binding, error) { return nil, nil }

func (f *faulty) DeleteQueue(_ context.Context, name string, _, _ bool) error {
	f.removed = append(f.removed, name)
	time.Sleep(f.by)
	return f.deleted
}

func (f *faulty) DeleteExchange(context.Context, string) error { return nil }

func input(t *testing.T) apply.Input {
	t.Helper()
	objects, err := topology.Desired(async(), compile.Needs{}, owner)
	if err != nil {
		t.Fatal(err)
	}
	return apply.Input{Desired: objects, Waits: atOnce(), Now: time.Now()}
}

func keep(context.Context, []string) error { return nil }

func TestOnce_SkipsWhatBuildsOnARefusedStep(t *testing.T) {
	cases := []struct {
		name    string
		refused string
		skipped []string
	}{
		{"a work queue", "+ queue test ", []string{`+ binding async.return -> test "test"`, `+ binding async -> test "test"`}},
		{"a quarantine queue", "+ queue test.quarantine ", []string{
			`+ binding async.return -> test.quarantine "test.quarantine"`, `+ binding async -> test "test"`,
		}},
		{"a way out", "+ exchange async.return ", []string{
			`+ policy redrive.async:queue:lost.quarantine  pattern=^lost\.quarantine$, priority=1000, delivery-limit=20, overflow=reject-publish`,
			`+ policy redrive.async:queue:test.quarantine  pattern=^test\.quarantine$, priority=1000, delivery-limit=20, overflow=reject-publish`,
			"+ policy redrive.async:queue:lost  pattern=^lost$, priority=100, delivery-limit=20",
			"+ policy redrive.async:queue:test  pattern=^test$, priority=100, delivery-limit=20",
			`+ binding async.return -> lost.quarantine "lost.quarantine"`, `+ binding async.return -> test.quarantine "test.quarantine"`,
			`+ binding async.return -> lost "lost"`, `+ binding async.return -> test "test"`, `+ binding async.unrouted -> lost ""`,
			`+ binding async -> lost "lost"`, `+ binding async -> test "test"`,
		}},
		{"the binding of the failure queue", "+ binding async.failed -> ", []string{
			`+ policy redrive.async:queue:lost.quarantine  pattern=^lost\.quarantine$, priority=1000, delivery-limit=20, overflow=reject-publish`,
			`+ policy redrive.async:queue:test.quarantine  pattern=^test\.quarantine$, priority=1000, delivery-limit=20, overflow=reject-publish`,
			"+ policy redrive.async:queue:lost  pattern=^lost$, priority=100, delivery-limit=20",
			"+ policy redrive.async:queue:test  pattern=^test$, priority=100, delivery-limit=20",
			`+ binding async.unrouted -> lost ""`, `+ binding async -> lost "lost"`, `+ binding async -> test "test"`,
		}},
		{"a policy", "+ policy redrive.async:queue:test ", nil},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			port := &faulty{refuse: func(step topology.Step) error {
				if strings.HasPrefix(step.String(), c.refused) {
					return broker.ErrForbidden
				}
				return nil
			}}
			report, err := apply.Once(context.Background(), port, input(t), keep)
			if err != nil {
				t.Fatal(err)
			}
			if len(report.Failures) != 1 || !errors.Is(report.Failures[0].Err, broker.ErrForbidden) || report.Converged() {
				t.Errorf("failures: %+v", report.Failures)
			}
			if got := steps(report.Skipped); got != strings.Join(c.skipped, "\n") {
				t.Errorf("want skipped %q, got %q", c.skipped, got)
			}
		})
	}
}

func TestOnce_EndsWhenTheBrokerGoesAway(t *testing.T) {
	for _, cause := range []error{broker.ErrUnreachable, broker.ErrUnauthorized, context.Canceled} {
		port := &faulty{}
		port.refuse = func(topology.Step) error {
			if len(port.done) == 3 {
				return cause
			}
			return nil
		}
		report, err := apply.Once(context.Background(), port, input(t), keep)
		if !errors.Is(err, cause) || len(report.Steps) != 3 || len(report.Failures) != 0 {
			t.Errorf("want %v after three steps, got %v after %d", cause, err, len(report.Steps))
		}
		if len(report.Created) != 0 {
			t.Errorf("what was written down and not tried is not ours: %v", report.Created)
		}
	}
}

func TestOnce_AdoptsWhatOthersMadeMeanwhile(t *testing.T) {
	port := &faulty{existed: func(step topology.Step) bool { return step.Owner() == "" }}
	report, err := apply.Once(context.Background(), port, input(t), keep)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Created) != 0 || !slices.Equal(report.Adopted, []string{"exchange/async"}) {
		t.Errorf("created %v, adopted %v", report.Created, report.Adopted)
	}
}

func TestOnce_EndsWhereItIsOvertaken(t *testing.T) {
	port := &faulty{existed: func(step topology.Step) bool { return step.Queue != nil && step.Queue.Name == "test" }}
	report, err := apply.Once(context.Background(), port, input(t), keep)
	var overtaken *apply.OvertakenError
	if !errors.As(err, &overtaken) || overtaken.Object.String() != "queue/test" {
		t.Fatalf("want the queue test to be named, got %v", err)
	}
	if last := port.done[len(port.done)-1]; !strings.HasPrefix(last, "+ queue test ") {
		t.Errorf("it went on to %s", last)
	}
	// Another operator of the same Transport may be making it, by the same note.
	if !slices.Equal(report.Created, []string{"exchange/async"}) {
		t.Errorf("created %v", report.Created)
	}
}

func TestOnce_DoesNotOwnWhatTheBrokerRefusedToMake(t *testing.T) {
	port := &faulty{refuse: func(step topology.Step) error {
		if step.Exchange != nil && step.Exchange.Name == "async" {
			return broker.ErrForbidden
		}
		return nil
	}}
	in := input(t)
	report, err := apply.Once(context.Background(), port, in, keep)
	if err != nil || len(report.Failures) != 1 || len(report.Created) != 0 {
		t.Errorf("created %v after %v, %v", report.Created, report.Failures, err)
	}
	in.State.Created = []string{"exchange/async"} // An earlier run may have made it.
	if report, err = apply.Once(context.Background(), port, in, keep); err != nil || !slices.Equal(report.Created, in.State.Created) {
		t.Errorf("created %v, %v", report.Created, err)
	}
}

func TestOnce_OwnsWhatAStepWithoutAnAnswerMayHaveMade(t *testing.T) {
	port := &faulty{refuse: func(step topology.Step) error {
		if step.Exchange != nil && step.Exchange.Name == "async" {
			return broker.ErrUnreachable
		}
		return nil
	}}
	report, err := apply.Once(context.Background(), port, input(t), keep)
	if !errors.Is(err, broker.ErrUnreachable) || !slices.Equal(report.Created, []string{"exchange/async"}) {
		t.Errorf("created %v, %v", report.Created, err)
	}
}

func TestOnce_ForgetsWhatItCreatedAndIsGone(t *testing.T) {
	in := input(t)
	in.State.Created = []string{"exchange/async", "queue/old"}
	report, err := apply.Once(context.Background(), &faulty{}, in, keep)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(report.Created, []string{"exchange/async"}) {
		t.Errorf("created %v", report.Created)
	}
}

func TestRetirement_KeepsAClassicQueueThatFillsAtTheLastMoment(t *testing.T) {
	in := input(t)
	state := topology.QueueState{Evidence: topology.Evidence{Messages: new(int64(0))}, Queue: topology.Queue{
		Name: "old", Type: topology.TypeClassic, Arguments: topology.Arguments{"x-dead-letter-exchange": "async.failed"},
	}}
	past := &metav1.Time{Time: in.Now.Add(-time.Hour)}
	in.State = apply.State{
		Created:  []string{"queue/old"},
		Retiring: []v1alpha1.Retirement{{Queue: "old", Since: past, Unbound: past, Empty: past, Published: new(int64(0))}},
	}
	port := &faulty{
		deleted:  broker.ErrConflict,
		queues:   map[string]topology.QueueState{"old": state},
		observed: topology.Observed{Queues: map[string]topology.QueueState{"old": state}},
	}
	report, err := apply.Once(context.Background(), port, in, keep)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Retiring) != 1 || report.Retiring[0].Empty != nil || report.RequeueAfter <= 0 || len(report.Failures) != 0 {
		t.Errorf("want the counting to begin again, got %+v", report)
	}
	port.deleted = nil
	if report, err = apply.Once(context.Background(), port, in, keep); err != nil || len(report.Retiring) != 0 {
		t.Errorf("want it deleted, got %+v, %v", report.Retiring, err)
	}
	if slices.Contains(report.Created, "queue/old") {
		t.Error("what is deleted is no longer on the list")
	}
}

func TestRetirement_KeepsItsStateInAFailure(t *testing.T) {
	in := input(t)
	past := &metav1.Time{Time: in.Now.Add(-time.Hour)}
	old := v1alpha1.Retirement{Queue: "old", Since: past, Unbound: past, Empty: past, Published: new(int64(0))}
	in.State.Retiring = []v1alpha1.Retirement{old}
	state := topology.QueueState{Evidence: topology.Evidence{Messages: new(int64(0))}, Queue: topology.Queue{
		Name: "old", Type: topology.TypeQuorum, Arguments: topology.Arguments{"x-dead-letter-exchange": "d", "redrive-owner": owner},
	}}
	for _, c := range []struct {
		cause error
		ends  bool
	}{{broker.ErrForbidden, false}, {broker.ErrUnreachable, true}} {
		port := &faulty{
			deleted:  c.cause,
			queues:   map[string]topology.QueueState{"old": state},
			observed: topology.Observed{Queues: map[string]topology.QueueState{"old": state}},
		}
		report, err := apply.Once(context.Background(), port, in, keep)
		if (err != nil) != c.ends || (len(report.Failures) == 0) != c.ends {
			t.Errorf("%v: %v, %v", c.cause, err, report.Failures)
		}
		if len(report.Retiring) != 1 || !report.Retiring[0].Empty.Equal(old.Empty) {
			t.Errorf("%v: the state is lost: %+v", c.cause, report.Retiring)
		}
	}
}

func TestOnce_OwnsWhatAnEarlierRunWroteDown(t *testing.T) {
	again := input(t)
	again.State.Created = []string{"exchange/async"}
	report, err := apply.Once(context.Background(), &faulty{existed: func(step topology.Step) bool { return step.Owner() == "" }}, again, keep)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(report.Created, []string{"exchange/async"}) || len(report.Adopted) != 0 {
		t.Errorf("created %v, adopted %v", report.Created, report.Adopted)
	}
}
