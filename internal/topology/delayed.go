package topology

import (
	"fmt"
	"slices"

	"redrive.dev/redrive/api/v1alpha1"
)

// RabbitMQ 4.3 can hold back messages that come back to a quorum queue, and deliver those behind them meanwhile.
const (
	keyDelayedRetryType = "delayed-retry-type"
	argDelayedRetryType = "x-delayed-retry-type"
	delayedRetryOff     = "disabled"
)

// setting is one key of a policy, or one argument, with its value and where it comes from.
type setting struct {
	key    string
	value  any
	source string
	// remedy says how to take it away.
	remedy string
}

// String reads "the operator policy "p" sets delayed-retry-type to all".
func (s setting) String() string {
	return fmt.Sprintf("%s sets %s to %s", s.source, s.key, valueText(s.value))
}

// delayedRetryWarnings tell of quorum queues whose messages RabbitMQ holds back when they come back: that breaks the order of a
// Strict queue, and stops for good one whose length limit drops the oldest. A policy is not applied to queues of other types.
func (d *differ) delayedRetryWarnings(queue Queue, winner Policy) {
	got, exists := d.observed.Queues[queue.Name]
	if !exists || got.Type != TypeQuorum {
		return
	}
	delayed, set := d.settingOf(got, winner, keyDelayedRetryType, argDelayedRetryType)
	if !set || delayed.value == delayedRetryOff {
		return
	}
	if queue.Strict {
		d.warnf(KindQueue, queue.Name, v1alpha1.ReasonConflictingBrokerPolicy, "%s: RabbitMQ holds back a message that fails and delivers those behind it "+
			"before it, which breaks the Strict order; workers do not consume the queue as long as that holds: %s", delayed, delayed.remedy)
		d.out.Disordered = append(d.out.Disordered, queue.Name)
	}
	if limit, drops := d.dropsOldest(got, winner); drops {
		d.warnf(KindQueue, queue.Name, v1alpha1.ReasonConflictingBrokerPolicy, "%s, and %s with overflow drop-head: once more messages are held back than the "+
			"limit allows, the queue stops for good, and only deleting it with its messages ends that: %s; or take the limit away", delayed, limit, delayed.remedy)
	}
}

// dropsOldest gives the length limit of a quorum queue that drops its oldest messages; false where it has none.
func (d *differ) dropsOldest(got QueueState, winner Policy) (limit setting, drops bool) {
	overflow, set := d.settingOf(got, winner, keyOverflow, argOverflow)
	if set && overflow.value != overflowDropHead {
		return setting{}, false
	}
	if limit, set = d.settingOf(got, winner, keyMaxLength, "x-max-length"); set {
		return limit, true
	}
	return d.settingOf(got, winner, keyMaxLengthBytes, "x-max-length-bytes")
}

// settingOf finds what a setting of a quorum queue is, as far as that is known: by the policy that applies, or is about to; by what
// the broker says that policies come to, which may be some seconds old; or by the queue's argument.
func (d *differ) settingOf(got QueueState, winner Policy, key, argument string) (setting, bool) {
	if value, set := winner.Definition[key]; set {
		return setting{key: key, value: value, source: fmt.Sprintf("the RabbitMQ policy %q", winner.Name), remedy: remedyForKey(key)}, true
	}
	if value, set := got.EffectiveDefinition[key]; set && !d.isPast(got, winner, key) {
		source := "an operator policy"
		if got.OperatorPolicy != "" {
			source = fmt.Sprintf("the operator policy %q", got.OperatorPolicy)
		}
		return setting{
			key: key, value: value, source: source, remedy: remedyForKey(key) + " (rabbitmqctl list_operator_policies shows it)",
		}, true
	}
	value, set := got.Arguments[argument]
	return setting{
		key: argument, value: value, source: "its declaration",
		remedy: "a queue cannot change it: let the queue run empty and delete it, so that it is made without, or choose another name",
	}, set
}

func remedyForKey(key string) string {
	return fmt.Sprintf("take %s out of the policy, or narrow its pattern", key)
}

// isPast is true for a key of a policy that the broker still shows, and that another one has taken the place of by now.
func (d *differ) isPast(got QueueState, winner Policy, key string) bool {
	if got.OperatorPolicy != "" || got.Policy == "" || got.Policy == winner.Name {
		return false
	}
	_, had := d.observed.Policies[got.Policy].Definition[key]
	return had
}

// disordered are the queues whose order is broken, each once.
func (d *differ) disordered() {
	slices.Sort(d.out.Disordered)
	d.out.Disordered = slices.Compact(d.out.Disordered)
}

// winnerOf is the policy that applies to a queue once all are in force: ours, or a stronger one of others; the zero Policy where there
// is neither.
func (d *differ) winnerOf(queue string, got QueueState) Policy {
	ours, hasOurs := d.ownPolicy(KindQueue, queue)
	rival, found := d.rival(KindQueue, queue, got.Policy, ours)
	if found && (!hasOurs || wins(rival, ours)) {
		return rival
	}
	return ours
}
