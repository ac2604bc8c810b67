package broker

import (
	"encoding/json"
	"slices"

	"redrive.dev/redrive/internal/topology"
)

// Queue states in which a queue's process counts its messages. Others, such as minority, down, stopped and crashed, say
// that the figure is that of an earlier moment, or of another node.
const (
	stateRunning = "running"
	// stateFlow is that of a classic queue whose publishers are slowed down.
	stateFlow = "flow"
)

// counted is the number of messages in the queue, in any state, where the broker's figure can be believed, and nil where
// it cannot. RabbitMQ deletes a quorum queue whatever is in it, so this figure decides whether a queue is empty, and for
// whatever is not known to be true there is none. docs/lifecycle.md has the table.
//
//   - With management.disable_stats and management.enable_queue_totals each node answers from a table of its own, which
//     says 0 of queues whose leaders are elsewhere. Such an answer lacks reductions, which the statistics count with the messages.
//   - Without its majority, or without its leader, what is shown of a quorum queue comes from a node that led it before.
func (r queueRow) counted() *int64 {
	switch {
	case r.Messages == nil || *r.Messages < 0, r.Reductions == nil:
		return nil
	case r.State != stateRunning && (r.State != stateFlow || r.Type == topology.TypeQuorum):
		return nil
	case r.Type == topology.TypeQuorum && (!r.hasMajority() || r.tick() == 0):
		return nil
	default:
		return r.Messages
	}
}

// tick is the work that the leader of a quorum queue had done when it counted: that of a process, so it only grows, and it grows by
// the counting itself. An answer without it has no count.
func (r queueRow) tick() int64 {
	if r.Type != topology.TypeQuorum || r.Reductions == nil {
		return 0
	}
	tick, err := r.Reductions.Int64()
	if err != nil {
		return 0
	}
	return tick
}

// hasMajority is true for a replicated queue whose leader and more than half of whose members are online.
func (r queueRow) hasMajority() bool {
	online := 0
	for _, member := range r.Members {
		if slices.Contains(r.Online, member) {
			online++
		}
	}
	return 2*online > len(r.Members) && slices.Contains(r.Online, string(r.Leader))
}

// text is a JSON string for which Erlang may write something else where it does not know.
type text string

// UnmarshalJSON takes anything but a string as empty.
func (t *text) UnmarshalJSON(raw []byte) error {
	var value string
	if json.Unmarshal(raw, &value) != nil {
		value = ""
	}
	*t = text(value)
	return nil
}

// texts is a JSON list of strings for which Erlang may write something else where it does not know.
type texts []string

// UnmarshalJSON takes anything but a list of strings as empty.
func (t *texts) UnmarshalJSON(raw []byte) error {
	var values []string
	if json.Unmarshal(raw, &values) != nil {
		values = nil
	}
	*t = values
	return nil
}
