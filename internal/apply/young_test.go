package apply_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// remembering is a faulty port that shows what was made.
type remembering struct{ faulty }

func newRemembering() *remembering {
	return &remembering{faulty{observed: topology.Observed{
		Exchanges: map[string]topology.ExchangeState{}, Queues: map[string]topology.QueueState{}, Policies: map[string]topology.Policy{},
	}}}
}

func (r *remembering) Apply(ctx context.Context, step topology.Step) (bool, error) {
	existed, err := r.faulty.Apply(ctx, step)
	switch {
	case err != nil:
	case step.Queue != nil:
		r.observed.Queues[step.Queue.Name] = topology.QueueState{Queue: *step.Queue}
	case step.Exchange != nil:
		r.observed.Exchanges[step.Exchange.Name] = topology.ExchangeState{Exchange: *step.Exchange}
	case step.Policy != nil:
		r.observed.Policies[step.Policy.Name] = *step.Policy
	case step.Binding != nil && step.Action == topology.ActionCreate:
		r.observed.Bindings = append(r.observed.Bindings, *step.Binding)
	}
	return existed, err
}

// bound are the queues into which a run has led something.
func bound(report apply.Report) (queues []string) {
	for _, step := range report.Steps {
		if step.Binding != nil && step.Action == topology.ActionCreate {
			queues = append(queues, step.Binding.Destination)
		}
	}
	slices.Sort(queues)
	return slices.Compact(queues)
}

// young runs once, and gives the error of queues that are too young; nil where none is.
func (r *remembering) young(t *testing.T, in *apply.Input) (apply.Report, *apply.TooYoungError) {
	t.Helper()
	report, err := apply.Once(t.Context(), r, *in, keep)
	in.State.Keep(&report)
	young, is := errors.AsType[*apply.TooYoungError](err)
	if err != nil && !is {
		t.Fatal(err)
	}
	return report, young
}

// settle makes all there is to be made, with no regard to age.
func (r *remembering) settle(t *testing.T, in *apply.Input) {
	t.Helper()
	if _, young := r.young(t, in); young != nil {
		t.Fatal(young)
	}
}

const ripe = 2 * time.Second

func TestYoung_LeadsNothingIntoANewQueue(t *testing.T) {
	port, in := newRemembering(), input(t)
	in.Waits.Young = ripe
	report, young := port.young(t, &in)
	if young == nil || young.After <= ripe-time.Second || young.After > ripe || !slices.Contains(young.Queues, "test") {
		t.Fatalf("want it to wait, got %+v", young)
	}
	for _, step := range report.Steps {
		pins := step.Policy != nil && !topology.IsWorkPolicy(step.Policy.Name, "async")
		private := step.Exchange != nil && step.Exchange.Role != topology.RoleProducers
		if step.Queue == nil && !pins && !private {
			t.Errorf("before anything leads there it does %s", step)
		}
	}
	if len(report.Created) != 0 || len(report.Skipped) != 0 {
		t.Errorf("what is not made is not ours: %v, and not skipped either: %v", report.Created, report.Skipped)
	}
	in.Now = in.Now.Add(time.Second)
	if report, young = port.young(t, &in); young == nil || young.After > ripe-time.Second/2 || len(report.Steps) != 0 {
		t.Errorf("a second later it does %s, and waits %+v", steps(report.Steps), young)
	}
	in.Now = in.Now.Add(2 * time.Second)
	report, young = port.young(t, &in)
	if young != nil || !slices.Contains(bound(report), "test") || !slices.Contains(report.Created, "exchange/async") {
		t.Errorf("when they are old enough it does %s, and waits %+v", steps(report.Steps), young)
	}
	if report, young = port.young(t, &in); young != nil || len(report.Steps) != 0 {
		t.Errorf("at the end it does %s", steps(report.Steps))
	}
}

func TestYoung_IsAssumedOfAnUnknownQueueThatIsToBeBound(t *testing.T) {
	port, in := newRemembering(), input(t)
	port.settle(t, &in)
	in.Waits.Young = ripe
	in.State.Memory = apply.Memory{} // as after a restart
	if report, young := port.young(t, &in); young != nil || len(report.Steps) != 0 {
		t.Errorf("where nothing is to be bound nothing waits: %+v, %s", young, steps(report.Steps))
	}
	in.State.Memory = apply.Memory{}
	port.observed.Bindings = slices.DeleteFunc(port.observed.Bindings, func(b topology.Binding) bool {
		return b.Source == "async" && b.Destination == "test"
	})
	if report, young := port.young(t, &in); young == nil || !slices.Equal(young.Queues, []string{"test"}) || len(report.Steps) != 0 {
		t.Errorf("want it to wait for test, got %+v, %s", young, steps(report.Steps))
	}
	in.Now = in.Now.Add(ripe)
	if report, young := port.young(t, &in); young != nil || !slices.Equal(bound(report), []string{"test"}) {
		t.Errorf("want test bound, got %+v, %s", young, steps(report.Steps))
	}
}

