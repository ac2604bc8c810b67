package apply_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/apply"
	"redrive.dev/redrive/internal/broker"
	"redrive.dev/redrive/internal/topology"
)

// noted is a broker that notes when a queue is deleted.
type noted struct {
	*faulty

	events []string
}

func (n *noted) DeleteQueue(ctx context.Context, name string, ifEmpty, ifUnused bool) error {
	n.events = append(n.events, "delete "+name)
	if err := n.faulty.DeleteQueue(ctx, name, ifEmpty, ifUnused); err != nil {
		return err
	}
	n.observed = topology.Observed{}
	return nil
}

func (n *noted) write(_ context.Context, deletions []v1alpha1.Deletion) error {
	for _, deletion := range deletions {
		n.events = append(n.events, "write "+deletion.Object)
	}
	return nil
}

func (n *noted) force(state []v1alpha1.Deletion, now time.Time, write func(context.Context, []v1alpha1.Deletion) error) (apply.DeleteReport, error) {
	return apply.Delete(context.Background(), n, apply.DeleteInput{
		Owner: owner, Prefix: "async", State: apply.State{Deletions: state}, Force: true, WorkersGone: true, Waits: topology.DefaultWaits(), Now: now,
		WriteDeletions: write,
	})
}

func TestDeletions_WritesEachDownBeforeItIsSent(t *testing.T) {
	observed, _ := goner("old", topology.Arguments{"x-dead-letter-exchange": "async.failed"})
	port := &noted{faulty: &faulty{observed: observed}}
	failed := errors.New("somebody else has written")
	if _, err := port.force(nil, time.Now(), func(context.Context, []v1alpha1.Deletion) error { return failed }); !errors.Is(err, failed) || len(port.events) > 0 {
		t.Errorf("where it cannot be written down: %v, %v", err, port.events)
	}
	report, err := port.force(nil, time.Now(), port.write)
	if want := []string{"write queue/old", "delete old"}; err != nil || !slices.Equal(port.events, want) {
		t.Errorf("%v, %v", err, port.events)
	}
	if !report.Done || len(report.Deletions) > 0 {
		t.Errorf("it had an answer: %+v", report)
	}
}

func TestDoubts_KeepsADeletionWithoutAnAnswerWhileItMayLive(t *testing.T) {
	observed, _ := goner("old", topology.Arguments{"x-dead-letter-exchange": "async.failed"})
	port := &noted{faulty: &faulty{observed: observed, deleted: broker.ErrUnreachable}}
	start := time.Now().Truncate(time.Second)
	lost, err := port.force(nil, start, port.write)
	if err == nil || len(lost.Deletions) != 1 || lost.Deletions[0].Object != "queue/old" || lost.Deletions[0].Written.Time.Before(start) {
		t.Fatalf("%v, %+v", err, lost.Deletions)
	}
	port.deleted = nil
	report, err := port.force(lost.Deletions, start.Add(time.Minute), port.write)
	if err != nil || report.Done || report.Awaited <= 0 || !slices.Equal(report.Deletions, lost.Deletions) {
		t.Errorf("the answer to another one tells nothing of the first: %v, %+v", err, report)
	}
	report, err = port.force(report.Deletions, start.Add(topology.DefaultWaits().Request+2*time.Second), port.write)
	if err != nil || !report.Done || len(report.Deletions) > 0 {
		t.Errorf("it is over: %v, %+v", err, report)
	}
}

// A proxy that had no answer may have sent it again, and passed on the answer to that.
func TestDoubts_KeepsADeletionThatIsAnsweredLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for by, want := range map[time.Duration]int{0: 0, 6 * time.Second: 1} {
			observed, _ := goner("old", topology.Arguments{"x-dead-letter-exchange": "async.failed"})
			port := &noted{faulty: &faulty{observed: observed, by: by}}
			report, err := port.force(nil, time.Now(), port.write)
			if err != nil || len(report.Deletions) != want {
				t.Errorf("answered after %s: %v, %+v, want %d that may still be carried out", by, err, report.Deletions, want)
			}
		}
	})
}

// slow is a broker that answers late before a queue is deleted.
type slow struct {
	*noted

	looks int
	by    time.Duration
}

func (s *slow) Queue(ctx context.Context, name string) (topology.QueueState, error) {
	if s.looks++; s.looks > 1 {
		<-time.After(s.by)
	}
	return s.noted.Queue(ctx, name)
}

func TestDeletions_SendsNoneThatWasWrittenDownTooLongAgo(t *testing.T) {
	observed, state := goner("old", topology.Arguments{"x-dead-letter-exchange": "async.failed"})
	for by, sent := range map[time.Duration]bool{0: true, 1200 * time.Millisecond: false} {
		port := &slow{noted: &noted{faulty: &faulty{observed: observed, queues: map[string]topology.QueueState{"old": state}}}, by: by}
		now := time.Now().Truncate(time.Second)
		past := topology.Stamp(now.Add(-time.Hour))
		waits := topology.DefaultWaits()
		waits.Request = 10 * time.Second
		_, err := apply.Delete(t.Context(), port, apply.DeleteInput{
			Owner: owner, Prefix: "async", WorkersGone: true, Waits: waits, Now: now, WriteDeletions: port.write,
			State: apply.State{Retiring: []v1alpha1.Retirement{{Queue: "old", Since: past, Unbound: past, Empty: past, Published: new(int64(0))}}},
		})
		if slices.Contains(port.events, "delete old") != sent || (err == nil) != sent {
			t.Errorf("after %s: %v, %v", by, port.events, err)
		}
	}
}
