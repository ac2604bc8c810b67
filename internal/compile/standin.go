package compile

import "slices"

// Reading says which queues are consumed of a work queue that has a stand-in.
type Reading string

const (
	// ReadsBoth consumes the two side by side.
	ReadsBoth Reading = ""
	// ReadsQueue consumes the queue alone: where messages have an order, those of one are all older than those of the other.
	ReadsQueue Reading = "Queue"
	// ReadsStandin consumes the stand-in alone.
	ReadsStandin Reading = "Standin"
)

// Consumed are the names of the queues on the broker that hold the messages of a work queue and are consumed now.
func (q Queue) Consumed() []string {
	switch {
	case q.Standin == "" || q.Reads == ReadsQueue:
		return []string{q.Name}
	case q.Reads == ReadsStandin:
		return []string{q.Standin}
	default:
		return []string{q.Name, q.Standin}
	}
}

// StandIn gives work queues that are exchanged their stand-ins, in the configuration of each worker. reads holds them by
// their names.
func (r *Result) StandIn(reads map[string]Reading) {
	for i := range r.Workers {
		r.Workers[i] = r.Workers[i].WithStandIns(reads)
	}
}

// WithStandIns is the configuration with stand-ins for those of its work queues that are exchanged.
func (c *Config) WithStandIns(reads map[string]Reading) Config {
	with := *c
	with.Queues = slices.Clone(c.Queues)
	for i := range with.Queues {
		queue := &with.Queues[i]
		queue.Standin, queue.Reads = "", ReadsBoth
		if reading, exchanged := reads[queue.Name]; exchanged {
			queue.Standin, queue.Reads = Names{}.StandinQueue(queue.Name), reading
		}
	}
	with.Version = with.version()
	return with
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
