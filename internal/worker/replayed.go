package worker

import (
	"context"
	"errors"
	"time"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/deadletter"
	"redrive.dev/redrive/internal/message"
)

// tellTime is for how long a message is held so that its replay gets to know what became of it. After that its replay has to do without: to have
// the message handled twice would be worse than a count that does not know of it.
const tellTime = 10 * time.Second

// lastTellTime is that of a worker which stops. It is shorter than drainGrace: what is not settled by then another worker handles again.
const lastTellTime = drainGrace / 2

// isReplayed is true of a message that a replay has sent back to its queue, and waits to hear of.
func (j *job) isReplayed() bool { return j.state.Replay.ID != "" }

// tell publishes the event by which a replay gets to know what becomes of its message. It comes before the message is settled: a worker that ends
// in between leaves the message to another one, and the replay does not count the event that it has already. An event for which there is no
// queue is of a replay that nobody follows any more, or of none.
func (w *Worker) tell(ctx context.Context, j *job, kind message.OutcomeKind, cause string) {
	if !j.isReplayed() {
		return
	}
	defer j.replaced()()
	live, end := j.delivery.WhileLive(ctx)
	defer end()
	limited, cancel := context.WithTimeout(live, w.tellTime())
	defer cancel()
	err := w.publishOutcome(limited, message.ReplayOutcome{Replay: j.state.Replay, Kind: kind, Cause: cause, Queue: j.queue.Name})
	events := w.options.Metrics.replayEvents
	switch {
	case err == nil:
		events.WithLabelValues("confirmed").Inc()
	case errors.Is(err, amqp.ErrUnroutable):
		events.WithLabelValues("unroutable").Inc()
	case live.Err() != nil: // the message comes again, and so does this
	default:
		events.WithLabelValues("given_up").Inc()
		w.problems.warn("replay/"+j.state.Replay.ID, "a replay is not told what became of a message: the broker does not take the event",
			"replay", j.state.Replay.ID, "queue", j.queue.Name, "outcome", kind, "error", err)
	}
}

func (w *Worker) tellTime() time.Duration {
	if w.stopping() {
		return lastTellTime
	}
	return tellTime
}

// publishOutcome publishes an event until the broker has taken it, or has no queue for it.
func (w *Worker) publishOutcome(ctx context.Context, o message.ReplayOutcome) error {
	for pause := firstPublishPause; ; pause = min(2*pause, longestPublishPause) {
		m := o.Message()
		m.Exchange = w.program.Load().config.Exchanges.Fallback
		// Not Publish: that nobody follows a replay is no trouble of the worker's.
		err := w.publisher.PublishUnlessStalled(ctx, &m)
		if err == nil || errors.Is(err, amqp.ErrUnroutable) || errors.Is(err, amqp.ErrUnpublishable) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// tellRetried tells of a message that goes on living after its first failed attempt since it was replayed.
func (w *Worker) tellRetried(ctx context.Context, j *job) {
	if j.failedFirst {
		w.tell(ctx, j, message.OutcomeRetried, "")
	}
}

// tellFailed tells of a message that is in the failure queue. Its cause is that of the copy there, where headers may be missing that had no room.
func (w *Worker) tellFailed(ctx context.Context, j *job, o outcome) {
	if !j.isReplayed() {
		return
	}
	cause := ""
	if copied, _, err := w.route(j, o, 0); err == nil {
		cause = deadletter.CauseOf(copied, o.final.At)
	}
	w.tell(ctx, j, message.OutcomeFailedAgain, cause)
}
