package handler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	public "redrive.dev/redrive/handler"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

const (
	// returnGrace is how long a program may take to return once its time is over, before its call counts as a runaway. It is
	// what a program needs that heeds its context.
	returnGrace = 250 * time.Millisecond
	// stuckAfter is how long runaways may hold all places before the process is beyond help.
	stuckAfter = time.Minute
)

// errNoProgram is the error of a worker that is to call a program and has none in it.
var errNoProgram = errors.New("the configuration says inProcess, and this program has no handler in it: " +
	"the image has to be that of a Go program made with redrive.dev/redrive/handler/run, with its own entrypoint")

// InProcess calls the team's Go code in this process. A panic ends the attempt only.
//
// Nothing can stop a call that goes on after its time is over. Handle returns nevertheless, and the message goes its way; the
// call is a runaway from then on. Its place goes to the next message, for otherwise one message could hold up a queue, but not
// without an end: when there are as many runaways as messages at a time, or when their copies of messages take the memory that they may,
// Ready is an error until one of them returns. So there are never as many as twice that number of calls. Where none returns for a
// minute, Stuck tells that only a new process helps.
type InProcess struct {
	program public.Handler
	places  int
	log     *slog.Logger
	metrics runawayMetrics

	// abandoned are the runaways of this handler and of those before it. Its mutex guards all that follows.
	abandoned *Abandoned
	// full is true while runaways hold all that they may, and changed is closed when that changes.
	full    bool
	changed chan struct{}
	// stuck is closed when patience ends, which runs while runaways hold all that they may.
	stuck      chan struct{}
	stuckAfter time.Duration
	patience   *time.Timer
}

// NewInProcess returns a handler that calls a program. It is an error where there is none.
func NewInProcess(program public.Handler, o Options) (*InProcess, error) {
	if program == nil {
		return nil, errNoProgram
	}
	metrics, err := newRunawayMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	h := &InProcess{
		program: program, places: max(1, o.Concurrency), log: o.logger(), metrics: metrics, abandoned: o.Abandoned,
		changed: make(chan struct{}), stuck: make(chan struct{}), stuckAfter: stuckAfter,
	}
	if h.abandoned == nil {
		h.abandoned = NewAbandoned(0)
	}
	h.abandoned.join(h)
	return h, nil
}

// Handle calls the program with a copy of the message.
func (h *InProcess) Handle(ctx context.Context, request Request) *retry.Failure {
	if err := ctx.Err(); err != nil {
		return brokenOff(err, "")
	}
	done := make(chan *retry.Failure, 1)
	go h.call(ctx, messageOf(&request), done)
	select {
	case failure := <-done:
		return failure
	case <-ctx.Done():
	}
	grace := time.NewTimer(returnGrace)
	defer grace.Stop()
	select {
	case failure := <-done:
		return failure // success too: the work is done
	case <-grace.C:
	}
	h.leave(&request, done)
	return brokenOff(ctx.Err(), "its call of the handler still runs")
}

// Ready is an error while runaways hold all that they may.
func (h *InProcess) Ready() (why error, changed <-chan struct{}) { //nolint:revive,staticcheck // the interface has this order
	a := h.abandoned
	a.mu.Lock()
	defer a.mu.Unlock()
	if h.full {
		why = fmt.Errorf("%d calls of the handler still run although their time is over, and keep %d MiB of messages: it has to return when its "+
			"context ends", a.calls, a.kept>>20)
	}
	return why, h.changed
}

// Stuck is closed when runaways held all that they may for a minute. They keep what they hold until the process ends.
func (h *InProcess) Stuck() <-chan struct{} { return h.stuck }

// Close leaves runaways alone.
func (h *InProcess) Close() error {
	h.abandoned.mu.Lock()
	defer h.abandoned.mu.Unlock()
	delete(h.abandoned.handlers, h)
	if h.patience != nil {
		h.patience.Stop()
	}
	return nil
}

// call calls the program and tells what became of the attempt, whatever the program does.
func (h *InProcess) call(ctx context.Context, m *public.Message, done chan<- *retry.Failure) {
	var failure *retry.Failure
	returned := false
	defer func() {
		if !returned && failure == nil { // also where a panic's own methods end the goroutine
			failure = crash(classGoexit, goexited, goexited)
		}
		done <- failure
	}()
	defer func() {
		if value := recover(); value != nil {
			failure = h.panicked(m, value)
		}
	}()
	failure = failureOf(ctx, h.program.Handle(ctx, m))
	returned = true
}

// failureOf reads a program's error. The program's own methods are called for that, which may panic.
func failureOf(ctx context.Context, err error) *retry.Failure {
	if err == nil {
		return nil
	}
	told := public.FailureOf(err)
	if told.Carry != nil {
		if err := checkCarry(*told.Carry); err != nil {
			return malformedResult(err)
		}
	}
	// An error from after the end is most likely about the end, however it is worded.
	if end := ctx.Err(); end != nil && (told.Advice == public.AdviceNone || errors.Is(err, end)) {
		failure := brokenOff(end, told.Message)
		failure.Carry = told.Carry // what was done in time is done
		return failure
	}
	text := bounded(told.Message, message.MaxText)
	return &retry.Failure{
		Source:     retry.SourceHandler,
		Class:      bounded(told.Class, message.MaxClass),
		Message:    text,
		Logged:     text,
		Status:     told.Status,
		RetryAfter: told.RetryAfter,
		Advice:     adviceOf(told.Advice),
		Carry:      told.Carry,
	}
}

func adviceOf(advice public.Advice) retry.Advice {
	switch advice {
	case public.AdviceFail:
		return retry.AdviseFail
	case public.AdviceDrop:
		return retry.AdviseDrop
	case public.AdviceRetry:
		return retry.AdviseRetry
	case public.AdviceRelease:
		return retry.AdviseRelease
	default:
		return ""
	}
}

// brokenOff is the failure of an attempt whose context has ended. text is what the program says, if anything.
func brokenOff(end error, text string) *retry.Failure {
	failure := &retry.Failure{Source: retry.SourceTimeout, Class: ClassTimeout, Message: noResult, Logged: noResult}
	if !errors.Is(end, context.DeadlineExceeded) {
		failure = &retry.Failure{Source: retry.SourceConnection, Class: ClassCanceled, Message: wasBrokenOff, Logged: wasBrokenOff}
	}
	if text != "" {
		failure.Message = bounded(failure.Message+": "+text, message.MaxText)
	}
	return failure
}

// bounded is a text of a program as it may be kept. It keeps no more of it in memory.
func bounded(text string, limit int) string { return strings.Clone(message.Text(text, limit)) }

// count changes the number of runaways and what they keep, and returns the number.
func (h *InProcess) count(change int, bytes int64) int {
	h.metrics.count(change)
	return h.abandoned.count(change, bytes)
}

// leave lets a call run on that nobody waits for any more.
func (h *InProcess) leave(request *Request, done <-chan *retry.Failure) {
	log := h.log.With("queue", request.Queue, "message", request.ID, "attempt", request.Attempt)
	size := sizeOf(request)
	now := h.count(1, size)
	log.Warn("a call of the handler runs on although its time is over: it has to return when its context ends", "runaways", now)
	began := time.Now()
	go func() {
		<-done
		now := h.count(-1, -size)
		log.Info("a call of the handler has returned after its time was over", "late", time.Since(began), "runaways", now)
	}()
}
