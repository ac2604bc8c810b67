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
// original acknowledged. A crash in between leaves two copies with the same id and attempt, never none.
func (w *Worker) settle(ctx context.Context, j *job, o outcome) {
	switch o.kind {
	case abandoned:
		w.options.Metrics.lateAcks.Inc()
	case succeeded, dropped:
		w.acknowledge(j)
	case refused:
		w.deadLetter(j, errUnreadable)
	case retried, parked, failed, released:
		err := w.republish(ctx, j, o)
		switch {
		case err == nil:
			w.acknowledge(j)
		case errors.Is(err, message.ErrHeadersTooLarge), errors.Is(err, amqp.ErrUnpublishable):
			w.deadLetter(j, err)
		default:
			w.options.Metrics.lateAcks.Inc()
		}
	}
}

func (w *Worker) acknowledge(j *job) {
	if err := j.delivery.Ack(); err != nil {
		w.options.Metrics.lateAcks.Inc()
	}
}

// deadLetter leaves a message that cannot be published again to the work queue's dead-letter exchange, which leads to the
// failure queue too. It arrives whole, but without our reason on it, so the log tells it.
func (w *Worker) deadLetter(j *job, cause error) {
	w.problems.warn("deadletter/"+j.delivery.Queue, "message dead-lettered by the broker: it cannot be published again",
		"queue", j.delivery.Queue, "message", j.state.ID, "error", cause)
	if err := j.delivery.DeadLetter(); err != nil {
		w.options.Metrics.lateAcks.Inc()
	}
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
	d, now := j.delivery, w.options.Now()
	switch o.kind {
	case retried, parked:
		var ok bool
		if lane, ok = chooseLane(current.Lanes, j.state.NotBefore.Sub(now), gone); ok {
			m, err = message.Parked(d.Message, j.state, d.Queue, retry.LaneKey(lane), now)
			m.Exchange = current.Exchanges.Fallback
			break
		}
		// No policy of the newest configuration retries any more.
		m, err = message.Returned(d.Message, j.state, d.Queue, now)
		m.Exchange = current.Exchanges.Return
	case failed:
		m, err = message.Failed(d.Message, j.state, d.Queue, o.final)
		m.Exchange = current.Exchanges.Failed
	default:
		m, err = message.Returned(d.Message, j.state, d.Queue, now)
		m.Exchange = current.Exchanges.Return
	}
	if err != nil {
		return message.Message{}, 0, fmt.Errorf("message %s of queue %s: %w", j.state.ID, d.Queue, err)
	}
	return m, lane, nil
}

// chooseLane takes the lane for what remains of a delay, or the next larger one than a lane that is gone.
func chooseLane(lanes retry.Lanes, remaining, gone time.Duration) (time.Duration, bool) {
	if gone > 0 {
		return lanes.Next(gone)
	}
	return lanes.Pick(max(0, remaining))
}
