package handler

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"redrive.dev/redrive/internal/retry"
)

const (
	// maxStarting is how many processes start at a time; more would only take each other's processors.
	maxStarting = 8
	// firstPause and longestPause bound the pause before a process is started after some that failed.
	firstPause   = time.Second
	longestPause = 30 * time.Second
	// freeCrashes is how many processes may end one after the other, with no answer between, before there are pauses: a crash is
	// the message's affair, until all crash.
	freeCrashes = 8
)

// pool is what a Process knows of its processes. The mutex of the Process guards all of it, and its methods are called with it held.
type pool struct {
	// all are the processes that have not ended; ready those that said hello and get messages; free those of these that have
	// room for one, in the order of their last use.
	all, ready map[*peer]struct{}
	free       []*peer
	// starting is how many have not said hello yet.
	starting int
	// places is how many messages at a time the last one took that said hello.
	places int
	// waiting and alone are the messages without a process, in the order of their coming; those in alone need a fresh one each.
	waiting, alone []*call
	// nextAlone are those of alone that no process was free for in time.
	nextAlone nextAlone

	// failures is how many starts failed one after the other, crashes how many processes ended with no answer between.
	failures, crashes int
	// trouble is why the last one failed to start, or why all end; nil where that is not so.
	trouble error
	// notBefore is when the next one may be started, and pause wakes then.
	notBefore time.Time
	pause     *time.Timer

	// why and changed are the answer of Ready.
	why     error
	changed chan struct{}
	// drained is closed by Drain, and closing with the handler.
	drained, closing chan struct{}
	closed           bool
	// retired is true from Retire on.
	retired bool
}

var (
	errNoHello = errors.New("no process has said hello yet")
	errClosed  = errors.New("the handler is closed")
)

func newPool() pool {
	return pool{
		all: map[*peer]struct{}{}, ready: map[*peer]struct{}{}, places: 1,
		trouble: errNoHello, changed: make(chan struct{}), drained: make(chan struct{}), closing: make(chan struct{}),
	}
}

// place waits until a process has the message in hand, but not beyond the deadline of the message.
func (p *Process) place(c *call) *retry.Failure {
	p.mu.Lock()
	if c.ctx.Err() != nil || p.pool.closed || c.isLate() {
		defer p.mu.Unlock()
		return c.notBegun(p.pool.why)
	}
	c.alone = c.alone || p.pool.nextAlone.take(c.key)
	if q := p.pool.choose(c.alone); q != nil {
		p.give(q, c)
		p.mu.Unlock()
		return p.begin(c, false)
	}
	if p.pool.isDrained() {
		p.mu.Unlock()
		return turnedAway()
	}
	p.pool.enqueue(c)
	p.grow()
	p.mu.Unlock()
	passed, stop := c.expiry()
	defer stop()
	select {
	case <-c.placed:
		return p.begin(c, true)
	case <-passed:
	case <-c.ctx.Done():
	case <-p.pool.drained:
	case <-p.pool.closing:
	}
	return p.turnAway(c)
}

// begin begins the attempt of a call that has a process, unless it may not begin any more.
func (p *Process) begin(c *call, waited bool) *retry.Failure {
	if c.ask() {
		waited = true
	}
	c.granted(waited) // before it is looked whether the attempt has any time left: the wait for leave may have taken more than that
	if !c.mayBegin() {
		return p.turnAway(c)
	}
	return nil
}

// turnAway takes leave of a call that does not begin. Another one gets the process that it may have.
func (p *Process) turnAway(c *call) *retry.Failure {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.withdraw(c)
	if c.ctx.Err() == nil && !c.isLate() && p.pool.isDrained() {
		return turnedAway()
	}
	return c.notBegun(p.pool.why)
}

// granted sets the time of an attempt that has a process now: waiting for it was not a part of it.
func (c *call) granted(waited bool) {
	if c.alone {
		c.extend(c.remaining)
	} else if waited {
		c.extend(0)
	}
}

// choose takes a process that has room from the free ones: the one used last, for it is warm, or one that was never used.
func (p *pool) choose(fresh bool) *peer {
	for _, q := range slices.Backward(p.free) {
		if !fresh || q.taken == 0 {
			return q
		}
	}
	return nil
}

func (p *pool) enqueue(c *call) {
	if c.alone {
		p.alone = append(p.alone, c)
		return
	}
	p.waiting = append(p.waiting, c)
}

