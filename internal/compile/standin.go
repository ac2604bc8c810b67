package compile

import (
	"maps"
	"slices"

	"redrive.dev/redrive/api/v1alpha1"
)

// Reading says which queues are consumed of those that belong to one work queue.
type Reading string

const (
	// ReadsBoth consumes the queue, and its stand-in side by side with it.
	ReadsBoth Reading = ""
	// ReadsQueue consumes the queue alone: where messages have an order, those of one are all older than those of the other.
	ReadsQueue Reading = "Queue"
	// ReadsStandin consumes the stand-in alone.
	ReadsStandin Reading = "Standin"
	// ReadsSuspects consumes neither: only suspects of the queue are left.
	ReadsSuspects Reading = "Suspects"
)

// Standin is the queue beside a work queue that is exchanged, and which of the two are consumed.
type Standin struct {
	Queue string
	Reads Reading
}

// Consumed are the names of the queues on the broker that hold the messages of a work queue and are consumed now.
func (q Queue) Consumed() []string {
	switch {
	case q.Reads == ReadsSuspects:
		return nil
	case q.Standin == "" || q.Reads == ReadsQueue:
		return []string{q.Name}
	case q.Reads == ReadsStandin:
		return []string{q.Standin}
	default:
		return []string{q.Name, q.Standin}
	}
}

// WithStandIns is the configuration with stand-ins for those of its work queues that are exchanged. all holds them by the names
// of the work queues.
func (c *Config) WithStandIns(all map[string]Standin) Config {
	with := *c
	with.Queues = slices.Clone(c.Queues)
	for i := range with.Queues {
		queue := &with.Queues[i]
		if standin, exchanged := all[queue.Name]; exchanged || !queue.Leaving {
			queue.Standin, queue.Reads = standin.Queue, standin.Reads
		}
	}
	with.Version = with.version()
	return with
}

// WithLeaving is the configuration with those queues of the last one, which is in force, that are not wanted any more and are
// still on the broker: who consumed them empties them. leaving names these, stand-ins and queues of suspects too.
func (c *Config) WithLeaving(last Config, leaving []string) Config {
	with := *c
	with.Queues, with.Policies = slices.Clone(c.Queues), map[string]v1alpha1.RetryPolicySpec{}
	maps.Copy(with.Policies, c.Policies)
	for _, queue := range last.Queues {
		known := slices.ContainsFunc(c.Queues, func(q Queue) bool { return q.Name == queue.Name })
		queue, left := queue.leaving(leaving)
		if known || !left {
			continue
		}
		with.Queues = append(with.Queues, queue)
		if _, has := with.Policies[queue.Policy]; !has {
			with.Policies[queue.Policy] = last.Policies[queue.Policy]
		}
		if len(with.Lanes) == 0 {
			with.Lanes, with.HighLanes = last.Lanes, last.HighLanes
		}
	}
	with.Version = with.version()
	return with
}

// Named are the queues that a worker with this configuration needs: those that it consumes, and those of suspects into which it
// publishes.
func (c *Config) Named() []string {
	var names []string
	for _, queue := range c.Queues {
		if queue.Reads == ReadsSuspects {
			continue
		}
		names = append(names, queue.Name)
		if queue.Suspects != "" {
			names = append(names, queue.Suspects)
		}
	}
	return names
}

// leaving is the queue with what is still to be consumed of it; false where that is nothing.
func (q Queue) leaving(names []string) (Queue, bool) {
	q.Leaving = true
	itself, standin := slices.Contains(names, q.Name), q.Standin != "" && slices.Contains(names, q.Standin)
	switch {
	case itself && standin:
	case itself:
		q.Standin, q.Reads = "", ReadsBoth
	case standin:
		q.Reads = ReadsStandin
	default:
		q.Standin, q.Reads = "", ReadsSuspects
		return q, q.Suspects != "" && slices.Contains(names, q.Suspects)
	}
	return q, true
}

// Follows is true where a worker with this configuration consumes a work queue that is exchanged as it is to, or does not
// consume it at all.
func (c *Config) Follows(queue string, reading Reading) bool {
	for _, known := range c.Queues {
		if known.Name == queue {
			return known.Standin != "" && known.Reads == reading
		}
	}
	return true
}
