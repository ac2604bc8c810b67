package handler

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
)

// ClassNotBegun is a message that no code of the team has begun to handle, for there was no process for it; or of which the process was at work when the
// worker had to stop. It is no attempt.
const ClassNotBegun = "NotBegun"

// IsNotBegun reports whether a failure is of ClassNotBegun. A program's own words are never taken for it.
func IsNotBegun(failure *retry.Failure) bool {
	return failure != nil && failure.Source == retry.SourceTimeout && failure.Class == ClassNotBegun
}

// NotBegun is a failure of ClassNotBegun.
func NotBegun(why string) *retry.Failure {
	return &retry.Failure{Source: retry.SourceTimeout, Class: ClassNotBegun, Message: message.Text(why, message.MaxText)}
}

// call is a message on its way to an answer.
type call struct {
	messageID string
	// key is its idempotency key.
	key string
	// deadline is that of the message: no process gets it afterwards.
	deadline time.Time
	// begin is the request's Begin, and refused is true once that was false.
	begin   func(ctx context.Context) bool
	refused bool
	// ctx and cancel are of the goroutine that handles the message.
	ctx    context.Context //nolint:containedctx // it changes while the call goes on
	cancel context.CancelFunc
	// alone says that the message was in hand with others when their process ended, and is to be run alone in a fresh one. remaining
	// is what was left of its time then.
	alone     bool
	remaining time.Duration

	// placed, progress and ended tell the goroutine of it: there is a process, it works on it, there is an end.
	placed   chan struct{}
	progress chan struct{}
	ended    chan ending

	// peer is the process that got the message last, by the id. It may have ended since.
	peer *peer
	id   uint64
	// wrote is how much the peer had written to its standard error when it got the message.
	wrote int64
	// start is where its frame begins in all that was written to the peer, -1 while it is not written. It is guarded by the
	// peer's writing.
	start int64
	// unread is true while its frame is being written.
	unread atomic.Bool
	// cut is true where the process reports progress after Drain, for which there is no more time. The mutex of the Process guards it.
	cut bool
}

// ending is how a message left the hand of a process.
type ending struct {
	kind    endKind
	failure *retry.Failure
}

type endKind int

const (
	// endAnswered: the attempt is over.
	endAnswered endKind = iota
	// endUntouched: the process ended before it read of it.
	endUntouched
	// endQuarantine: the process ended with several messages in hand, or for the sake of another one.
	endQuarantine
)

func newCall(ctx context.Context, messageID string) *call {
	return &call{
		messageID: messageID, ctx: ctx, cancel: func() {},
		placed: make(chan struct{}, 1), progress: make(chan struct{}, 1), ended: make(chan ending, 1),
	}
}

// extend gives the attempt more time; see Extended.
func (c *call) extend(remaining time.Duration) {
	ctx, cancel := Extended(c.ctx, remaining)
	c.cancel()
	c.ctx, c.cancel = ctx, cancel
}

// awaitRead waits until the process has read the frame of a call that has ended, as it may well do after its answer: until then the frame takes
// memory that others must not have. It is false where that is not so at the end of the attempt's time.
func (c *call) awaitRead(written <-chan struct{}) bool {
	if written == nil {
		return true
	}
	select {
	case <-written:
		return true
	case <-c.ctx.Done():
		return false
	}
}

// left is what is left of the attempt's time.
func (c *call) left() time.Duration {
	deadline, ok := c.ctx.Deadline()
	if !ok {
		return 0
	}
	return time.Until(deadline)
}

// ask asks for leave to begin, which may take its time. It is true where that took any.
func (c *call) ask() (waited bool) {
	asked := time.Now()
	c.refused = c.begin != nil && !c.begin(whole(c.ctx))
	return time.Since(asked) > time.Millisecond
}

// mayBegin is true where a call that has a process now, and leave, may be written to it.
func (c *call) mayBegin() bool { return !c.refused && c.ctx.Err() == nil && !c.isLate() }

// isLate is true after the deadline of the message.
func (c *call) isLate() bool { return !c.deadline.IsZero() && !time.Now().Before(c.deadline) }

// expiry returns a channel that tells when the deadline of the message has passed; nil, which never does, where there is none.
func (c *call) expiry() (passed <-chan time.Time, stop func()) {
	if c.deadline.IsZero() {
		return nil, func() {}
	}
	timer := time.NewTimer(time.Until(c.deadline))
	return timer.C, func() { timer.Stop() }
}

// end tells the call's goroutine. Each placement has one end.
func (c *call) end(e ending) { c.ended <- e }

// notBegun is the failure of a call that waited for a process in vain.
func (c *call) notBegun(why error) *retry.Failure {
	late := c.ctx.Err() == nil && c.isLate()
	if !late && !c.refused && !errors.Is(c.ctx.Err(), context.DeadlineExceeded) {
		return unanswered(c.ctx, "")
	}
	text := "no process was free in time"
	switch {
	case c.refused:
		text = "when there was a process for it, the handler was to be left alone"
	case late:
		text = "no process was free before the deadline of the message"
	case why != nil:
		text = why.Error()
	case c.alone:
		text = "its process ended with several messages, and no process was free in time to run it again alone"
	}
	return NotBegun(text)
}