// withdraw takes back a message that was not written to a process.
func (p *Process) withdraw(c *call) {
	is := func(other *call) bool { return other == c }
	p.pool.waiting = slices.DeleteFunc(p.pool.waiting, is)
	p.pool.alone = slices.DeleteFunc(p.pool.alone, is)
	if q := c.peer; q != nil && q.calls[c.id] == c {
		q.release(c)
		p.settle(q)
	}
}

// give puts a message into the hand of a process.
func (p *Process) give(q *peer, c *call) {
	q.lastID++
	q.taken++
	c.peer, c.id, c.start = q, q.lastID, -1
	if len(q.calls) == 0 {
		q.stray = ""
	}
	q.calls[c.id] = c
	c.wrote = q.stderr.given(c.messageID)
	q.interrupt()
	q.alone = c.alone
	if p.settings.messages > 0 && q.taken >= p.settings.messages {
		q.due = true
		p.grow()
	}
	p.list(q)
}

// release takes a message out of the hand of a process that goes on.
func (q *peer) release(c *call) {
	delete(q.calls, c.id)
	wrote := q.stderr.answered(c.messageID)
	if len(q.calls) == 0 {
		q.calm = wrote
	}
}

// list brings the lists up to date about a process.
func (p *Process) list(q *peer) {
	state := stateIdle
	switch {
	case q.state == stateStopping || q.state == stateStarting:
		state = q.state
	case len(q.calls) > 0:
		state = stateBusy
	}
	p.metrics.moved(q.state, state)
	q.state = state
	_, ready := p.pool.ready[q]
	free := ready && !q.alone && len(q.calls) < q.places && !p.spent(q)
	if free == q.listed {
		return
	}
	q.listed = free
	if free {
		p.pool.free = append(p.pool.free, q)
	} else if at := slices.Index(p.pool.free, q); at >= 0 {
		p.pool.free = slices.Delete(p.pool.free, at, at+1)
	}
}

// spent is true for a process that has had as many messages as it may have.
func (p *Process) spent(q *peer) bool {
	return p.settings.messages > 0 && q.taken >= p.settings.messages
}

// settle does what is due with a process of which the number of messages in hand has become less.
func (p *Process) settle(q *peer) {
	idle := len(q.calls) == 0
	switch {
	case q.state == stateStopping && idle:
		q.closeInput()
		return
	case q.state == stateStopping:
		return
	case q.alone && idle && len(p.pool.alone) > 0, // the next of them needs a fresh process, and here is its place
		p.spent(q) && idle,
		p.pool.retired && idle && len(p.pool.waiting)+len(p.pool.alone) == 0:
		p.retire(q, exitRecycled, recycleGrace)
		p.grow()
		return
	}
	q.alone = q.alone && !idle
	if p.settings.memory > 0 && !q.due && q.isOver(p.settings.memory) {
		q.due = true
		p.grow()
	}
	p.list(q)
	p.fill(q)
}

// fill gives a process messages that wait.
func (p *Process) fill(q *peer) {
	if q.listed && q.taken == 0 && len(p.pool.alone) > 0 {
		c := p.pool.alone[0]
		p.pool.alone = slices.Delete(p.pool.alone, 0, 1)
		p.give(q, c)
		c.placed <- struct{}{}
	}
	for q.listed && len(p.pool.waiting) > 0 {
		c := p.pool.waiting[0]
		p.pool.waiting = slices.Delete(p.pool.waiting, 0, 1)
		p.give(q, c)
		c.placed <- struct{}{}
	}
}

// Capacity implements Limited: as many calls as all processes take, by what the last hello said of one.
func (p *Process) Capacity() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(1, p.settings.processes*p.pool.places)
}

// greet takes in a process that has said hello.
func (p *Process) greet(q *peer, places int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.state != stateStarting {
		return // it is to end
	}
	p.pool.starting--
	p.pool.failures, p.pool.trouble = 0, nil
	q.places = min(places, p.settings.places)
	p.pool.places = q.places
	p.metrics.moved(q.state, stateIdle)
	q.state = stateIdle
	p.pool.ready[q] = struct{}{}
	for old := range p.pool.ready {
		if old.due && old != q { // this one is its successor
			p.retire(old, exitRecycled, recycleGrace)
			break
		}
	}
	if p.settings.age > 0 {
		// Those that were started together shall not be replaced together.
		age := p.settings.age - time.Duration(rand.Float64()*float64(p.settings.age)/10) //nolint:gosec // it is no secret
		q.aging = time.AfterFunc(age, func() { p.replace(q) })
	}
	p.list(q)
	p.review()
	p.fill(q)
	if p.pool.retired {
		p.settle(q) // what it was started for may have gone meanwhile
	}
	p.grow()
}

