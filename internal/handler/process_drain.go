package handler

import (
	"time"

	"redrive.dev/redrive/internal/retry"
)

// Drainer is a Handler with which messages may wait before their attempts begin.
type Drainer interface {
	// Drain ends these waits, and lets none begin, for the worker is about to end: an attempt that began late would not be over by then.
	// Such messages have a failure of the class ClassNotBegun. Attempts that have begun go on, but get no more time than they have: those that would
	// have, and are not over by then, have such a failure too. It may be called again, and beside Close.
	Drain()
}

// Drain implements Drainer: from now on a message gets a process that is free, or none.
func (p *Process) Drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.pool.isDrained() {
		close(p.pool.drained)
	}
}

// Retirer is a Handler that holds something of the machine between messages.
type Retirer interface {
	// Retire tells that another handler has taken its place: it keeps nothing for messages that may come. Those that do come are handled as before. It may be
	// called beside Close.
	Retire()
}

// Retire implements Retirer: a process without a message ends now, and each other one once it has none. Where a program before and its next one are both
// there, the machine would else have the processes of both, for as long as the last call of the former takes.
func (p *Process) Retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pool.retired = true
	for q := range p.pool.ready {
		if len(q.calls) == 0 {
			p.settle(q)
		}
	}
}

// Starter is a Handler that takes its time to become ready after it was made.
type Starter interface {
	Handler
	// StartTime is how long that takes at most.
	StartTime() time.Duration
}

// StartTime implements Starter: a process has that long to say hello.
func (p *Process) StartTime() time.Duration { return p.settings.startTimeout }

// isDrained is true from when Drain was called.
func (p *pool) isDrained() bool {
	select {
	case <-p.drained:
		return true
	default:
		return false
	}
}

// turnedAway is the failure of a message that waited for a process when Drain was called.
func turnedAway() *retry.Failure {
	return NotBegun("no process was free when the worker began to stop")
}
