package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

const (
	firstPublishPause   = 50 * time.Millisecond
	longestPublishPause = 5 * time.Second
)

// errUnreadable is why a message is refused.
var errUnreadable = errors.New("its headers nest too deeply, or are too many or too long, to be read")

// settle carries out an outcome. Whatever goes on living is published first, confirmed and routed; only then is the
// original acknowledged. A crash in between leaves two copies with the same id and attempt, never none. It is false where the
// broker has the original again.
func (w *Worker) settle(ctx context.Context, j *job, o outcome) bool {
	switch o.kind {
	case succeeded, dropped:
		return w.acknowledge(j)
	case refused:
		return w.deadLetter(j, errUnreadable)
	case returned:
		return j.delivery.Requeue() == nil
	case retried, parked, postponed, failed, released, moved:
		err := w.republish(ctx, j, o)
		switch {
		case err == nil:
			return w.acknowledge(j)
		case errors.Is(err, message.ErrHeadersTooLarge), errors.Is(err, amqp.ErrUnpublishable):
			return w.deadLetter(j, err)
		}
	case abandoned:
	}
	return false
}

func (w *Worker) acknowledge(j *job) bool {
	err := j.delivery.Ack()
	w.settled(j)
	return err == nil
}

// deadLetter leaves a message that cannot be published again to the work queue's dead-letter exchange, which leads to the
// failure queue too. It arrives whole, but without our reason on it, so the log tells it.
func (w *Worker) deadLetter(j *job, cause error) bool {
	w.problems.warn("deadletter/"+j.delivery.Queue, "message dead-lettered by the broker: it cannot be published again",
		"queue", j.delivery.Queue, "message", j.state.ID, "error", cause)
	return j.delivery.DeadLetter() == nil
}

// republish publishes until the broker has confirmed and routed the message. It gives up only when that would be wrong:
// the original is with the broker again, or the worker's time is over.
func (w *Worker) republish(ctx context.Context, j *job, o outcome) error {
	held := w.options.Metrics.held
	held.Inc()
	defer held.Dec()
	// A copy that is published after the broker has delivered the original anew is one too many.
	ctx, cancel := j.delivery.WhileLive(ctx)
	defer cancel()
	pause := firstPublishPause
	var gone time.Duration // the lane that was found missing
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx) //nolint:wrapcheck // the caller counts it and tells no more
		}
		m, lane, err := w.route(j, o, gone)
		if err != nil {
			return err
		}
		err = w.publisher.Publish(ctx, &m)
		switch {
		case err == nil, errors.Is(err, amqp.ErrUnpublishable), ctx.Err() != nil:
			return err //nolint:wrapcheck // the caller tells these errors apart
		case errors.Is(err, amqp.ErrUnroutable):
			w.options.Metrics.publishProblems.WithLabelValues("unroutable").Inc()
			if _, larger := w.program.Load().config.Lanes.Next(lane); lane > 0 && larger {
				gone = lane
				continue
			}
			gone = 0
			// The lanes of high priority may be gone as a whole, while this worker's configuration still names them.
			j.ordinary = lane > 0
		default:
			w.options.Metrics.publishProblems.WithLabelValues("unconfirmed").Inc()
		}
		w.problems.warn("publish/"+m.Exchange, "message held: the broker does not take it", "exchange", m.Exchange, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPublishPause)
	}
}

// route makes the message that an outcome calls for. lane is where it waits, 0 where it does not. After a lane was found
// missing (the worker's configuration is older than the broker's objects) the next larger one is taken.
func (w *Worker) route(j *job, o outcome, gone time.Duration) (m message.Message, lane time.Duration, err error) {
	current := w.program.Load().config
	original, home, now := j.delivery.Message, j.home(), w.options.Now()
	switch o.kind {
	case retried, parked, postponed:
		if o.kind == retried {
			original.Priority = j.priority
		}
		high := original.Priority > ordinaryPriority && current.HighLanes && !j.ordinary
		if !high { // in one lane there is one priority: see compile.Config.HighLanes
			original.Priority = min(original.Priority, ordinaryPriority)
		}
		var ok bool
		if lane, ok = chooseLane(current.Lanes, j.state.NotBefore.Sub(now), gone); ok {
			m, err = message.Parked(original, j.state, home, laneKey(lane, high), now)
			m.Exchange = current.Exchanges.Fallback
			break
		}
		// No policy of the newest configuration retries any more.
		m, err = message.Returned(original, j.state, home, now)
		m.Exchange = current.Exchanges.Return
	case failed:
		m, err = message.Failed(original, j.state, j.queue.Name, o.final)
		m.Exchange = current.Exchanges.Failed
	case moved:
		m, err = message.Returned(original, j.state, j.queue.Suspects, now)
		m.Exchange = current.Exchanges.Return
	default:
		m, err = message.Returned(original, j.state, j.origin(), now)
		m.Exchange = current.Exchanges.Return
	}
	if err != nil {
		return message.Message{}, 0, fmt.Errorf("message %s of queue %s: %w", j.state.ID, j.queue.Name, err)
	}
	return m, lane, nil
}

// home is the queue that a message comes back to from a lane. A suspect stays one until it has been run without bringing down
// its worker.
func (j *job) home() string {
	if !j.attempted {
		return j.origin()
	}
	if j.state.Crashes > 0 && j.queue.Suspects != "" {
		return j.queue.Suspects
	}
	return j.queue.Name
}

// origin is the name by which a message comes back to where it was: of a stand-in that is its work queue's.
func (j *job) origin() string {
	if j.delivery.Queue == j.queue.Suspects {
		return j.queue.Suspects
	}
	return j.queue.Name
}

func laneKey(lane time.Duration, high bool) string {
	if high {
		return retry.HighLaneKey(lane)
	}
	return retry.LaneKey(lane)
}

// chooseLane takes the lane for what remains of a delay, or the next larger one than a lane that is gone.
func chooseLane(lanes retry.Lanes, remaining, gone time.Duration) (time.Duration, bool) {
	if gone > 0 {
		return lanes.Next(gone)
	}
	return lanes.Pick(max(0, remaining))
}