func TestYoung_DoesNotWaitForAQueueThatCannotBeMade(t *testing.T) {
	port, in := newRemembering(), input(t)
	in.Waits.Young = ripe
	port.refuse = func(step topology.Step) error {
		if step.Queue != nil && step.Queue.Name == "test" {
			return broker.ErrForbidden
		}
		return nil
	}
	if _, young := port.young(t, &in); young == nil || slices.Contains(young.Queues, "test") {
		t.Fatalf("want it to wait for the others, got %+v", young)
	}
	in.Now = in.Now.Add(ripe + time.Second)
	report, young := port.young(t, &in)
	if young != nil || !slices.Contains(bound(report), "lost") || slices.Contains(bound(report), "test") || len(report.Failures) != 1 {
		t.Errorf("want all but test bound, got %+v, %s", young, steps(report.Steps))
	}
}

func TestYoung_KeepsAWayUntilTheNextOneIsThere(t *testing.T) {
	port, in := newRemembering(), input(t)
	port.settle(t, &in)
	in.Waits.Young, in.Now = ripe, in.Now.Add(time.Hour)
	moved := async()
	moved.Spec.Queues[1].BindingKeys = []string{"kept"}
	moved.Spec.Queues = append(moved.Spec.Queues, v1alpha1.Queue{Name: "next", BindingKeys: []string{"test"}})
	in.Desired = desiredOf(t, moved)
	report, young := port.young(t, &in)
	if young == nil || !slices.Equal(young.Queues, []string{"next", "next.quarantine"}) || strings.Contains(steps(report.Steps), "- binding") {
		t.Fatalf("want both ways to wait, got %+v, %s", young, steps(report.Steps))
	}
	in.Now = in.Now.Add(ripe + time.Second)
	report, young = port.young(t, &in)
	text := steps(report.Steps)
	if made, gone := strings.Index(text, `+ binding async -> next "test"`), strings.Index(text, `- binding async -> test "test"`); young != nil || made < 0 || gone < made {
		t.Errorf("want the next way before the last goes, got %+v, %s", young, text)
	}
}

func TestYoung_BindsAClassicQueueAtOnce(t *testing.T) {
	port, in := newRemembering(), input(t)
	port.settle(t, &in)
	in.Waits.Young, in.Now = ripe, in.Now.Add(time.Hour)
	more := async()
	more.Spec.Queues[1].Type = new(v1alpha1.QueueClassic)
	in.Desired = desiredOf(t, more)
	delete(port.observed.Queues, "test")
	port.observed.Bindings = slices.DeleteFunc(port.observed.Bindings, func(b topology.Binding) bool { return b.Destination == "test" })
	if report, young := port.young(t, &in); young != nil || !slices.Equal(bound(report), []string{"test"}) {
		t.Errorf("want test bound, got %+v, %s", young, steps(report.Steps))
	}
}

// The broker is killed a second after a run that only made queues: one that is younger than that has no leader any more after a
// restart, whatever is or is not in it. After others it is killed sooner than RabbitMQ knows a queue again that gets messages as
// soon as it is made.
const (
	afterMaking  = 1200 * time.Millisecond
	afterLeading = 500 * time.Millisecond
)

// leads is true for a run that made or removed a binding.
func leads(report apply.Report) bool {
	return slices.ContainsFunc(report.Steps, func(step topology.Step) bool { return step.Binding != nil })
}

func TestMigration_LosesNothingToABrokerKilledAfterEachStep(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	k := underFire(t, true)
	s, f := k.s, k.f
	s.queue("test").SingleActiveConsumer = new(true)
	if took := f.migrating(s.client, []string{"test"}, k.killAfterSteps); !slices.Equal(took, wholeWay()) {
		t.Errorf("it took the steps %v", took)
	}
	s.queue("test").BindingKeys = []string{"kept"}
	s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: "next", BindingKeys: []string{"test"}})
	f.migrating(s.client, []string{"test", "next"}, k.killAfterSteps)
	f.check("test")
	if k.kills < 8 {
		t.Errorf("it was killed only %d times", k.kills)
	}
}

// desiredOf are the objects of another spec.
func desiredOf(t *testing.T, transport *v1alpha1.Transport) topology.Objects {
	t.Helper()
	objects, err := topology.Desired(transport, compile.Needs{}, owner)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}
