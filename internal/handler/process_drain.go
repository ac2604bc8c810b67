package handler

import "redrive.dev/redrive/internal/retry"

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