// replace starts the successor of a process. The process goes on until there is one.
func (p *Process) replace(q *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	q.due = true // even where it is about to end: nobody looks then
	p.grow()
}

// retire lets a process finish what it has in hand, and end.
func (p *Process) retire(q *peer, reason exitReason, grace time.Duration) {
	if q.state == stateStopping {
		return
	}
	p.leave(q)
	q.reason = reason
	q.grace = grace
	if len(q.calls) == 0 {
		q.closeInput()
	}
}

// leave takes a process out of those that get messages.
func (p *Process) leave(q *peer) {
	if q.state == stateStarting {
		p.pool.starting--
	}
	delete(p.pool.ready, q)
	p.metrics.moved(q.state, stateStopping)
	q.state = stateStopping
	p.list(q)
	p.review()
}

// condemn kills a process. The first reason counts.
func (p *Process) condemn(q *peer, reason exitReason, fault error) {
	if _, there := p.pool.all[q]; !there {
		return // it has ended
	}
	if !q.condemned {
		q.condemned, q.reason, q.fault = true, reason, fault
	}
	if q.state != stateStopping {
		p.leave(q)
	}
	q.kill()
}

// grow starts as many processes as are needed, may be, and may start now.
func (p *Process) grow() {
	if p.pool.closed {
		return
	}
	due := 0
	for q := range p.pool.ready {
		if q.due {
			due = 1 // one after the other, so that there is one process more than the spec says at most
			break
		}
	}
	waiting := (len(p.pool.waiting) + p.pool.places - 1) / p.pool.places
	needed := waiting + len(p.pool.alone) + due
	if needed == 0 && len(p.pool.ready) == 0 && !p.pool.retired {
		needed = 1 // so that Ready knows
	}
	if len(p.pool.alone) > 0 && p.pool.starting == 0 && len(p.pool.ready) >= p.settings.processes+due {
		p.makeRoom()
	}
	for p.pool.starting < min(needed, maxStarting) && p.hasRoom(due) {
		if wait := time.Until(p.pool.notBefore); wait > 0 {
			p.growAfter(wait)
			return
		}
		p.start()
	}
}

// hasRoom reports whether one more process may be started. Those that are to end count until they have or are killed: they may take
// their time, with a last message or without.
func (p *Process) hasRoom(due int) bool {
	if len(p.pool.ready)+p.pool.starting >= p.settings.processes+due {
		return false
	}
	living := 0
	for q := range p.pool.all {
		if !q.muted {
			living++
		}
	}
	return living <= p.settings.processes
}

// growAfter calls grow again.
func (p *Process) growAfter(wait time.Duration) {
	if p.pool.pause != nil {
		p.pool.pause.Stop()
	}
	p.pool.pause = time.AfterFunc(wait, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.grow()
	})
}

// makeRoom ends a process in favour of a message that needs a fresh one. It waits for a message that runs alone: that one's
// process makes room when it is done.
func (p *Process) makeRoom() {
	var least *peer
	for q := range p.pool.ready {
		if q.alone {
			return
		}
		if least == nil || len(q.calls) < len(least.calls) {
			least = q
		}
	}
	if least != nil {
		p.retire(least, exitRecycled, recycleGrace)
	}
}

// start starts a process.
func (p *Process) start() {
	q := &peer{handler: p, state: stateStarting, calls: map[uint64]*call{}, ear: make(chan struct{}, 1), over: make(chan error, 1)}
	p.pool.all[q] = struct{}{}
	p.pool.starting++
	p.metrics.moved("", stateStarting)
	p.metrics.starts.Inc()
	p.running.Go(q.run)
}

// review brings the answer of Ready up to date.
func (p *Process) review() {
	why := p.pool.trouble
	switch {
	case p.pool.closed:
		why = errClosed
	case len(p.pool.ready) > 0:
		why = nil
	}
	if fmt.Sprint(why) == fmt.Sprint(p.pool.why) {
		return
	}
	p.pool.why = why
	close(p.pool.changed)
	p.pool.changed = make(chan struct{})
}
