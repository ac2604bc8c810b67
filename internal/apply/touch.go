package apply

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/topology"
)

// RabbitMQ starts the queues of a vhost one after the other. A quorum queue that dead-letters at-least-once and is started before the
// exchange or the queue that its expired messages go to, keeps up to 32 of them, and tries again only 180 s later
// (dead_letter_worker_publisher_confirm_timeout). A change of the policy of that queue makes it try at once what it has not
// published, and doubles nothing. That was measured with RabbitMQ 3.10 and 4.0. With the metadata store of 4.2 and later, Khepri, the
// queue has published them into nothing, and only a shorter timeout helps.
const (
	// betweenStuckLooks is the time between two looks at queues that expired messages do not leave. A look that comes sooner than sameLook
	// after another one does not count.
	betweenStuckLooks, sameLook = 5 * time.Second, 4 * time.Second
	// stuckLooks is how many looks in a row have to find some: for a moment that is normal.
	stuckLooks = 3
	// touchPause is the time between two changes of a policy, less than from the first look after a restart to the second, and mostTouches how many
	// there are while that lasts.
	touchPause  = 8 * time.Second
	mostTouches = 3
	// calm is for how long all expired messages must have left a queue until its policy is changed as often again. After a restart of the
	// broker no policy is changed for so long, but in the first seconds.
	calm = 5 * time.Minute
	// unhelped is after how many changes that did not help a queue is told of and left alone, and unhelpedLooks how many looks after the last
	// of them have to find that none has left it: the broker counts every 5 s.
	unhelped, unhelpedLooks = 2, 2
	// soonAfterRestart is for how long after a restart of the broker one look suffices. It holds the last of looksAfterRestart.
	soonAfterRestart = 40 * time.Second
)

// looksAfterRestart are the times after a restart of the broker at which a vhost with lanes is looked at: the first when the broker has
// counted once.
func looksAfterRestart() []time.Duration {
	return []time.Duration{5 * time.Second, 14 * time.Second, 30 * time.Second}
}

// LookAfterRestart is how long it is until the next look that a restart of the broker calls for; false where there is none.
func LookAfterRestart(restarted, now time.Time) (after time.Duration, due bool) {
	for _, look := range looksAfterRestart() {
		if left := restarted.Add(look).Sub(now); left > 0 {
			return left, true
		}
	}
	return 0, false
}

// Stuck is what is known of queues that expired messages did not leave. It is kept in memory only, and what it holds is not changed.
type Stuck struct {
	queues   map[string]stuckQueue
	policies map[string]touches
}

// stuckQueue is a queue that has expired messages.
type stuckQueue struct {
	// looks in a row have found some, and still of them that none had left the queue since the last change of its policy. looked is the time
	// of the last.
	looks, still int
	looked       time.Time
	// published and messages are the counts by which it shows whether messages have left the queue.
	published, messages int64
}

// touches are the changes of a policy, which are for all its queues, and the time of the last.
type touches struct {
	number int
	last   time.Time
}

// look is what is known with another look at a queue that has expired messages.
func (s stuckQueue) look(queue topology.QueueState, now time.Time) stuckQueue {
	switch {
	case s.looks > 0 && now.Sub(s.looked) < sameLook:
		return s
	case s.looks == 0 || s.haveLeft(queue):
		s = s.counting(queue)
	default:
		s.still++
	}
	s.looks++
	s.looked = now
	return s
}

// counting begins to count anew what leaves the queue.
func (s stuckQueue) counting(queue topology.QueueState) stuckQueue {
	s.still, s.published, s.messages = 0, queue.Published, messagesOf(queue)
	return s
}

// haveLeft is true where messages have left the queue. The broker counts what comes in and what is there at different moments, so of a
// queue with traffic more than half of what came in must have left it.
func (s stuckQueue) haveLeft(queue topology.QueueState) bool {
	came := queue.Published - s.published
	return came+s.messages-messagesOf(queue) > came/2
}

func messagesOf(queue topology.QueueState) int64 {
	if queue.Messages == nil {
		return 0
	}
	return *queue.Messages
}

// isUnhelped is true for a queue that changes of its policy did not help.
func (s stuckQueue) isUnhelped(policy touches) bool {
	return policy.number >= unhelped && s.still >= unhelpedLooks
}

// isDue is true for a queue whose policy is to be changed as soon as it may be.
func (s stuckQueue) isDue(policy touches, sinceRestart time.Duration) bool {
	return (s.looks >= stuckLooks || sinceRestart <= soonAfterRestart) && !s.isUnhelped(policy)
}

// rests is true for a policy that is not changed for now, whatever the next looks find.
func (t touches) rests(sinceRestart time.Duration) bool {
	return t.number >= mostTouches || sinceRestart > soonAfterRestart && sinceRestart < calm
}

