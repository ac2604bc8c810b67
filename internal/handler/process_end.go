package handler

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/subprocess"
)

// Classes of messages that are convicted of the end of their process.
const (
	// ClassExitStatus is a process that ended by itself; the status is its exit code.
	ClassExitStatus = "ExitStatus"
	// ClassOutputClosed is a process that closed its standard output and went on.
	ClassOutputClosed = "OutputClosed"
)

// maxReason is how much of a standard error stands in an error, in bytes.
const maxReason = 320

// failed takes leave of a process that could not be started.
func (p *Process) failed(q *peer, cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.state == stateStarting {
		p.leave(q)
	}
	p.remove(q, exitCrashed)
	p.distrust(fmt.Errorf("the command of the process handler cannot be started: %w", cause))
}

// bury takes leave of a process that has ended. read is how much it read of what was written to it.
func (p *Process) bury(q *peer, exit subprocess.Exit, read int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.state != stateStopping {
		p.leave(q)
	}
	reason := q.reason
	planned := reason == exitStopped || reason == exitRecycled && len(q.calls) == 0
	switch {
	case planned, q.condemned:
	case exit == (subprocess.Exit{}) && len(q.calls) == 0:
		reason = exitRecycled // by itself, which is unplanned all the same
	default:
		reason = exitCrashed
	}
	p.remove(q, reason)
	why, busy := q.obituary(exit), len(q.calls) > 0
	p.blame(q, exit, read, why)
	switch {
	case p.pool.closed, planned:
		p.grow()
	case q.places == 0:
		p.distrust(fmt.Errorf("a process of %s gets no messages: %w", p.settings.program(), why))
	case q.reason == exitTimeout:
		p.grow()
	default:
		if busy || q.fault != nil && q.taken > 0 {
			why = q.ending(exit) // what it wrote may be of a message: that stands in the failure queue only
		}
		p.log.warn("end", "a process of the handler ended", "program", p.settings.program(), "pid", q.child.Pid(), "error", why)
		p.pool.crashes++
		if p.pool.crashes > freeCrashes {
			p.pool.trouble = fmt.Errorf("processes of %s end one after the other, with no answer between: %w", p.settings.program(), why)
		}
		p.backOff()
		p.review()
		p.grow()
	}
}

// distrust notes that a process failed before its hello. The next one starts after a pause.
func (p *Process) distrust(why error) {
	if p.pool.closed {
		return
	}
	p.log.warn("start", "a process of the handler does not start; it is tried again", "error", why)
	p.pool.failures++
	p.pool.trouble = why
	p.backOff()
	p.review()
	p.grow()
}

// backOff sets the pause before the next start, after one that failed or a process that crashed.
func (p *Process) backOff() {
	steps := max(p.pool.failures, p.pool.crashes-freeCrashes)
	if steps <= 0 {
		return
	}
	pause := longestPause
	if shift := steps - 1; shift < 5 {
		pause = min(firstPause<<shift, longestPause)
	}
	jitter := 0.8 + 0.4*rand.Float64() //nolint:gosec // it is no secret
	p.pool.notBefore = time.Now().Add(time.Duration(jitter * float64(pause)))
}

// remove forgets a process.
func (p *Process) remove(q *peer, reason exitReason) {
	delete(p.pool.all, q)
	p.metrics.moved(q.state, "")
	p.metrics.exits.WithLabelValues(string(reason)).Inc()
	for _, timer := range []*time.Timer{q.aging, q.reaper} {
		if timer != nil {
			timer.Stop()
		}
	}
}

// obituary says how a process ended.
func (q *peer) obituary(exit subprocess.Exit) error {
	text := "it ended: " + exit.String()
	if q.fault != nil {
		text = q.fault.Error() + ", and was killed"
	}
	if q.places == 0 {
		text += ", before it said hello"
		if q.stray != "" {
			text += "; its standard output: " + q.stray
		}
	}
	if last, cut := q.lastComplaint(); len(last) > 0 {
		text += "; its standard error: " + subprocess.Text(last, cut, maxReason)
	}
	return errors.New(message.Text(text, message.MaxText))
}

// ending says how a process ended, without a word of what it wrote.
func (q *peer) ending(exit subprocess.Exit) error {
	if q.fault != nil {
		return errors.New("it broke the protocol, or gave no answer, and was killed")
	}
	return errors.New("it ended: " + exit.String())
}

// lastComplaint is the end of what a process wrote to its standard error since it got the messages that it has in hand, or since it
// has none: what it wrote of those before is not the reason of its end.
func (q *peer) lastComplaint() (text []byte, cut bool) {
	if q.stderr == nil {
		return nil, false
	}
	if len(q.calls) == 0 {
		return q.stderr.textSince(q.calm)
	}
	oldest := slices.Min(slices.Collect(maps.Keys(q.calls)))
	return q.stderr.textSince(q.calls[oldest].wrote)
}

// blame decides about the messages that a process had in hand when it ended. What it had not read is not its affair. The
// one that it had is convicted, unless the process was killed for another one's sake; of several nobody can tell which it was.
func (p *Process) blame(q *peer, exit subprocess.Exit, read int64, why error) {
	var touched []*call
	// It goes on with what it has in hand when it closes its standard input: that it was killed is for the sake of one that came later.
	forAnother := q.condemned && (q.fault == nil || errors.Is(q.fault, errInputClosed) && len(q.calls) > 1)
	for id, c := range q.calls {
		delete(q.calls, id)
		if c.start < 0 || c.start >= read {
			c.end(ending{kind: endUntouched})
			continue
		}
		touched = append(touched, c)
	}
	if len(touched) == 1 && !forAnother {
		touched[0].end(ending{kind: endAnswered, failure: conviction(q.fault, exit, why)})
		return
	}
	for _, c := range touched {
		c.end(ending{kind: endQuarantine})
	}
}

// conviction is the failure of the message that ended its process.
func conviction(fault error, exit subprocess.Exit, why error) *retry.Failure {
	failure := &retry.Failure{
		Source: retry.SourceCrash, Message: message.Text("the process ended while it had the message: "+why.Error(), message.MaxText),
		Logged: "the process ended while it had the message: " + exit.String(),
	}
	switch {
	case errors.Is(fault, errOutputClosed):
		failure.Class = ClassOutputClosed
		failure.Logged = "the process closed its standard output while it had the message, and was killed"
	case fault != nil:
		failure.Source, failure.Class = retry.SourceHandler, ClassMalformedResponse
		failure.Logged = "the process broke the protocol while it had the message, and was killed"
	case exit.Signal != 0:
		failure.Class, failure.Status = exit.SignalName(), 128+int(exit.Signal)
	default:
		failure.Class, failure.Status = ClassExitStatus, exit.Code
	}
	return failure
}
