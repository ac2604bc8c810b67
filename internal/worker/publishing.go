package worker

import (
	"errors"
	"fmt"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/amqp"
	"redrive.dev/redrive/internal/compile"
	"redrive.dev/redrive/internal/message"
)

const (
	troublePublish = v1alpha1.ReasonPublishFailing
	// silentTime is how long a destination may confirm nothing before that is a trouble: a queue that changes its leader is none.
	silentTime = 30 * time.Second
	// heldTime is how long a message is held before its queue may have another one on loan in its place.
	heldTime = 2 * time.Second
)

// hold counts a message that has an outcome and waits for the broker to take it, until the function that it returns is called.
func (w *Worker) hold(j *job) (release func()) {
	w.options.Metrics.held.Inc()
	w.held.Add(1)
	replaced := j.replaced()
	return func() {
		replaced()
		w.held.Add(-1)
		w.options.Metrics.held.Dec()
	}
}

// replaced lets the queue have another message on loan, once this one waits for longer, until the function that it returns is called.
func (j *job) replaced() (end func()) {
	long := time.AfterFunc(heldTime, func() { j.inflight.hold(1) })
	return func() {
		if !long.Stop() {
			j.inflight.hold(-1)
		}
	}
}

// publishTroubles are the exchanges, lanes and queues that messages are held for, because the broker does not take them.
func (w *Worker) publishTroubles(now time.Time) []compile.Trouble {
	w.failingLock.Lock()
	defer w.failingLock.Unlock()
	gauge := w.options.Metrics.publishFailing
	failing := map[amqp.Destination]bool{}
	var list []compile.Trouble
	for _, problem := range w.publisher.Problems() {
		to := problem.Destination
		if errors.Is(problem.Err, amqp.ErrSilent) && now.Sub(problem.Since) < silentTime || len(list) == maxTroubles {
			continue
		}
		failing[to] = true
		gauge.WithLabelValues(to.Exchange, to.Key).Set(1)
		list = append(list, compile.Trouble{
			Reason:  troublePublish,
			Subject: message.Text(to.Exchange+" "+to.Key, maxSubject),
			Message: fmt.Sprintf("messages for exchange %q, lane or queue %q, are held: %v", to.Exchange, to.Key, problem.Err),
			Since:   problem.Since.UTC().Round(time.Second),
		})
	}
	for to := range w.failing {
		if !failing[to] {
			gauge.DeleteLabelValues(to.Exchange, to.Key)
		}
	}
	w.failing = failing
	return list
}
