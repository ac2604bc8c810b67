package topology

import (
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"redrive.dev/redrive/api/v1alpha1"
)

// Waits are the times between the steps by which a queue is deleted.
type Waits struct {
	// Grace between the moment when a lane is no longer wanted and its unbinding: workers learn of new lanes at their own
	// pace.
	Grace time.Duration
	// Unbound is how long a queue is unbound before it is first counted: the broker's figures are seconds late.
	Unbound time.Duration
	// Return is how long messages that wait in lanes may take to come back, on top of Unbound. It counts only while the way
	// back is still bound.
	Return time.Duration
	// Empty is the time between the two counts.
	Empty time.Duration
	// Young is how long a quorum queue is left alone once it is made, before anything leads into it. RabbitMQ, 3.10 to 4.3, loses
	// all that came into one in its first second where its only node is killed.
	Young time.Duration
	// Request is how long a request to delete something may still be carried out after it was sent, where nobody knows its answer.
	Request time.Duration
}

// DefaultWaits are safe with the intervals at which RabbitMQ counts by default: quorum_tick_interval of quorum queues, and
// collect_statistics_interval of classic ones, 5 s both.
func DefaultWaits() Waits {
	return Waits{
		Grace: 10 * time.Minute, Unbound: 15 * time.Second, Empty: 10 * time.Second, Young: 2 * time.Second, Request: 5 * time.Minute,
	}
}

// QueueObservation is what was seen of a queue that is on its way out.
type QueueObservation struct {
	Evidence
	// Bound is true while a binding leads new messages into the queue.
	Bound bool
	// Returning is true while what waits in lanes can still come back into the queue.
	Returning bool
	Feed
}

// Feed is what was seen of the messages that may come back into a queue on its way out.
type Feed struct {
	// Feeding is true while workers have messages to consume whose retries come back into the queue: each may still be published into a lane. Acked is
	// the broker's count of such messages that were acknowledged, as each is that goes into a lane.
	Feeding bool
	Acked   int64
	// Counted is true where the broker has counted the queue, the others that such messages are in, and all lanes since what waited in a lane came back: if
	// it has not, the lane's count shows it, however seldom the broker counts.
	Counted bool
}

// ObservationWindow is the time from the first question to the last answer of a look at the broker. Waits begin when a look has ended
// and are over when another begins: a broker that answers slowly must not shorten them.
type ObservationWindow struct {
	Began, Ended time.Time
	// Stamps are what was written down before the look.
	Stamps Stamps
}

// passed is how long ago something was noted of a queue when the look began.
func (w ObservationWindow) passed(queue, what string, at *metav1.Time) time.Duration {
	return w.Began.Sub(w.Stamps.of(queue, what, at, w.Began))
}

// soon is when to go on where nothing but the state has to be written down in between.
const soon = time.Second

// Decision is what to do about a queue that is on its way out.
type Decision string

const (
	// DecisionWait is to look again later.
	DecisionWait Decision = "Wait"
	// DecisionUnbind is to remove the bindings that lead into the queue.
	DecisionUnbind Decision = "Unbind"
	// DecisionHold is to look again later: the queue holds messages that somebody must take out.
	DecisionHold Decision = "Hold"
	// DecisionUncounted is to look again later: the broker has not counted the queue's messages, or not since it was last looked at.
	DecisionUncounted Decision = "Uncounted"
	// DecisionDelete is to delete the queue: it was empty twice, and nothing arrived in between.
	DecisionDelete Decision = "Delete"
	// DecisionDone is to forget the queue: it is gone.
	DecisionDone Decision = "Done"
)

