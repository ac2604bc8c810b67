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

// oftenBack is how many of the deliveries after which RabbitMQ dead-letters a message may be used up while its quarantine queue takes none. A copy of
// it begins anew. Sessions that end count as well, however short they were.
const oftenBack = 10

// Journal is what the quarantine worker writes down around each run, so that its successor knows which message a crash is
// to be charged to. One message at a time is in work. An error of it is logged and stops nothing: the broker's delivery limit is the backstop.
type Journal interface {
	// Begin is called before expressions read a message and the handler gets it, End when its fate is decided. A message that has
	// to wait in between is ended and begun again.
	Begin(id, queue string) error
	End() error
	// Crashes is the number of processes that a message has brought down and that are not written on it yet, and how the
	// last of them ended ("signal: killed"; empty where that is not known).
	Crashes(id, queue string) (count int64, exit string)
	// Charged forgets them: the message carries them now, or is gone.
	Charged(id, queue string) error
}

// quarantineRedelivered moves a message that a session left unsettled to the quarantine queue of its own queue: it may be what ended the
// session. So it does with a copy of such a message that came back because that queue took none. The quarantine worker, in a process of its own, charges a
// message for the crashes that it caused there.
func quarantineRedelivered(w *Worker, _ context.Context, j *job) (outcome, bool) {
	if w.options.Journal == nil {
		if j.queue.Quarantine == "" || !w.isLeftUnsettled(j) && !j.isSuspect {
			return outcome{}, false
		}
		w.problems.warn("quarantine/"+j.queue.Name, "messages that a session left unsettled are handled one by one", "queue", j.queue.Name,
			"quarantine", j.queue.Quarantine)
		return outcome{kind: quarantined}, true
	}
	crashes, exit := w.options.Journal.Crashes(j.state.ID, j.delivery.Queue)
	if crashes == 0 {
		return outcome{}, false
	}
	j.charged = true
	j.state.Crashes = min(j.state.Crashes+crashes, message.MaxCount)
	w.options.Metrics.crashes.WithLabelValues(j.queue.Name).Add(float64(crashes))
	limit := int64(j.program.maxCrashes())
	w.options.Log.Warn("a message brought down the quarantine worker", "queue", j.queue.Name, "message", j.state.ID,
		"crashes", j.state.Crashes, "maxCrashes", limit, "exit", exit)
	if j.state.Crashes < limit {
		return outcome{kind: quarantined}, true
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

// isLeftUnsettled is true of a message that came back, unless it may be one that was given back unread, or so many came back that workers cannot have
// had all of them. One that RabbitMQ may dead-letter soon is not handled among others in any case.
func (w *Worker) isLeftUnsettled(j *job) bool {
	d, again := j.delivery, j.delivery.DeliveryCount() > 1
	switch {
	case !d.Redelivered:
		w.redelivered.refill(d.Queue)
		return false
	case d.DeliveryCount() >= oftenBack:
		return true
	case !again && w.unread.take(j.queue.Name, j.program.config.LongestRun()):
		return false
	case !w.redelivered.take(d.Queue, again, 2*j.program.config.Loans()):
		w.problems.warn("redelivered/"+d.Queue, "RabbitMQ marks more messages as redelivered than workers had; the others are handled as usual", "queue", d.Queue)
		return false
	default:
		return true
	}
}

func (p *program) maxCrashes() int { return cmp.Or(p.config.MaxCrashes, defaultMaxCrashes) }

// settled forgets the crashes of a message that now carries them.
func (w *Worker) settled(j *job) {
	if !j.charged {
		return
	}
	w.journalled(w.options.Journal.Charged(j.state.ID, j.delivery.Queue))
}

// noted writes into the journal that the message is in work: from here to the verdict on it, whatever ends this process is charged
// to it. That holds for expressions that read its body too, and for no wait: see unnoted.
func noted(w *Worker, _ context.Context, j *job) (outcome, bool) {
	w.note(j)
	return outcome{}, false
}

func (w *Worker) note(j *job) {
	if w.options.Journal == nil || j.noted {
		return
	}
	j.noted = true
	w.journalled(w.options.Journal.Begin(j.state.ID, j.delivery.Queue))
}

// unnote ends what noted began. A message that is only waited for, or settled, has ended nothing.
func (w *Worker) unnote(j *job) {
	if !j.noted {
		return
	}
	j.noted = false
	w.journalled(w.options.Journal.End())
}

// unnoted waits without a note in the journal, for as long as it takes: a pod that goes meanwhile is not the message's doing.
func (w *Worker) unnoted(j *job, wait func() (outcome, bool)) (outcome, bool) {
	if !j.noted {
		return wait()
	}
	w.unnote(j)
	o, decided := wait()
	if !decided {
		w.note(j)
	}
	return o, decided
}

func (w *Worker) journalled(err error) {
	if err != nil {
		w.problems.warn("journal", "the journal of crashes cannot be written", "error", err)
	}
}
