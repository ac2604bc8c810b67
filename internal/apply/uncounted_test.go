package apply_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/testbroker"
	"redrive.dev/redrive/internal/testtransport"
	"redrive.dev/redrive/internal/topology"
)

// count gives all quorum queues a count but some.
func (r *remembering) count(but ...string) {
	for name, queue := range r.observed.Queues {
		queue.Messages = new(int64)
		if slices.Contains(but, name) {
			queue.Messages = nil
		}
		r.observed.Queues[name] = queue
	}
}

// growing is a Transport that stands and gets two more queues, "next" and "other"; all queues are counted but some.
func growing(t *testing.T, but ...string) (*remembering, apply.Input) {
	t.Helper()
	port, in := newRemembering(), input(t)
	port.settle(t, &in)
	in.Waits.Young, in.Now = ripe, in.Now.Add(time.Hour)
	more := async()
	more.Spec.Queues = append(more.Spec.Queues,
		v1alpha1.Queue{Name: "next", BindingKeys: []string{"next"}}, v1alpha1.Queue{Name: "other", BindingKeys: []string{"other"}})
	in.Desired = desiredOf(t, more)
	if _, young := port.young(t, &in); young == nil || !slices.Contains(young.Queues, "next") {
		t.Fatalf("want it to wait, got %+v", young)
	}
	port.count(but...)
	in.Now = in.Now.Add(13 * time.Second)
	return port, in
}

// tells is true where a finding is about a queue, and says what to do.
func tells(findings []topology.Finding, queue string) bool {
	return slices.ContainsFunc(findings, func(f topology.Finding) bool {
		return f.Object.Name == queue && strings.Contains(f.Message, "Start the nodes that have it")
	})
}

func TestUncounted_KeepsAQueueUnboundWhereOthersAreCounted(t *testing.T) {
	port, in := growing(t, "next")
	report, young := port.young(t, &in)
	if young == nil || !slices.Equal(young.Uncounted, []string{"next"}) || len(young.Queues) > 0 || len(report.Steps) > 0 || young.After <= 0 {
		t.Fatalf("want it to wait for the count of next, got %+v, %s", young, steps(report.Steps))
	}
	if len(report.Warnings) > 0 {
		t.Errorf("a queue that has just been made is told of: %v", report.Warnings)
	}
	if text := young.Error(); !strings.Contains(text, "not counted by RabbitMQ yet: next") || strings.Contains(text, "made just now") {
		t.Errorf("it says %q", text)
	}

	t.Log("it stays so: the others go on, and it is named")
	in.Now = in.Now.Add(30 * time.Second)
	for range 2 {
		report, young = port.young(t, &in)
		if young != nil || slices.Contains(bound(report), "next") || !tells(report.Problems, "next") || !tells(report.Warnings, "next") || len(report.Problems) != 1 {
			t.Errorf("want all but next bound, and next named, got %+v, %s, %+v", young, steps(report.Steps), report.Problems)
		}
		if report.Converged() || len(report.Skipped) == 0 {
			t.Error("it takes it for done")
		}
		// A retry of what somebody publishes straight to its name would come from the lane into the failure queue.
		config := compile.Config{Exchanges: compile.Exchanges{Return: "async.return"}, Queues: []compile.Queue{{Name: "next"}, {Name: "other"}}}
		if holds := report.Holds(config, nil); len(holds) != 1 || holds["next"] != compile.HoldCutOff {
			t.Errorf("workers are not to consume %v, want next alone", holds)
		}
		if holds := report.Holds(config, []compile.Config{config}); len(holds) > 0 {
			t.Errorf("workers that consume it are to end that: %v", holds)
		}
	}
	if made := port.observed.BindingsTo("other"); len(made) == 0 {
		t.Error("the other queue waits, too")
	}

	t.Log("it has a count")
	port.count()
	report, young = port.young(t, &in)
	if young != nil || !slices.Equal(bound(report), []string{"next"}) || len(report.Problems)+len(report.Warnings) > 0 || len(report.Unmade()) > 0 {
		t.Errorf("want next bound, got %+v, %s", young, steps(report.Steps))
	}
}

