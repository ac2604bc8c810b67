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
	// betweenStuckLooks is the time between two looks at queues that expired messages do not leave.
	betweenStuckLooks = 5 * time.Second
	// stuckLooks is how many looks in a row have to find some: for a moment that is normal.
	stuckLooks = 3
	// touchPause is the time between two changes of a policy, and mostTouches how many there are while that lasts.
	touchPause  = 30 * time.Second
	mostTouches = 10
	// calm is for how long all expired messages must have left a queue until its policy is changed as often again.
	calm = 5 * time.Minute
	// unhelped is after how many changes that did not help a queue that loses no message is told of.
	unhelped = 2
)

// Stuck is what is known of a queue that has expired messages which did not leave it. It is kept in memory only.
type Stuck struct {
	// Looks in a row have found some, and Still of them that none had left the queue since the one before. Looked is the time of the
	// last.
	Looks, Still int
	Looked       time.Time
	// Touches are the changes of its policy, and Touched is the time of the last.
	Touches int
	Touched time.Time
	// arrived and messages are the counts of the last look.
	arrived, messages int64
}

// look is what is known with another look at the queue.
func (s Stuck) look(queue topology.QueueState, now time.Time) Stuck {
	switch {
	case queue.MessagesDLX == 0 && now.Sub(s.Touched) > calm:
		return Stuck{}
	case queue.MessagesDLX == 0:
		s.Looks, s.Still = 0, 0
		return s
	case s.Looks > 0 && now.Sub(s.Looked) < betweenStuckLooks:
		return s
	}
	var messages int64
	if queue.Messages != nil {
		messages = *queue.Messages
	}
	if s.Looks > 0 && queue.Published-s.arrived > messages-s.messages {
		s.Still = 0
	} else {
		s.Still++
	}
	s.Looks++
	s.Looked, s.arrived, s.messages = now, queue.Published, messages
	return s
}

// due is true where its policy is to be changed.
func (s Stuck) due(now time.Time) bool {
	return s.Looks >= stuckLooks && s.Touches < mostTouches && now.Sub(s.Touched) >= touchPause
}

// touch changes the policies of the queues that expired messages do not leave.
func (r *run) touch(ctx context.Context) error {
	now, policies := r.clock(), map[string][]string{}
	r.report.Stuck = map[string]Stuck{}
	for _, name := range slices.Sorted(maps.Keys(r.observed.Queues)) {
		queue := r.observed.Queues[name]
		stuck := r.input.State.Stuck[name].look(queue, now)
		if stuck == (Stuck{}) || !r.isOurs(queue.Policy) {
			continue
		}
		if stuck.due(now) {
			stuck.Touches, stuck.Touched = stuck.Touches+1, now
			policies[queue.Policy] = append(policies[queue.Policy], queue.Name)
		}
		if stuck.Looks > 0 && stuck.Touches < mostTouches {
			r.report.RequeueAfter = soonest(r.report.RequeueAfter, betweenStuckLooks)
		}
		if stuck.Touches > unhelped && stuck.Still > stuckLooks {
			r.warnOfStuck(queue.Name)
		}
		r.report.Stuck[queue.Name] = stuck
	}
	for _, name := range slices.Sorted(maps.Keys(policies)) {
		touched := r.observed.Policies[name].Touched(r.wantedPolicy(name))
		step := topology.Step{Action: topology.ActionUpdate, Policy: &touched}
		if _, err := r.port.Apply(ctx, step); err != nil {
			if ends(err) {
				return err
			}
			r.report.Failures = append(r.report.Failures, Failure{Step: step, Err: err})
			continue
		}
		r.report.Touched = append(r.report.Touched, policies[name]...)
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

// warnOfStuck tells of a queue that changes of its policy did not help, unless it is told of already.
func (r *run) warnOfStuck(name string) {
	ref := topology.Ref{Kind: topology.KindQueue, Name: name}
	if slices.ContainsFunc(r.report.Warnings, func(f topology.Finding) bool {
		return f.Object == ref && f.Reason == v1alpha1.ReasonLaneStalled
	}) {
		return
	}
	r.report.Warnings = append(slices.Clip(r.report.Warnings), topology.Finding{
		Object: ref, Reason: v1alpha1.ReasonLaneStalled,
		Message: fmt.Sprintf("its expired messages do not leave it, also after %d changes of its RabbitMQ policy: RabbitMQ has started it before "+
			"the queue that they go to, and sends them again 180 s after its start; with dead_letter_worker_publisher_confirm_timeout = 5000 in "+
			"advanced.config it does so after 5 s", unhelped),
	})
}