// Retire takes one step on the way of a queue out of the broker. RabbitMQ cannot delete a quorum queue only if it is
// empty, and its figures are late, so a queue is unbound, left alone, counted twice, and deleted if both counts are zero
// and nothing was published in between; whatever arrives starts the counting again. The way back from the lanes goes
// when the queue was seen empty, and then it is left alone and counted anew: the broker does not count as published what
// it dead-letters itself.
//
// The returned state is to be kept only if what was decided was carried out; after DecisionUnbind with Unbound set to the
// time when it was, and Tick to the leader's last count by then. The duration is how long nothing will change by itself. seen is nil for a
// queue that does not exist.
func Retire(state v1alpha1.Retirement, seen *QueueObservation, look ObservationWindow, waits Waits) (v1alpha1.Retirement, Decision, time.Duration) {
	next := *state.DeepCopy()
	if next.Since == nil {
		next.Since = Stamp(look.Ended)
	}
	if seen == nil {
		return next, DecisionDone, 0
	}
	next.Messages = seen.Messages
	more := returnsMore(&next, seen)
	if left := waits.Grace - look.passed(next.Queue, whatSince, next.Since); next.Unbound == nil && waits.Grace > 0 && left > 0 {
		return next, DecisionWait, left
	}
	if seen.Bound {
		next.Leader = seen.Leader
		return unbind(next, next.Unbound == nil, waits)
	}
	if next.Leader != seen.Leader {
		next.Unbound = nil // What it counts may be from before the unbinding.
	}
	if more {
		next.Unbound, next.Tick, next.Empty, next.Published = nil, nil, nil, nil
		switch {
		case seen.Messages == nil:
			return next, DecisionUncounted, waits.Empty
		case seen.Holds():
			return next, DecisionHold, waits.Empty
		}
		return next, DecisionWait, waits.Empty
	}
	pause, nextLook := leftAlone(seen, waits)
	if next.Unbound == nil {
		next.Unbound, next.Leader, next.Tick, next.Empty, next.Published = Stamp(look.Ended), seen.Leader, seen.Noted(), nil, nil
		return next, DecisionWait, max(nextLook, soon)
	}
	if next.Tick == nil {
		next.Tick = seen.Noted()
	}
	if since := look.passed(next.Queue, whatUnbound, next.Unbound); since < pause {
		if since >= waits.Unbound && seen.Holds() {
			return next, DecisionHold, pause - since // Nobody reads it: that is to be told, however long lanes may bring back more.
		}
		if since >= nextLook {
			nextLook = pause
		}
		return next, DecisionWait, nextLook - since
	}
	if seen.Returning && seen.Empty() && seen.Follows(next.Tick) {
		return unbindReturns(next, seen, waits)
	}
	return count(next, seen.Evidence, look, waits.Empty)
}

// leftAlone is how long a queue is left alone before it is counted, and after how long it is looked at next. Where lanes may bring back messages, a look
// before the last shows which counts are from before.
func leftAlone(seen *QueueObservation, waits Waits) (pause, nextLook time.Duration) {
	if !seen.Returning || waits.Return == 0 {
		return waits.Unbound, waits.Unbound
	}
	return waits.Unbound + waits.Return, waits.Return + waits.Unbound/3
}

// returnsMore is true while messages go on to come back from the lanes, or may go there: the wait for what is in the lanes begins with the last of them. It
// notes how many there were. A message that goes from a lane to a worker and into the next lane is seen in the queue by chance only.
func returnsMore(next *v1alpha1.Retirement, seen *QueueObservation) bool {
	if !seen.Returning {
		next.Acked = nil
		return false
	}
	before := next.Acked
	next.Acked = &seen.Acked
	return seen.Feeding || before != nil && *before != seen.Acked || before == nil && next.Unbound != nil
}

// unbind decides about a queue that something leads to. If it was taken for unbound, somebody has bound it since: then
// nothing is done before that is forgotten and written down. Otherwise whoever goes on after a crash would take the
// counts from before for valid.
func unbind(next v1alpha1.Retirement, forgotten bool, waits Waits) (v1alpha1.Retirement, Decision, time.Duration) {
	next.Unbound, next.Tick, next.Empty, next.Published = nil, nil, nil, nil
	if !forgotten {
		return next, DecisionWait, soon
	}
	return next, DecisionUnbind, waits.Unbound
}

// unbindReturns decides about the way back from the lanes into a queue that is empty.
func unbindReturns(next v1alpha1.Retirement, seen *QueueObservation, waits Waits) (v1alpha1.Retirement, Decision, time.Duration) {
	if !seen.Counted {
		return next, DecisionUncounted, waits.Empty
	}
	return unbind(next, next.Empty == nil, waits)
}

