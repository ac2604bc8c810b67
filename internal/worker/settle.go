package worker

import (
	"context"
	"crypto/rand"
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
// broker has the original again. Where something else becomes of the message than the outcome says, that is in it then.
func (w *Worker) settle(ctx context.Context, j *job, o *outcome) bool {
	switch o.kind {
	case succeeded:
		w.tell(ctx, j, message.OutcomeHandled, "")
		return w.acknowledge(j)
	case dropped:
		w.tell(ctx, j, message.OutcomeDropped, "")
		return w.acknowledge(j)
	case rejected:
		return w.deadLetter(ctx, j, w.refusal(j))
	case returned:
		if j.isUncounted() {
			return j.delivery.Release() == nil
		}
		return j.delivery.Requeue() == nil
	case retried, redelayed, deferred, requeued, quarantined:
		w.tellRetried(ctx, j)
		return w.move(ctx, j, o)
	case failed:
		return w.move(ctx, j, o)
	case stale:
	}
	return false
}

// move settles a message that goes on living as a copy.
func (w *Worker) move(ctx context.Context, j *job, o *outcome) bool {
	err := w.republishOrPostpone(ctx, j, o)
	switch {
	case err == nil && o.kind == failed:
		w.tellFailed(ctx, j, *o)
		return w.acknowledge(j)
	case err == nil:
		return w.acknowledge(j)
	case errors.Is(err, message.ErrHeadersTooLarge), errors.Is(err, amqp.ErrUnpublishable):
		return w.deadLetter(ctx, j, err)
	}
	return false
}

// refusal is why a message is refused, for the log alone.
func (w *Worker) refusal(j *job) error {
	switch {
	case j.delivery.LeftOut > 0:
		return fmt.Errorf("its body of %d bytes is more than the worker reads, %d: "+ //nolint:err113 // for the log alone
			"raise the memory limit of the worker", j.delivery.LeftOut, largestBody(w.inflight.limit))
	case w.outgrows(j):
		return fmt.Errorf("it takes %d bytes to hand its body of %d to the handler, and %d are allowed: "+ //nolint:err113 // for the log alone
			"raise the memory limit of the worker", j.size, len(j.delivery.Body), mostAlone(w.inflight.limit))
	default:
		return errUnreadable
	}
}

func (w *Worker) acknowledge(j *job) bool {
	err := j.delivery.Ack()
	w.settled(j)
	return err == nil
}

// deadLetter leaves a message that cannot be published again to the work queue's dead-letter exchange, which leads to the
// failure queue too. It arrives whole, but without our reason on it, so the log tells it.
func (w *Worker) deadLetter(ctx context.Context, j *job, cause error) bool {
	w.problems.warn("deadletter/"+j.delivery.Queue, "message dead-lettered by the broker: it cannot be published again",
		"queue", j.delivery.Queue, "message", j.state.ID, "error", cause)
	w.tell(ctx, j, message.OutcomeFailedAgain, "")
	err := j.delivery.DeadLetter()
	w.settled(j)
	return err == nil
}

// republishOrPostpone is republish, but for a message whose quarantine queue takes none for as long as it may be held. That goes back to its own
// queue, as a copy which still has to be quarantined: RabbitMQ would take it back itself, with all that is on loan beside it, count that, and
// dead-letter it one day, though no handler has had it since.
func (w *Worker) republishOrPostpone(ctx context.Context, j *job, o *outcome) error {
	if o.kind != quarantined || j.delivery.Queue == j.queue.Quarantine {
		return w.republish(ctx, j, *o)
	}
	patience := j.held()
	if j.delivery.DeliveryCount() >= oftenBack {
		patience = min(patience, heldTime)
	}
	waiting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := w.republish(waiting, j, *o)
	if err == nil || !errors.Is(waiting.Err(), context.DeadlineExceeded) {
		return err
	}
	w.problems.warn("postponed/"+j.delivery.Queue, "a message goes back to its queue, because its quarantine queue takes none: it is quarantined later",
		"queue", j.delivery.Queue, "quarantine", j.queue.Quarantine)
	j.isSuspect, o.kind = true, requeued
	return w.republish(ctx, j, *o)
}

// republish publishes until the broker has confirmed and routed the message. It gives up only when that would be wrong:
// the original is with the broker again, or the worker's time is over.
func (w *Worker) republish(ctx context.Context, j *job, o outcome) error {
	defer w.hold(j)()
	// A copy that is published after the broker has delivered the original anew is one too many.
	ctx, cancel := j.delivery.WhileLive(ctx)
	defer cancel()
	pause := firstPublishPause
	way := detour{}
	o.final.ID = rand.Text() // one for all copies, where more than one publication arrives
	for {
		if ctx.Err() != nil {
			return context.Cause(ctx) //nolint:wrapcheck // the caller counts it and tells no more
		}
		left := j.state.NotBefore.Sub(w.options.Now())
		m, lane, err := w.route(j, o, way.gone)
		if err != nil {
			return err
		}
		_, larger := w.program.Load().config.Lanes.Next(lane)
		larger = larger && lane > 0
		if way.allows(larger) {
			err = w.publisher.PublishUnlessStalled(ctx, &m)
		} else {
			err = w.publisher.Publish(ctx, &m)
		}
		switch {
		case err == nil:
			w.rounded(j, o, lane, left)
			return nil
		case errors.Is(err, amqp.ErrUnpublishable), ctx.Err() != nil:
			return err
		case errors.Is(err, amqp.ErrStalled):
			way.stalled(lane, larger)
			continue
		case errors.Is(err, amqp.ErrUnroutable):
			w.options.Metrics.publishProblems.WithLabelValues("unroutable").Inc()
			if larger {
				way.gone = lane
				continue
			}
			way.gone = 0
			// The lanes of high priority may be gone as a whole, while this worker's configuration still names them.
			j.ordinary = lane > 0
		default:
			w.options.Metrics.publishProblems.WithLabelValues("unconfirmed").Inc()
			if way.unconfirmed(err, lane, larger) {
				continue
			}
		}
		w.problems.warn("publish/"+m.Exchange, "message held: the broker does not take it", "exchange", m.Exchange, "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPublishPause)
	}
}

// detour is the way of one message around lanes that do not take it.
type detour struct {
	// gone is the lane after which the next larger one is taken; 0 where there is none.
	gone time.Duration
	// staying is true once the message waits for its lane, whatever that does: it is under way in another one already, and each
	// that confirms nothing might have it one day, or there is none left.
	staying bool
}

// allows is true where there may be another lane.
func (d *detour) allows(larger bool) bool { return !d.staying && (larger || d.gone > 0) }

// stalled passes by a lane that confirms nothing: the message was not published there. Where all are so it waits for its own.
func (d *detour) stalled(lane time.Duration, larger bool) {
	d.gone = lane
	if !larger {
		d.gone, d.staying = 0, true
	}
}

// unconfirmed is true where another lane is tried at once: where this one refuses the message, and, once, where it has it and
// is silent. More often would make more than the two copies that a session which ends makes.
func (d *detour) unconfirmed(err error, lane time.Duration, larger bool) bool {
	silent := errors.Is(err, amqp.ErrSilent)
	d.staying = d.staying || silent
	if !larger || !silent && !errors.Is(err, amqp.ErrRefused) {
		d.gone = 0
		return false
	}
	d.gone = lane
	return true
}

// route makes the message that an outcome calls for. lane is where it waits, 0 where it does not. After a lane was found
// missing (the worker's configuration is older than the broker's objects) the next larger one is taken.
func (w *Worker) route(j *job, o outcome, gone time.Duration) (m message.Message, lane time.Duration, err error) {
	current := w.program.Load().config
	original, home, now := j.delivery.Message, j.home(), w.options.Now()
	j.state.FrameSize = w.publisher.FrameSize()
	switch o.kind {
	case retried, redelayed, deferred:
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
	case quarantined:
		m, err = message.Returned(original, j.state, j.queue.Quarantine, now)
		m.Exchange = current.Exchanges.Return
	default:
		m, err = message.Returned(original, j.state, j.origin(), now)
		m.Exchange = current.Exchanges.Return
		if err == nil && j.isSuspect {
			m.Headers[message.HeaderQuarantine] = true
		}
	}
	if err != nil {
		return message.Message{}, 0, fmt.Errorf("message %s of queue %s: %w", j.state.ID, j.queue.Name, err)
	}
	return m, lane, nil
}

// rounded counts by how much the lane of a retry is longer than what was left of its delay.
func (w *Worker) rounded(j *job, o outcome, lane, left time.Duration) {
	if late, last := rounding(lane, left, j.state.History.LastDelay); last && (o.kind == retried || o.kind == redelayed) {
		w.options.Metrics.laneRounding.WithLabelValues(j.queue.Name).Observe(late.Seconds())
	}
}

// rounding is how much longer a lane is than what is left of a delay. last is false where the message waits in another one after it,
// or in none.
func rounding(lane, left, asked time.Duration) (late time.Duration, last bool) {
	var leaves time.Time
	return max(0, lane-left), lane > 0 && retry.Due(leaves.Add(left-lane), leaves, asked)
}

// home is the queue that a message comes back to from a lane. A quarantined message stays one until it has been run without bringing down
// its worker.
func (j *job) home() string {
	if !j.attempted {
		return j.origin()
	}
	if j.state.Crashes > 0 && j.queue.Quarantine != "" {
		return j.queue.Quarantine
	}
	return j.queue.Name
}

// origin is the name by which a message comes back to where it was: of a stand-in that is its work queue's.
func (j *job) origin() string {
	if j.delivery.Queue == j.queue.Quarantine {
		return j.queue.Quarantine
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
