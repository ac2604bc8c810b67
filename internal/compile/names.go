package compile

import "redrive.dev/redrive/api/v1alpha1"

// QuarantineSuffix ends the name of every quarantine queue; the rest is the name of its work queue.
const QuarantineSuffix = ".quarantine"

// standinSuffix ends the name of every stand-in queue; the rest is the name of its work queue.
const standinSuffix = ".migrating"

// Names gives the broker objects of one Transport their names. All of them but the failure queue derive from the prefix,
// so that two Transports with different prefixes never meet.
type Names struct {
	// Prefix of all names: spec.prefix, else the name of the exchange, else the name of the Transport.
	Prefix string

	failureQueue string
}

// NamesOf returns the names of a Transport's objects. It does not judge them; internal/topology does.
func NamesOf(t *v1alpha1.Transport) Names {
	names := Names{Prefix: t.Name}
	switch {
	case t.Spec.Prefix != nil:
		names.Prefix = *t.Spec.Prefix
	case t.Spec.Exchange != nil:
		names.Prefix = t.Spec.Exchange.Name
	}
	if t.Spec.Failure != nil && t.Spec.Failure.Queue != nil {
		names.failureQueue = *t.Spec.Failure.Queue
	}
	return names
}

// Fallback is the headers exchange that leads into the lanes.
func (n Names) Fallback() string { return n.Prefix + ".fallback" }

// Return is the direct exchange that leads back to the work queues.
func (n Names) Return() string { return n.Prefix + ".return" }

// ReturnAlternate is the alternate exchange of Return, which leads to Failed.
func (n Names) ReturnAlternate() string { return n.Prefix + ".return.alternate" }

// Failed is the fanout exchange that leads to the failure queue.
func (n Names) Failed() string { return n.Prefix + ".failed" }

// Alternate is the alternate exchange of the producers' exchange.
func (n Names) Alternate() string { return n.Prefix + ".alternate" }

// Unrouted is the alternate exchange of Alternate, which leads to the queue for unroutable messages.
func (n Names) Unrouted() string { return n.Prefix + ".unrouted" }

// Lane is the fallback queue of one value of the header redrive-lane, such as "5s".
func (n Names) Lane(key string) string { return n.LanePrefix() + key }

// LanePrefix is what the names of all lanes begin with.
func (n Names) LanePrefix() string { return n.Prefix + ".fallback." }

// Quarantine is the queue of the messages of a work queue that may have brought down a worker.
func (n Names) Quarantine(queue string) string { return queue + QuarantineSuffix }

// StandinQueue takes the messages of a work queue while that is migrated to other arguments.
func (n Names) StandinQueue(queue string) string { return queue + standinSuffix }

// FailureLock is the exclusive queue of whoever reads the failure queue: it lasts as long as the connection that holds the messages.
func (n Names) FailureLock() string { return n.Prefix + ".failed.lock" }

// ReplayPrefix is what the names of all queues of replays begin with.
func (n Names) ReplayPrefix() string { return n.Prefix + ".replay." }

// Staging is the queue of the messages that a replay has taken and not sent back yet.
func (n Names) Staging(replay string) string { return n.ReplayPrefix() + replay }

// ReplayLog is the queue of what becomes of the messages of a replay.
func (n Names) ReplayLog(replay string) string { return n.ReplayPrefix() + replay + ".log" }

// FailureQueue is where messages end that are not retried any more.
func (n Names) FailureQueue() string {
	if n.failureQueue != "" {
		return n.failureQueue
	}
	return n.Failed()
}