// count reads an unbound queue for the first or the second time. A count of zero is taken only where the leader has counted since
// the queue was last looked at for it.
func count(next v1alpha1.Retirement, seen Evidence, look ObservationWindow, between time.Duration) (v1alpha1.Retirement, Decision, time.Duration) {
	switch {
	case seen.Messages == nil:
		next.Empty, next.Published = nil, nil
		return next, DecisionUncounted, between
	case seen.Holds():
		next.Empty, next.Published = nil, nil
		return next, DecisionHold, between
	case !seen.Follows(next.Tick):
		return next, DecisionUncounted, between
	case next.Empty == nil || next.Published == nil || *next.Published != seen.Published:
		next.Tick, next.Empty, next.Published = seen.Noted(), Stamp(look.Ended), &seen.Published
		return next, DecisionWait, between
	}
	if left := between - look.passed(next.Queue, whatEmpty, next.Empty); left > 0 {
		return next, DecisionWait, left
	}
	return next, DecisionDelete, 0
}

// Stamp keeps whole seconds, as the API server does, and rounds up, so that no wait gets shorter by it.
func Stamp(at time.Time) *metav1.Time {
	whole := at.Truncate(time.Second)
	if whole.Before(at) {
		whole = whole.Add(time.Second)
	}
	return &metav1.Time{Time: whole}
}

// Drain looks at the queues that messages run through in circles, work and quarantine queues and lanes, while workers consume
// them. They are drained when all of them were empty twice, at least waits.Empty apart and waits.Unbound after the last
// way in was cut, and nothing was published in between. cut is true when a way in was found and cut just now.
//
// It returns the states to keep, whether all is drained, and how long nothing will change by itself. No state counts as
// unbound: how long the queues are left alone before they are deleted begins when the workers are gone.
func Drain(
	states []v1alpha1.Retirement, seen map[string]Evidence, cut bool, look ObservationWindow, waits Waits,
) ([]v1alpha1.Retirement, bool, time.Duration) {
	known := map[string]v1alpha1.Retirement{}
	for _, state := range states {
		known[state.Queue] = state
	}
	next := make([]v1alpha1.Retirement, 0, len(seen))
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		state := v1alpha1.Retirement{Queue: name}
		if old, ok := known[name]; ok {
			state = *old.DeepCopy()
		}
		evidence := seen[name]
		if state.Since == nil || state.Unbound != nil || cut || state.Leader != evidence.Leader {
			state = v1alpha1.Retirement{Queue: name, Since: Stamp(look.Ended), Leader: evidence.Leader}
		}
		if state.Tick == nil {
			state.Tick = evidence.Noted()
		}
		state.Messages = evidence.Messages
		next = append(next, state)
	}
	for _, state := range next {
		if left := waits.Unbound - look.passed(state.Queue, whatSince, state.Since); left > 0 {
			return next, false, left
		}
	}
	return countTogether(next, seen, look, waits.Empty)
}

// countTogether reads all queues for the first or the second time: a message that goes from one into another while they
// are read must not be missed.
func countTogether(
	next []v1alpha1.Retirement, seen map[string]Evidence, look ObservationWindow, between time.Duration,
) ([]v1alpha1.Retirement, bool, time.Duration) {
	quiet, follows, again, left := true, true, true, time.Duration(0)
	for _, state := range next {
		evidence := seen[state.Queue]
		quiet, follows = quiet && evidence.Empty(), follows && evidence.Follows(state.Tick)
		if state.Empty == nil || state.Published == nil || *state.Published != evidence.Published {
			again = false
			continue
		}
		left = max(left, between-look.passed(state.Queue, whatEmpty, state.Empty))
	}
	switch {
	case quiet && !follows:
		return next, false, between
	case quiet && again:
		return next, left <= 0, max(left, 0)
	}
	for i := range next {
		next[i].Empty, next[i].Published = nil, nil
		if evidence := seen[next[i].Queue]; quiet {
			next[i].Tick, next[i].Empty, next[i].Published = evidence.Noted(), Stamp(look.Ended), &evidence.Published
		}
	}
	return next, false, between
}
