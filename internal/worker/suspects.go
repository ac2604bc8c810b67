package worker

import (
	"cmp"
	"context"
	"fmt"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// reasonPoison is why a message fails that brought down too many workers.
const reasonPoison retry.Reason = "PoisonCrash"

// defaultMaxCrashes stands for a configuration of version 1.
const defaultMaxCrashes = 3

// Journal is what the suspects' worker writes down around each run, so that its successor knows which message a crash is
// to be charged to. An error of it is logged and stops nothing: the broker's delivery limit is the backstop.
type Journal interface {
	// Begin is called before the handler gets a message, End after it has answered.
	Begin(id, queue string) error
	End() error
	// Crashes is the number of processes that a message has brought down and that are not written on it yet, and how the
	// last of them ended ("signal: killed"; empty where that is not known).
	Crashes(id, queue string) (count int64, exit string)
	// Charged forgets them: the message carries them now, or is gone.
	Charged(id, queue string) error
}

// suspected moves a message that a session left unsettled to the suspects' queue of its own queue: it may be what ended the
// session. The suspects' worker, in a process of its own, charges a message for the crashes that it caused there.
func suspected(w *Worker, _ context.Context, j *job) (outcome, bool) {
	if w.options.Journal == nil {
		if !j.delivery.Redelivered || j.queue.Suspects == "" {
			return outcome{}, false
		}
		w.problems.warn("suspects/"+j.queue.Name, "messages that a session left unsettled are handled one by one", "queue", j.queue.Name,
			"suspects", j.queue.Suspects)
		return outcome{kind: moved}, true
	}
	crashes, exit := w.options.Journal.Crashes(j.state.ID, j.delivery.Queue)
	if crashes == 0 {
		return outcome{}, false
	}
	j.charged = true
	j.state.Crashes = min(j.state.Crashes+crashes, message.MaxCount)
	w.options.Metrics.crashes.WithLabelValues(j.queue.Name).Add(float64(crashes))
	limit := int64(j.program.maxCrashes())
	w.options.Log.Warn("a message brought down the suspects' worker", "queue", j.queue.Name, "message", j.state.ID,
		"crashes", j.state.Crashes, "maxCrashes", limit, "exit", exit)
	if j.state.Crashes < limit {
		return outcome{kind: moved}, true
	}
	w.options.Log.Error("a message is given up, because it brings down workers", "queue", j.queue.Name, "message", j.state.ID, "reason", reasonPoison)
	ended := fmt.Sprintf("%d workers ended while they handled nothing but this message", j.state.Crashes)
	if exit != "" {
		ended += ", the last with " + exit
	}
	return outcome{kind: failed, final: message.Final{
		Reason: reasonPoison, Explanation: ended, At: w.options.Now(), Exit: exit, Worker: w.options.Name,
		Failure: retry.Failure{Source: retry.SourceCrash, Class: "WorkerCrash", Message: ended},
	}}, true
}

func (p *program) maxCrashes() int { return cmp.Or(p.config.MaxCrashes, defaultMaxCrashes) }

// settled forgets the crashes of a message that now carries them.
func (w *Worker) settled(j *job) {
	if !j.charged {
		return
	}
	if err := w.options.Journal.Charged(j.state.ID, j.delivery.Queue); err != nil {
		w.problems.warn("journal", "the journal of crashes cannot be written", "error", err)
	}
}

// watched calls the handler with a note in the journal that says so.
func (w *Worker) watched(j *job, call func() *retry.Failure) *retry.Failure {
	if w.options.Journal == nil {
		return call()
	}
	if err := w.options.Journal.Begin(j.state.ID, j.delivery.Queue); err != nil {
		w.problems.warn("journal", "the journal of crashes cannot be written", "error", err)
	}
	failure := call()
	if err := w.options.Journal.End(); err != nil {
		w.problems.warn("journal", "the journal of crashes cannot be written", "error", err)
	}
	return failure
}
