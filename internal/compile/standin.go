package compile

import (
	"reflect"
	"slices"
	"strings"
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
	// ReadsQuarantine consumes neither: only quarantined messages of the queue are left, or its stand-in, whose turn is yet to come.
	ReadsQuarantine Reading = "Quarantine"
)

// Standin is the queue beside a work queue that is migrated, and which of the two are consumed.
type Standin struct {
	Queue string
	Reads Reading
}

// Consumed are the names of the queues on the broker that hold the messages of a work queue and are consumed now.
func (q Queue) Consumed() []string {
	switch {
	case q.Hold != "":
		return nil
	case q.Standin != "" && q.Reads == ReadsQueue:
		return []string{q.Name}
	case q.Standin != "" && q.Reads == ReadsStandin:
		return []string{q.Standin}
	case q.Reads == ReadsQuarantine:
		return nil
	default:
		return q.Holding()
	}
}

// Holding are the names of the queues on the broker that hold messages of a work queue for its workers, also those whose turn is yet
// to come.
func (q Queue) Holding() []string {
	switch {
	case q.Reads == ReadsQuarantine && q.Standin != "":
		return []string{q.Standin}
	case q.Reads == ReadsQuarantine:
		return nil
	case q.Standin == "":
		return []string{q.Name}
	default:
		return []string{q.Name, q.Standin}
	}
}

// Beside is the other one of a work queue and its stand-in; empty for a queue that is neither, or has none beside it.
func (q Queue) Beside(name string) string {
	switch {
	case q.Standin == "":
		return ""
	case name == q.Name:
		return q.Standin
	case name == q.Standin:
		return q.Name
	default:
		return ""
	}
}

// WithStandIns is the configuration with stand-ins for those of its work queues that are migrated. all holds them by the names
// of the work queues.
func (c *Config) WithStandIns(all map[string]Standin) Config {
	with := *c
	with.Queues = slices.Clone(c.Queues)
	for i := range with.Queues {
		queue := &with.Queues[i]
		if queue.Reads == ReadsQuarantine && queue.Standin == "" {
			continue
		}
		if standin, migrated := all[queue.Name]; migrated || !queue.Leaving {
			queue.Standin, queue.Reads = standin.Queue, standin.Reads
		}
	}
	with.Version = with.version()
	return with
}

// Why workers do not consume a queue, as their log says it.
const (
	// HoldDisordered is for a Strict queue whose order they would break.
	HoldDisordered = "RabbitMQ would not keep its order: the warning ConflictingBrokerPolicy of the Transport names the setting"
	// HoldCutOff is for a queue that they have not consumed before, and to which retries would not come back.
	HoldCutOff = "nothing leads back to it from the fallback queues yet: the condition Ready of the Transport names what is in the way"
	// HoldNewToPods is for a queue that a worker group gets together with another handler, while it has pods for the former one.
	HoldNewToPods = "it is new to the worker group, and so is its handler: the messages wait until no pods for the former handler are left"
)

// Holding is the configuration in which the workers do not consume some of their queues, each for a reason, and consume those again that they
// did not. Workers of version 4 do not know Hold, and obey Reads: a queue that they have not consumed has no quarantined messages, and neither has a
// Strict one, so that one of which nothing but quarantine is to be consumed is left alone.
func (c *Config) Holding(holds map[string]string) (next Config, changed bool) {
	next = *c
	next.Queues = slices.Clone(c.Queues)
	for i := range next.Queues {
		queue := &next.Queues[i]
		switch reason := holds[queue.Name]; {
		case reason != "" && queue.Reads != ReadsQuarantine:
			queue.Reads, queue.Hold, changed = ReadsQuarantine, reason, true
		case reason == "" && queue.Hold != "":
			// Of one that is migrated, the step of that has said what is read.
			if queue.Hold, changed = "", true; queue.Standin == "" {
				queue.Reads = ReadsBoth
			}
		}
	}
	next.Version = next.version()
	return next, changed
}

// WithoutHolds is the configuration in which workers consume all of their queues, while pods for a former handler go without those that are new to them. It
// is for a Transport that is deleted: what is in its queues has no order any more, and nobody else empties them. changed is false where no hold ends.
func (c *Config) WithoutHolds(formerPods bool) (next Config, changed bool) {
	var holds map[string]string
	if formerPods {
		holds = c.NewToPods(c)
	}
	next, changed = c.Holding(holds)
	for i := range next.Queues {
		if queue := &next.Queues[i]; c.Queues[i].Hold != "" && queue.Hold == "" && queue.Reads == ReadsQuarantine {
			queue.Reads = ReadsQueue // and its stand-in when that is empty
		}
	}
	return next, changed
}

