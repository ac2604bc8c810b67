package local

import (
	"strings"

	"k8s.io/utils/ptr"

	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/topology"
)

// Snapshot is what is known about one running Transport at one moment; as JSON, it is a part of /status.
type Snapshot struct {
	// Transport as namespace/name.
	Transport string `json:"transport"`
	Broker    string `json:"broker"`
	// Problem says what the Transport waits for; empty while all is well.
	Problem string `json:"problem,omitempty"`
	// Queues are the work queues in the order of the spec.
	Queues []QueueSnapshot `json:"queues"`
	// Waiting is the number of messages in all lanes; nil while it is not known.
	Waiting *int64 `json:"inLanes"`
	// Quarantine is the number of messages that wait to be handled apart from others; nil while it is not known.
	Quarantine *int64 `json:"quarantine"`
	// FailureQueue by name, and the number of messages in it; nil while it is not known.
	FailureQueue string `json:"failureQueue"`
	Failures     *int64 `json:"failures"`
	// Workers are those that run, also those that still drain.
	Workers []WorkerSnapshot `json:"workers"`
	// Troubles are what holds messages back in the workers, by worker group.
	Troubles []Trouble `json:"-"`
}

// WorkerSnapshot is what one worker says of itself.
type WorkerSnapshot struct {
	// Worker group.
	Worker string `json:"worker"`
	// Process is "quarantine" for the process that handles the quarantine of the group, and empty for the worker of its queues.
	Process string `json:"process,omitempty"`
	// Problem says why the worker's program does not run; empty while it does.
	Problem string `json:"problem,omitempty"`

	compile.WorkerStatus
}

func (w *WorkerSnapshot) troubles() []Trouble {
	if w.Problem != "" {
		return []Trouble{{Worker: w.Worker, Message: w.Problem}}
	}
	all := make([]Trouble, 0, len(w.Troubles))
	for _, trouble := range w.Troubles {
		all = append(all, Trouble{Worker: w.Worker, Message: trouble.Message})
	}
	return all
}

// Trouble is something that holds messages back in a worker.
type Trouble struct {
	// Worker group.
	Worker string
	// Message says what holds back what, in a sentence.
	Message string
}

// QueueSnapshot is a work queue at one moment.
type QueueSnapshot struct {
	Name string `json:"name"`
	// Ready is the number of messages that wait for a worker; nil while it is not known.
	Ready *int64 `json:"ready"`

	Tally
}

// snapshotOf puts together what the broker and what the workers know. counted is nil where the broker could not be asked.
func snapshotOf(unit *Unit, counted counts, done tallies) Snapshot {
	snapshot := Snapshot{Transport: unit.Name().String(), Waiting: waiting(unit, counted)}
	for _, queue := range unit.Objects.QueuesOf(topology.RoleWork) {
		row := QueueSnapshot{Name: queue, Ready: counted.of(queue)}
		if done[queue] != nil {
			row.Tally = *done[queue]
		}
		snapshot.Queues = append(snapshot.Queues, row)
	}
	for _, queue := range unit.Objects.QueuesOf(topology.RoleQuarantine) {
		if count := counted.of(queue); count != nil {
			snapshot.Quarantine = new(*count + ptr.Deref(snapshot.Quarantine, 0))
		}
	}
	for _, queue := range unit.Objects.QueuesOf(topology.RoleFailure) {
		snapshot.FailureQueue, snapshot.Failures = queue, counted.of(queue)
	}
	return snapshot
}

func (c counts) of(queue string) *int64 {
	count, known := c[queue]
	if !known {
		return nil
	}
	return &count
}

// waiting counts the messages in all lanes, those on their way out too.
func waiting(unit *Unit, counted counts) *int64 {
	if counted == nil {
		return nil
	}
	total, prefix := int64(0), compile.NamesOf(unit.Transport).LanePrefix()
	for queue, count := range counted {
		if strings.HasPrefix(queue, prefix) {
			total += count
		}
	}
	return &total
}
