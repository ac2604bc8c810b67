package topology

import (
	"fmt"
	"strings"

	"redrive.dev/redrive/api/v1alpha1"
)

// stallAt is the number of expired messages with nowhere to go that stops a lane for everybody: the broker's default for
// dead_letter_worker_consumer_prefetch.
const stallAt = 32

// stalls reports queues that are full and refuse what lanes bring back, and the lanes that cannot get rid of messages. That
// a lane holds many expired messages is normal for a moment where many expire at once; only a full queue makes it certain.
func (d *differ) stalls() {
	var full []string
	for _, queue := range d.desired.Queues {
		if queue.Role == RoleLane {
			continue
		}
		if limit := d.reached(d.observed.Queues[queue.Name]); limit != "" {
			full = append(full, fmt.Sprintf("queue %s is full", queue.Name))
			instead := "; spec.queues[].limits.dropOldestAfter bounds a queue without stopping lanes"
			if queue.Role == RoleQuarantine {
				instead = ""
			}
			d.warnf(KindQueue, queue.Name, v1alpha1.ReasonDestinationFull, "it is full and refuses messages, which stops the lanes "+
				"that lead to it (%s): take messages out, and take the limit away%s", limit, instead)
		}
	}
	for _, lane := range d.desired.QueuesOf(RoleLane) {
		if d.observed.Queues[lane].MessagesDLX < stallAt {
			continue
		}
		d.warnf(KindQueue, lane, v1alpha1.ReasonLaneStalled, "%d or more expired messages wait to leave it, and what comes later "+
			"waits behind them: %s", stallAt, causeOf(full))
		d.out.Warnings[len(d.out.Warnings)-1].Passing = len(full) == 0
	}
}

func causeOf(full []string) string {
	if len(full) > 0 {
		return strings.Join(full, ", ")
	}
	return "a queue that they return to takes none; if none is full, look for one without a leader"
}

// reached names the length limit that makes a queue refuse messages now, or nothing. Messages that a worker holds do not
// count for it.
func (d *differ) reached(queue QueueState) string {
	argument, byArgument := WholeNumber(queue.Arguments["x-max-length"])
	policy, byPolicy := WholeNumber(queue.EffectiveDefinition[keyMaxLength])
	if !strings.HasPrefix(overflowOf(queue), overflowRejectPublish) {
		return ""
	}
	length := queue.Ready + queue.MessagesDLX
	switch {
	case byPolicy && (!byArgument || policy <= argument) && length >= policy:
		return fmt.Sprintf("max-length %d by %s", policy, d.sourceOf(queue, keyMaxLength))
	case byArgument && length >= argument:
		return fmt.Sprintf("its argument x-max-length is %d", argument)
	default:
		return ""
	}
}

// overflowOf is what a queue does when it is full. Of quorum queues a policy decides first, of classic queues the argument.
func overflowOf(queue QueueState) string {
	argument, byArgument := queue.Arguments[argOverflow]
	policy, byPolicy := queue.EffectiveDefinition[keyOverflow]
	switch {
	case byPolicy && (queue.Type == TypeQuorum || !byArgument):
		return fmt.Sprint(policy)
	case byArgument:
		return fmt.Sprint(argument)
	default:
		return overflowDropHead
	}
}

// sourceOf names the policy that gives a queue a setting.
func (d *differ) sourceOf(queue QueueState, setting string) string {
	if policy, known := d.observed.Policies[queue.Policy]; known && same(policy.Definition[setting], queue.EffectiveDefinition[setting]) {
		return fmt.Sprintf("the RabbitMQ policy %q", queue.Policy)
	}
	return "an operator policy"
}

// WholeNumber is an argument of a queue, or a setting of a policy, as the management API and Go clients write whole numbers.
func WholeNumber(value any) (number int64, ok bool) {
	number, ok = normalise(value).(int64)
	return number, ok
}
