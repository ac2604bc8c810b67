package topology

import (
	"maps"
	"slices"
	"strings"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
)

// argReplay names the replay of a staging queue. RabbitMQ stores it and ignores it.
const argReplay = "redrive-replay"

// ReplayObjects are what a replay needs on the broker while it lasts. Whoever carries it out makes and deletes them; the Transport lets them be.
//
// Both queues have the Transport's mark, so that they go with it: the staging queue holds failed messages, and while it does, the Transport is not
// deleted. The log queue holds only what was told of them.
func ReplayObjects(names compile.Names, owner, replay string) Objects {
	staging, log := names.Staging(replay), names.ReplayLog(replay)
	return Objects{
		Owner: owner, Prefix: names.Prefix,
		Queues: []Queue{
			{Name: staging, Type: TypeQuorum, Durable: true, Arguments: Arguments{argQueueType: TypeQuorum, OwnerArgument: owner, argReplay: replay}},
			{Name: log, Type: TypeQuorum, Durable: true, Arguments: Arguments{argQueueType: TypeQuorum, argSingleActive: true, OwnerArgument: owner, argReplay: replay}},
		},
		Bindings: []Binding{
			{Source: names.Return(), Destination: staging, RoutingKey: staging, Arguments: Arguments{OwnerArgument: owner}},
			// No owner mark: a headers exchange would match on it.
			{Source: names.Fallback(), Destination: log, Arguments: Arguments{argMatch: "all", message.HeaderOutcome: replay}},
		},
		Policies: []Policy{{
			Name: policyNamesOf(names.Prefix).replay(replay), Pattern: anyOf([]string{staging, log}), ApplyTo: applyToQueues, Priority: pinPriority,
			Definition: Arguments{keyDeliveryLimit: unlimitedDeliveries, keyOverflow: overflowRejectPublish},
		}},
	}
}

func (n policyNames) replay(id string) string { return n.start + "replay:" + id }

// replayOf is the replay that a policy of this prefix is for.
func (n policyNames) replayOf(policy string) (id string, is bool) {
	return strings.CutPrefix(policy, n.start+"replay:")
}

// ReplaysIn are the IDs of the replays of a Transport that have a queue, and so are unfinished, in their order.
func ReplaysIn(observed Observed, names compile.Names) []string {
	found := map[string]bool{}
	for _, queue := range observed.Queues {
		if id, _ := queue.Arguments[argReplay].(string); isOfReplay(queue.Queue, names.Prefix) {
			found[id] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// isOfReplay is true for a queue that somebody has made for a replay of this prefix.
func isOfReplay(queue Queue, prefix string) bool {
	id, is := queue.Arguments[argReplay].(string)
	names := compile.Names{Prefix: prefix}
	return is && (queue.Name == names.Staging(id) || queue.Name == names.ReplayLog(id))
}

// IsLog is true for a log queue, in which nobody's messages are.
func IsLog(queue Queue, prefix string) bool {
	id, _ := queue.Arguments[argReplay].(string)
	return queue.Name == compile.Names{Prefix: prefix}.ReplayLog(id)
}

// ofReplay is true for a binding into such a queue.
func (d *differ) ofReplay(binding Binding) bool {
	return !binding.ToExchange && isOfReplay(d.observed.Queues[binding.Destination].Queue, d.desired.Prefix)
}