// WithLeaving is the configuration with those queues of the last one, which is in force, that are not wanted any more and are
// still on the broker: who consumed them empties them. leaving names these, stand-ins and quarantine queues too. So a queue that
// stays may keep a stand-in, of a migration that is not wanted any more, and quarantined messages, where it has none in future.
func (c *Config) WithLeaving(last Config, leaving []string) Config {
	with := c.extensible()
	for i := range with.Queues {
		with.Queues[i] = with.Queues[i].keepStandin(last, leaving)
	}
	for _, queue := range last.Queues {
		if queue, left := with.leftOf(queue, leaving); left {
			queue.Hold = "" // for what is left of it, Holding decides again
			with.include(queue, &last)
		}
	}
	with.Version = with.version()
	return with
}

// Following is the configuration, which is in force and stays, with nothing changed but how its workers read what they read already of
// queues that are migrated or leave: the steps on the broker go on, and nothing may be left that nobody consumes. A stand-in that is new
// to them has to wait. there are the queues of the spec that exist. changed is false where they are to go on as they do.
func (c *Config) Following(all map[string]Standin, leaving, there []string) (next Config, changed bool) {
	known := map[string]Standin{}
	next = *c
	next.Queues = slices.DeleteFunc(slices.Clone(c.Queues), func(q Queue) bool {
		standin, migrated := q.migration(all)
		if !migrated {
			standin, migrated = q.takenBack(all, leaving, there)
		}
		if migrated && q.Standin != "" {
			known[q.Name] = standin
			return false
		}
		// What of it is still to be emptied is found anew.
		return q.Leaving && q.isAmong(leaving) || q.Standin != "" && slices.Contains(leaving, q.Name)
	})
	next = next.WithStandIns(known)
	next = next.WithLeaving(*c, leaving)
	return next, !reflect.DeepEqual(next.Queues, c.Queues)
}

// migration is how a queue is read by now: as that of its name, or that of its next name, which has taken over its stand-in.
func (q Queue) migration(all map[string]Standin) (Standin, bool) {
	if standin, migrated := all[q.Name]; migrated {
		return standin, true
	}
	for _, standin := range all {
		if q.Standin != "" && standin.Queue == q.Standin {
			if standin.Reads != ReadsStandin {
				standin.Reads = q.Reads
			}
			return standin, true
		}
	}
	return Standin{}, false
}

// takenBack is how a queue is read whose renaming is taken back: its stand-in is the queue of the spec again, and the queue may be gone.
func (q Queue) takenBack(all map[string]Standin, leaving, there []string) (Standin, bool) {
	if q.Standin == "" || slices.Contains(leaving, q.Standin) || !slices.Contains(there, q.Standin) {
		return Standin{}, false
	}
	standin := Standin{Queue: q.Standin, Reads: q.Reads}
	back, migrated := all[q.Standin]
	switch {
	case migrated && back.Queue == q.Name && back.Reads == ReadsQueue:
		standin.Reads = ReadsStandin
	case migrated && back.Queue == q.Name && back.Reads == ReadsStandin:
		standin.Reads = ReadsQueue
	case migrated && back.Queue == q.Name:
		standin.Reads = back.Reads
	case slices.Contains(leaving, q.Name):
		standin.Reads = ReadsBoth // what it has is to be read, as WithLeaving does
	case !slices.Contains(there, q.Name):
		standin.Reads = ReadsStandin
	}
	return standin, true
}

// isAmong is true where one of the queues on the broker that belong to it has one of the names.
func (q Queue) isAmong(names []string) bool {
	return slices.ContainsFunc([]string{q.Name, q.Standin, q.Quarantine}, func(name string) bool { return slices.Contains(names, name) })
}

// keepStandin keeps the stand-in of the last configuration that is still to be emptied. Nobody leads the reading on any more: a
// stand-in that has its turn has it until it is gone, and any other one is read beside the queue.
func (q Queue) keepStandin(last Config, leaving []string) Queue {
	for _, before := range last.Queues {
		if before.Name != q.Name || q.Standin != "" || !slices.Contains(leaving, before.Standin) {
			continue
		}
		q.Standin, q.Reads = before.Standin, ReadsBoth
		if before.Reads == ReadsStandin {
			q.Reads = ReadsStandin
		}
	}
	return q
}

