package apply

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

const (
	// uncountedFor is how long a queue may be without a count, while others have one, before it alone is left out and all else goes
	// on. RabbitMQ counts each within about 10 s, also after a restart.
	uncountedFor = 20 * time.Second
	// countedWithin is the age by which RabbitMQ has counted a queue: its first count comes after some 10 s. Until then it says
	// nothing that there is none, and whoever makes a queue beside others need not wait for it.
	countedWithin = 12 * time.Second
	// untilCounted is when to look again for a count.
	untilCounted = time.Second
)

// TooYoungError says that nothing is led into queues that have just been made, and what is to follow in a later run. Nothing else
// of that run is done before, since the bindings to these queues may have to be there first.
type TooYoungError struct {
	// Queues that are too young, and those that RabbitMQ has not counted yet although it has counted others; sorted.
	Queues, Uncounted []string
	// After is when to look again: the last of Queues is old enough then.
	After time.Duration
}

// Error names the queues.
func (e *TooYoungError) Error() string {
	var parts []string
	if len(e.Queues) > 0 {
		parts = append(parts, fmt.Sprintf(
			"made just now: %s; messages are led there in %s, since RabbitMQ may lose what comes into a quorum queue in its first second",
			strings.Join(e.Queues, ", "), e.After.Round(100*time.Millisecond)))
	}
	if len(e.Uncounted) > 0 {
		parts = append(parts, fmt.Sprintf("not counted by RabbitMQ yet: %s; messages are led there when it has a leader",
			strings.Join(e.Uncounted, ", ")))
	}
	return strings.Join(parts, "; ")
}

func isQuorum(queue topology.Queue) bool { return queue.Type == topology.TypeQuorum }

// knownSince are the quorum queues that are wanted and there, each with the time since when that is known: now for those that are
// new to whoever looks.
func knownSince(before map[string]time.Time, wanted topology.Objects, observed topology.Observed, now time.Time) map[string]time.Time {
	known := map[string]time.Time{}
	for _, queue := range wanted.Queues {
		got, exists := observed.Queues[queue.Name]
		if !exists || !isQuorum(got.Queue) {
			continue
		}
		since, is := before[queue.Name]
		if !is || since.After(now) {
			since = now
		}
		known[queue.Name] = since
	}
	return known
}

// uncounted are the quorum queues that are wanted and have no count, where RabbitMQ has counted another one. Such a queue has no leader,
// or is so young that its first count is still to come.
func uncounted(wanted topology.Objects, observed topology.Observed) []string {
	counts := func(queue topology.QueueState) bool { return isQuorum(queue.Queue) && queue.Messages != nil }
	if !slices.ContainsFunc(slices.Collect(maps.Values(observed.Queues)), counts) {
		return nil // nobody knows of any: statistics may be switched off
	}
	var names []string
	for _, queue := range wanted.Queues {
		if got, exists := observed.Queues[queue.Name]; exists && isQuorum(got.Queue) && got.Messages == nil {
			names = append(names, queue.Name)
		}
	}
	return names
}

// leaderless says what is the matter with a queue that stays without a count.
const leaderless = "RabbitMQ has no count of its messages, but of other queues: it has no leader, and confirms nothing that is published " +
	"to it. Start the nodes that have it. If they run, it may have been made less than a second before a node was killed, and does not " +
	"come back: delete it, unless messages were published straight to its name, and it is made again"

// warnOfUncounted tells of the queues without a count that have not just been made.
func (r *run) warnOfUncounted() {
	for _, name := range r.uncounted {
		if r.clock().Sub(r.report.Known[name]) < uncountedFor {
			continue
		}
		r.report.Warnings = append(slices.Clip(r.report.Warnings), topology.Finding{
			Object: topology.Ref{Kind: topology.KindQueue, Name: name}, Reason: v1alpha1.ReasonQueueUnavailable, Message: leaderless, Passing: true,
		})
	}
}

// young is a *TooYoungError where some of the steps lead into queues that are too young, or have no count; nil where none does. A queue
// that could not be made is none: what builds on it is skipped, and everything else goes on. So it is with one that stays without a
// count, which may have no leader for good.
func (r *run) young(steps []topology.Step) error {
	now, young, found := r.clock(), r.input.Waits.Young, &TooYoungError{}
	for _, step := range steps {
		if step.Binding == nil || step.Action != topology.ActionCreate || step.Binding.ToExchange {
			continue
		}
		name := step.Binding.Destination
		since, known := r.report.Known[name]
		switch age := now.Sub(since); {
		case !known:
		case age < young:
			found.Queues, found.After = append(found.Queues, name), max(found.After, young-age)
		case age < max(young, countedWithin) || young == 0 || !slices.Contains(r.uncounted, name):
		case age < uncountedFor:
			found.Uncounted, found.After = append(found.Uncounted, name), max(found.After, untilCounted)
		default:
			r.leaveOut(name)
		}
	}
	if len(found.Queues)+len(found.Uncounted) == 0 {
		return nil
	}
	for _, names := range []*[]string{&found.Queues, &found.Uncounted} {
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	return found
}

// leaveOut treats a queue as one that could not be made.
func (r *run) leaveOut(name string) {
	ref := topology.Ref{Kind: topology.KindQueue, Name: name}
	if r.failed[ref] {
		return
	}
	r.failed[ref] = true
	r.broken = r.broken || slices.Contains(r.input.Desired.QueuesOf(topology.RoleFailure), name)
	text := "nothing is bound to it: "
	if slices.Contains(r.input.Desired.QueuesOf(topology.RoleWork), name) {
		text = "nothing is bound to it, and workers do not begin to consume it: "
	}
	r.report.Problems = append(slices.Clip(r.report.Problems), topology.Finding{Object: ref, Message: text + leaderless})
}
