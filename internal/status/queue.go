package status

import (
	"fmt"
	"strconv"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/topology"
)

// Queue is a queue with the broker's counts, which are up to some seconds old. A count is nil where the broker has none
// yet, or the queue does not exist.
type Queue struct {
	Name string        `json:"name"`
	Role topology.Role `json:"role"`
	// Waiting messages are ready to be delivered; in a lane, they wait for its TTL.
	Waiting *int64 `json:"waiting,omitempty"`
	// InHand messages were delivered and are not settled.
	InHand *int64 `json:"inHand,omitempty"`
	// Oldest bounds the age of the oldest message that waits, such as "<5s"; empty where none does, or where the broker does
	// not tell. RabbitMQ keeps no time of arrival, and a message is never taken out to look at it: that would mark it as
	// redelivered.
	Oldest    string `json:"oldest,omitempty"`
	Consumers *int64 `json:"consumers,omitempty"`
	// Leaving messages have expired and are not in the next queue yet. They stay where they cannot get there.
	Leaving int64 `json:"leaving,omitempty"`
	// Notes say what is not as usual.
	Notes []string `json:"notes,omitempty"`
}

// row reads the counts of one queue.
func row(role topology.Role, name string, observed topology.Observed) Queue {
	state, exists := observed.Queues[name]
	if !exists {
		return Queue{Name: name, Role: role, Notes: []string{"does not exist"}}
	}
	found := Queue{Name: name, Role: role}
	if state.Messages == nil {
		found.Notes = append(found.Notes, "not counted yet")
		return found
	}
	found.Waiting, found.InHand, found.Consumers = &state.Ready, &state.Unacked, &state.Consumers
	found.Leaving = state.MessagesDLX
	found.Oldest = oldest(state)
	if role == topology.RoleQuarantine && state.Ready > 0 && state.Consumers == 0 {
		found.Notes = append(found.Notes, "the quarantine worker does not consume it")
	}
	if role == topology.RoleReplay && state.Consumers == 0 {
		found.Notes = append(found.Notes, "no process carries it on: redrive replay ls")
	}
	if found.Leaving > 0 {
		found.Notes = append(found.Notes, fmt.Sprintf("%d expired and not in the next queue yet", found.Leaving))
	}
	return found
}

// oldest follows from the TTL alone: what waits is younger, and what has expired and is still there is older.
func oldest(state topology.QueueState) string {
	ttl := timeToLive(state)
	switch {
	case ttl == 0:
		return ""
	case state.MessagesDLX > 0:
		return ">" + retry.LaneKey(ttl)
	case state.Ready > 0:
		return "<" + retry.LaneKey(ttl)
	default:
		return ""
	}
}

// timeToLive is the shorter one of argument and policy; zero where there is none.
func timeToLive(state topology.QueueState) time.Duration {
	var shortest time.Duration
	for _, value := range []any{state.Arguments["x-message-ttl"], state.EffectiveDefinition["message-ttl"]} {
		// Of whatever type the number is, its text is the same.
		milliseconds, err := strconv.ParseInt(fmt.Sprint(value), 10, 64)
		if err != nil || milliseconds <= 0 {
			continue
		}
		if ttl := time.Duration(milliseconds) * time.Millisecond; shortest == 0 || ttl < shortest {
			shortest = ttl
		}
	}
	return shortest
}

func (q *Queue) note(retirement *v1alpha1.Retirement, adopted bool) {
	switch {
	case retirement == nil:
	case retirement.Unbound != nil:
		q.Notes = append(q.Notes, "unbound, and deleted once it is empty")
	default:
		q.Notes = append(q.Notes, "no longer wanted; still bound")
	}
	if adopted {
		q.Notes = append(q.Notes, "adopted, and never deleted")
	}
}