// leftOf is what is still to be consumed of a queue of the last configuration; false where that is nothing, or this one has it.
func (c *Config) leftOf(queue Queue, leaving []string) (Queue, bool) {
	for _, known := range c.Queues {
		switch queue.Name {
		case known.Name:
			return queue.besideAnother(known, leaving)
		case known.Standin:
			return queue.onlyStandin(leaving)
		}
	}
	return queue.leaving(leaving)
}

// Named are the queues that a worker with this configuration needs: those that it consumes, and quarantine queues into which it
// publishes.
func (c *Config) Named() []string {
	var names []string
	for _, queue := range c.Queues {
		if queue.Reads == ReadsQuarantine && queue.Standin == "" {
			continue
		}
		names = append(names, queue.Name)
		if queue.Quarantine != "" {
			names = append(names, queue.Quarantine)
		}
	}
	return names
}

// NamedBy are the queues that workers with some configurations need.
func NamedBy(configs []Config) (queues []string) {
	for i := range configs {
		queues = append(queues, configs[i].Named()...)
	}
	return queues
}

// ConsumesWithout is true where a worker with this configuration consumes a work queue, or what stands in for it, and puts what is delivered again
// elsewhere than into its quarantine queue.
func (c *Config) ConsumesWithout(queue Queue) bool {
	return slices.ContainsFunc(c.Queues, func(known Queue) bool {
		reads := slices.ContainsFunc(known.Holding(), func(name string) bool { return name == queue.Name || name == queue.Standin })
		return reads && known.Quarantine != queue.Quarantine
	})
}

// leaving is the queue with what is still to be consumed of it; false where that is nothing.
func (q Queue) leaving(names []string) (Queue, bool) {
	q.Leaving = true
	itself, standin := slices.Contains(names, q.Name), q.Standin != "" && slices.Contains(names, q.Standin)
	switch {
	case itself && standin:
		if q.Reads == ReadsQuarantine {
			q.Reads = ReadsQueue
		}
	case itself:
		q.Standin, q.Reads = "", ReadsBoth
	case standin:
		q.Reads = ReadsStandin
	default:
		return q.onlyQuarantine(names)
	}
	return q, true
}

// besideAnother is what is still to be consumed of a queue beside one of the same name that is wanted: quarantined messages, where that one has others
// or none, and a stand-in that it does not have, by a name of its own.
func (q Queue) besideAnother(other Queue, names []string) (Queue, bool) {
	standin := q.Standin
	left, some := q.onlyQuarantine(names)
	if some = some && other.Quarantine != q.Quarantine; !some {
		left.Quarantine = ""
	}
	if standin == "" || standin == other.Standin || !slices.Contains(names, standin) {
		return left, some
	}
	left.Name, left.Reads = standin, ReadsBoth
	if work, is := strings.CutSuffix(standin, standinSuffix); is {
		left.Name, left.Standin, left.Reads = work, standin, ReadsStandin
	}
	return left, true
}

// onlyStandin is a queue that has become the stand-in of another one, which so reads its messages, with its own stand-in, if that is still to be
// emptied. Where messages have an order, and those of the queue are the older ones, that one has its turn when the queue is gone.
func (q Queue) onlyStandin(names []string) (Queue, bool) {
	if q.Standin == "" || !slices.Contains(names, q.Standin) {
		return q.onlyQuarantine(names)
	}
	q.Leaving = true
	switch q.Reads {
	case ReadsBoth, ReadsStandin:
		q.Reads = ReadsStandin
	case ReadsQueue, ReadsQuarantine:
		q.Reads = ReadsQuarantine
	}
	return q, true
}

// onlyQuarantine is the queue with no more than its quarantined messages; false where there are none.
func (q Queue) onlyQuarantine(names []string) (Queue, bool) {
	q.Leaving, q.Standin, q.Reads = true, "", ReadsQuarantine
	return q, slices.Contains(names, q.Quarantine)
}

// Follows is true where a worker with this configuration consumes a work queue that is migrated as it is to, or does not
// consume it at all.
func (c *Config) Follows(queue string, reading Reading) bool {
	for _, known := range c.Queues {
		if known.Name == queue {
			return known.Standin != "" && known.Reads == reading
		}
	}
	return true
}