// touch changes the policies of the queues that expired messages do not leave.
func (r *run) touch(ctx context.Context) error {
	now, restarted := r.clock(), r.input.State.Restarted
	since := now.Sub(restarted)
	stuck := r.lookForStuck(now, restarted)
	r.report.Stuck = stuck
	due := map[string]bool{}
	for name, queue := range stuck.queues {
		policy := r.observed.Queues[name].Policy
		touched := stuck.policies[policy]
		if queue.isDue(touched, since) && !touched.rests(since) {
			due[policy] = now.Sub(touched.last) >= touchPause
		}
		if !queue.isUnhelped(touched) && !touched.rests(since) {
			r.report.RequeueAfter = soonest(r.report.RequeueAfter, betweenStuckLooks)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(stuck.queues)) {
		if state := r.observed.Queues[name]; stuck.queues[name].isUnhelped(stuck.policies[state.Policy]) {
			r.warnOfStuck(state)
		}
	}
	for _, policy := range slices.Sorted(maps.Keys(due)) {
		if !due[policy] || r.isRivalled(policy) {
			continue
		}
		if err := r.touchPolicy(ctx, policy, now); err != nil {
			return err
		}
	}
	return nil
}

// lookForStuck is what is known with this look at all queues. With a restart of the broker it begins anew.
func (r *run) lookForStuck(now, restarted time.Time) Stuck {
	before, stuck := r.input.State.Stuck, Stuck{queues: map[string]stuckQueue{}, policies: map[string]touches{}}
	standing := map[string]bool{}
	for _, name := range r.mayBeStuck() {
		queue := r.observed.Queues[name]
		if queue.MessagesDLX == 0 || !r.isOurs(queue.Policy) {
			continue
		}
		known := before.queues[name]
		if known.looked.Before(restarted) {
			known = stuckQueue{}
		}
		stuck.queues[name], standing[queue.Policy] = known.look(queue, now), true
	}
	for policy, touched := range before.policies {
		if !touched.last.Before(restarted) && (standing[policy] || now.Sub(touched.last) <= calm) {
			stuck.policies[policy] = touched
		}
	}
	return stuck
}

// mayBeStuck are the queues that are wanted, and those on their way out that the state knows, as many as are counted at most: a broker may list any
// number of others under a policy of ours.
func (r *run) mayBeStuck() []string {
	names := make([]string, 0, len(r.input.Desired.Queues)+len(r.input.State.Retiring))
	for _, queue := range r.Difference.Wanted.Queues {
		names = append(names, queue.Name)
	}
	for _, m := range r.Difference.Migrations {
		names = append(names, m.Queue, m.Standin)
	}
	names = append(names, r.input.retiring()...)
	names = slices.DeleteFunc(names, func(name string) bool { return r.observed.Queues[name].MessagesDLX == 0 })
	return names[:min(len(names), mostCounted)]
}

// isRivalled is true for a policy that somebody else's wins over, or may, with the other priority and not with the one that it has. That one may expire
// queues.
func (r *run) isRivalled(name string) bool {
	is := r.observed.Policies[name].Priority
	touched := r.observed.Policies[name].Touched(r.wantedPolicy(name)).Priority
	for other, policy := range r.observed.Policies {
		if policy.Priority >= touched && policy.Priority <= max(is, touched) && !topology.IsOurName(other) {
			return true
		}
	}
	return false
}

// touchPolicy changes a policy. For all its queues it begins to count what that helps.
func (r *run) touchPolicy(ctx context.Context, name string, now time.Time) error {
	touched := r.observed.Policies[name].Touched(r.wantedPolicy(name))
	step := topology.Step{Action: topology.ActionUpdate, Policy: &touched}
	stuck := r.report.Stuck
	stuck.policies[name] = touches{number: stuck.policies[name].number + 1, last: now}
	if _, err := r.port.Apply(ctx, step); err != nil {
		if ends(err) {
			return err
		}
		r.report.Failures = append(r.report.Failures, Failure{Step: step, Err: err})
		return nil
	}
	for _, queue := range slices.Sorted(maps.Keys(stuck.queues)) {
		if state := r.observed.Queues[queue]; state.Policy == name {
			stuck.queues[queue] = stuck.queues[queue].counting(state)
			r.report.Touched = append(r.report.Touched, queue)
		}
	}
	return nil
}

// isOurs is true for a policy of this Transport that is there.
func (r *run) isOurs(policy string) bool {
	_, exists := r.observed.Policies[policy]
	return exists && r.wantedPolicy(policy).Name == policy
}

func (r *run) wantedPolicy(name string) (wanted topology.Policy) {
	for _, policy := range r.Difference.Wanted.Policies {
		if policy.Name == name {
			wanted = policy
		}
	}
	return wanted
}

// warnOfStuck tells of a queue that changes of its policy did not help, but where a queue is full: that is told of already, and is the cause.
func (r *run) warnOfStuck(queue topology.QueueState) {
	ref := topology.Ref{Kind: topology.KindQueue, Name: queue.Name}
	warnings := slices.DeleteFunc(slices.Clone(r.report.Warnings), func(f topology.Finding) bool {
		return f.Object == ref && f.Reason == v1alpha1.ReasonLaneStalled
	})
	if slices.ContainsFunc(warnings, func(f topology.Finding) bool { return f.Reason == v1alpha1.ReasonDestinationFull }) {
		return
	}
	warnings = append(warnings, topology.Finding{
		Object: ref, Reason: v1alpha1.ReasonLaneStalled,
		Message: fmt.Sprintf("its expired messages do not leave it, also after %d changes of its RabbitMQ policy: %s", unhelped, r.causeOfStuck(queue)),
	})
	r.report.Warnings = warnings
}

// causeOfStuck is why changes of its policy do not help a queue: after a restart of the broker mostly that. Else a node is not well.
func (r *run) causeOfStuck(queue topology.QueueState) string {
	if restarted := r.input.State.Restarted; restarted.IsZero() || r.clock().Sub(restarted) > calm {
		return "a queue that they go to takes none; look for a node that stands still, or a queue without a leader (rabbitmqctl list_queues name leader online)"
	}
	first := "it before the queue that they go to"
	if topology.RoleOf(queue.Queue) == topology.RoleLane {
		first = "the lane before its work queue"
	}
	return fmt.Sprintf("the broker started %s; it sends again 180 s after its start; with dead_letter_worker_publisher_confirm_timeout = 5000 in "+
		"advanced.config it does so after 5 s", first)
}
