package apply_test

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/topology"
)

// laggard is a broker that takes its time for each answer.
type laggard struct {
	*faulty
	answer time.Duration
}

func (l *laggard) Queue(ctx context.Context, name string) (topology.QueueState, error) {
	<-time.After(l.answer)
	return l.faulty.Queue(ctx, name)
}

// goner is the observation of one queue that the Transport owns, empty and without bindings.
func goner(name string, arguments topology.Arguments) (topology.Observed, topology.QueueState) {
	arguments[topology.OwnerArgument] = owner
	state := topology.QueueState{
		Evidence: topology.Evidence{Messages: new(int64(0))},
		Queue:    topology.Queue{Name: name, Type: topology.TypeQuorum, Arguments: arguments},
	}
	return topology.Observed{Queues: map[string]topology.QueueState{name: state}}, state
}

func TestDeletion_BeginsItsWaitsWhenASlowBrokerHasAnswered(t *testing.T) {
	observed, state := goner("old", topology.Arguments{"x-dead-letter-exchange": "async.failed"})
	port := &laggard{&faulty{observed: observed, queues: map[string]topology.QueueState{"old": state}}, 1200 * time.Millisecond}
	now := time.Now().Truncate(time.Second)
	past := &metav1.Time{Time: now.Add(-time.Hour)}
	for name, retiring := range map[string][]v1alpha1.Retirement{
		"that nothing leads to the queue": nil,
		"that it is empty":                {{Queue: "old", Since: past, Unbound: past}},
	} {
		report, err := apply.Delete(t.Context(), port, apply.DeleteInput{
			Owner: owner, Prefix: "async", State: apply.State{Retiring: retiring}, WorkersGone: true, Waits: topology.DefaultWaits(), Now: now,
		})
		if err != nil || len(report.Retiring) != 1 {
			t.Fatalf("%+v, %v", report, err)
		}
		begun := report.Retiring[0].Unbound
		if retiring != nil {
			begun = report.Retiring[0].Empty
		}
		if begun.Time.Before(now.Add(2 * time.Second)) {
			t.Errorf("the broker said after 1.2 s %s, and the state says %s after", name, begun.Sub(now))
		}
	}
	report, err := apply.Delete(t.Context(), port, apply.DeleteInput{Owner: owner, Prefix: "async", Waits: topology.DefaultWaits(), Now: now})
	if err != nil || len(report.Retiring) != 1 || report.Retiring[0].Since.Time.Before(now.Add(2*time.Second)) {
		t.Errorf("the drain: %+v, %v", report.Retiring, err)
	}
}

func TestDeletion_NamesAndAwaitsWhatIsNotCounted(t *testing.T) {
	observed, state := goner("test", topology.Arguments{"x-dead-letter-exchange": "async.failed"})
	state.Messages = nil
	observed.Queues["test"] = state
	port := &faulty{observed: observed, queues: map[string]topology.QueueState{"test": state}}
	past := &metav1.Time{Time: time.Now().Add(-time.Hour)}
	for _, workersGone := range []bool{false, true} {
		report, err := apply.Delete(t.Context(), port, apply.DeleteInput{
			Owner: owner, Prefix: "async", WorkersGone: workersGone, Waits: topology.DefaultWaits(), Now: time.Now(),
			State: apply.State{Retiring: []v1alpha1.Retirement{{Queue: "test", Since: past, Unbound: past, Empty: past, Published: new(int64(0))}}},
		})
		if err != nil || report.Done || (report.Drained && !workersGone) || !slices.Equal(report.Uncounted, []string{"test"}) || report.RequeueAfter <= 0 {
			t.Errorf("workers gone %v: %+v, %v", workersGone, report, err)
		}
	}
	if len(port.removed)+len(port.done) > 0 {
		t.Errorf("it removes %v and does %v", port.removed, port.done)
	}
}

// rebuilt is a broker on which somebody makes a queue while the last objects are taken away.
type rebuilt struct {
	*faulty
	again topology.Observed
	looks int
}

func (r *rebuilt) Observe(ctx context.Context) (topology.Observed, error) {
	if r.looks++; r.looks == 2 {
		return r.again, nil
	}
	return r.faulty.Observe(ctx)
}

func TestDeletion_LooksAgainWhereSomethingWasMadeMeanwhile(t *testing.T) {
	again, _ := goner("async.failed", topology.Arguments{})
	port := &rebuilt{faulty: &faulty{}, again: again}
	input := apply.DeleteInput{Owner: owner, Prefix: "async", WorkersGone: true, Waits: topology.DefaultWaits(), Now: time.Now()}
	report, err := apply.Delete(t.Context(), port, input)
	if err != nil || report.Done || report.RequeueAfter <= 0 {
		t.Errorf("want it to look again, got %+v, %v", report, err)
	}
	if report, err = apply.Delete(t.Context(), port, input); err != nil || !report.Done {
		t.Errorf("want it done, got %+v, %v", report, err)
	}
}

func TestDeletion_ForgetsCountsBeforeItRemovesABinding(t *testing.T) {
	observed, state := goner("test", topology.Arguments{"x-dead-letter-exchange": "async.failed"})
	observed.Bindings = []topology.Binding{{Source: "theirs", Destination: "test", PropertiesKey: "~"}}
	past := &metav1.Time{Time: time.Now().Add(-time.Hour)}
	for _, workersGone := range []bool{false, true} {
		port := &faulty{observed: observed, queues: map[string]topology.QueueState{"test": state}}
		input := apply.DeleteInput{
			Owner: owner, Prefix: "async", WorkersGone: workersGone, Waits: topology.DefaultWaits(), Now: time.Now(),
			State: apply.State{Retiring: []v1alpha1.Retirement{{Queue: "test", Since: past, Unbound: past, Empty: past, Published: new(int64(0))}}},
		}
		report, err := apply.Delete(t.Context(), port, input)
		if err != nil || len(port.done) != 0 || len(report.Retiring) != 0 || report.RequeueAfter <= 0 {
			t.Errorf("workers gone %v: want the state forgotten and nothing done, got %v, %+v, %v", workersGone, port.done, report, err)
		}
		input.State.Retiring = report.Retiring
		report, err = apply.Delete(t.Context(), port, input)
		if err != nil || !slices.Equal(port.done, []string{`- binding theirs -> test ""`}) || report.Done {
			t.Errorf("workers gone %v: want the binding gone, got %v, %+v, %v", workersGone, port.done, report, err)
		}
	}
}