func TestUncounted_LetsAQueueBeBoundBeforeItsFirstCount(t *testing.T) {
	port, in := growing(t, "next")
	in.Now = in.Now.Add(-10 * time.Second)
	if report, young := port.young(t, &in); young != nil || !slices.Contains(bound(report), "next") {
		t.Errorf("want it bound 3 s after it was made, got %+v, %s", young, steps(report.Steps))
	}
}

func TestUncounted_HoldsNothingWhereNoQueueHasACount(t *testing.T) {
	port, in := growing(t, "lost", "test", "lost.quarantine", "test.quarantine", "next", "next.quarantine", "other", "other.quarantine", "async.failed",
		"async.fallback.1s", "async.fallback.3s")
	for name, queue := range port.observed.Queues {
		if queue.Messages != nil {
			t.Fatalf("%s has a count", name)
		}
	}
	report, young := port.young(t, &in)
	if young != nil || !slices.Contains(bound(report), "next") || len(report.Warnings) > 0 {
		t.Errorf("want all bound, got %+v, %s, %+v", young, steps(report.Steps), report.Warnings)
	}
}

func TestUncounted_LeadsNothingInWithoutTheFailureQueuesCount(t *testing.T) {
	port, in := newRemembering(), input(t)
	in.Waits.Young = ripe
	if _, young := port.young(t, &in); young == nil {
		t.Fatal("it does not wait")
	}
	port.count("async.failed")
	in.Now = in.Now.Add(time.Minute)
	report, young := port.young(t, &in)
	comes := slices.ContainsFunc(port.observed.BindingsTo("test"), func(b topology.Binding) bool { return b.Source == "async" })
	if young != nil || !tells(report.Problems, "async.failed") || comes {
		t.Errorf("what fails would have no way out: %+v, %s", young, steps(report.Steps))
	}
}

// A queue that is as young as this loses what is in it, and has no leader afterwards, for good.
func TestUncounted_LeadsNothingIntoAQueueThatDoesNotComeBack(t *testing.T) {
	testtransport.Long(t)
	t.Parallel()
	b := testbroker.Private(t)
	s := newStageOn(t, b)
	s.stand()
	s.waits.Young = ripe
	for _, name := range []string{"a", "b", "c", "next"} {
		s.spec.Spec.Queues = append(s.spec.Spec.Queues, v1alpha1.Queue{Name: name, BindingKeys: []string{name}})
	}
	if _, err := s.onceBy(s.client); err == nil || !strings.Contains(err.Error(), "made just now") {
		t.Fatalf("want it to wait, got %v", err)
	}
	if err := b.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.amqp = s.channel()
	var dead []string
	// RabbitMQ 4.3 brings them back, empty.
	s.eventually("the operator to name what does not come back, or to bind all", func() bool {
		report, err := s.onceBy(s.client)
		dead = nil
		for _, problem := range report.Problems {
			dead = append(dead, problem.Object.Name)
		}
		return err == nil && len(dead)+len(s.snapshot().BindingsTo("next")) > 0
	})
	t.Logf("without a leader are %v", dead)
	for _, name := range dead {
		for _, binding := range s.snapshot().BindingsTo(name) {
			t.Errorf("queue %s has no leader, and messages come by %+v", name, binding)
		}
		if err := s.client.DeleteQueue(t.Context(), name, false, false); err != nil {
			t.Fatal(err)
		}
	}
	s.eventually("all to be bound", func() bool {
		report, err := s.onceBy(s.client)
		return err == nil && len(report.Problems)+len(report.Failures)+len(report.Skipped)+len(report.Steps) == 0
	})
	for _, name := range []string{"a", "b", "c", "next"} {
		s.publish("async", name, nil)
		s.take(name)
	}
}
