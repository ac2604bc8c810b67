package handler

import "time"

// InHand is how many messages the processes have.
func InHand(p *Process) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for q := range p.pool.all {
		n += len(q.calls)
	}
	return n
}

// SetCloseGrace is for tests that cannot wait as long as a worker.
func SetCloseGrace(p *Process, grace time.Duration) { p.settings.closeGrace = grace }

// Waiting is how many messages wait for a process.
func Waiting(p *Process) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pool.waiting) + len(p.pool.alone)
}

// Reachable is how many processes take a message now, and how many messages those have that are not being killed.
func Reachable(p *Process) (free, spared int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for q := range p.pool.all {
		if !q.condemned {
			spared += len(q.calls)
		}
	}
	return len(p.pool.free), spared
}

// Patience is for tests that cannot wait as long as a worker for a line to go on.
func (r *LineRoom) Patience(patience time.Duration) *LineRoom {
	r.patience = patience
	return r
}

// Taken is what lines take.
func (r *LineRoom) Taken() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken
}
