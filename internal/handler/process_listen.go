package handler

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	// maxFrame is the longest frame of a process, and maxStray the most that it may write between two frames that is none.
	maxFrame = 1 << 20
	maxStray = 1 << 20
	// attendAfter is how long a process has nothing in hand until its own goroutine listens to it.
	attendAfter = 2 * time.Second
)

var (
	// errSilent: it writes no more.
	errSilent = errors.New("it closed its standard output")
	// errInterrupted: there is a message that listens from now on.
	errInterrupted = errors.New("interrupted")
)

// attend listens to a process until it says hello, and then again when it has had nothing in hand for a while; see listenFor. It
// returns when nobody can listen to it any more: nil, or how it broke the protocol.
func (q *peer) attend() error {
	for q.places == 0 {
		if err := q.listen(); err != nil {
			return fault(err)
		}
	}
	q.ear <- struct{}{}
	tick := time.NewTicker(attendAfter)
	defer tick.Stop()
	for last := uint64(0); ; {
		select {
		case err := <-q.over:
			return fault(err)
		case <-q.child.Done():
			return fault(q.lastWords())
		case <-tick.C:
		}
		var quiet bool
		if quiet, last = q.isQuiet(last); !quiet {
			continue
		}
		if err := q.attendIdle(); err != nil {
			return fault(err)
		}
	}
}

// fault is nil for an end of the output.
func fault(err error) error {
	if errors.Is(err, errSilent) {
		return nil
	}
	return err
}

// isQuiet is true where no message came since the last look, and none is in hand.
func (q *peer) isQuiet(last uint64) (bool, uint64) {
	q.handler.mu.Lock()
	defer q.handler.mu.Unlock()
	return q.lastID == last && len(q.calls) == 0, q.lastID
}

// attendIdle listens until a message comes; the error says why that is not possible any more.
func (q *peer) attendIdle() error {
	select {
	case <-q.ear:
	default:
		return nil
	}
	p := q.handler
	p.mu.Lock()
	// Where reading cannot be interrupted it is left to the messages.
	q.attended = len(q.calls) == 0 && !q.muted && q.stdout.SetReadDeadline(time.Time{}) == nil
	listening := q.attended
	p.mu.Unlock()
	for listening {
		err := q.listen()
		if err != nil && !errors.Is(err, errInterrupted) {
			return err
		}
		listening = err == nil
	}
	q.ear <- struct{}{}
	return nil
}

// interrupt makes the process's own goroutine leave the listening to a message.
func (q *peer) interrupt() {
	if q.attended && !q.muted {
		_ = q.stdout.SetReadDeadline(time.Unix(1, 0)) // it is possible, or it would not be attended
	}
}

// lastWords listens to the end, or waits for who does.
func (q *peer) lastWords() error {
	select {
	case err := <-q.over:
		return err
	case <-q.ear:
	}
	for {
		if err := q.listen(); err != nil && !errors.Is(err, errInterrupted) {
			return err
		}
	}
}

// listenFor listens to a process until there is news of a message. Of the messages in hand one does that for all: what it hears of others it
// passes on, and when it has its own answer the next takes over. So the answer to a message that is alone is read where it is waited
// for, and no other goroutine has to be woken in between, which would cost as much as all the rest.
func (q *peer) listenFor(c *call) {
	for len(c.ended) == 0 && len(c.progress) == 0 {
		if err := q.listen(); err != nil {
			q.over <- err
			return
		}
	}
	q.ear <- struct{}{}
}

// listen takes one line of what the process writes. An error is errInterrupted, errSilent, or says how it broke the protocol.
func (q *peer) listen() error {
	line, err := q.lines.next()
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return q.interrupted()
	}
	defer q.lines.letGo()
	if errors.Is(err, bufio.ErrTooLong) {
		return fmt.Errorf("it wrote a line of more than %d bytes, which begins with %s", maxFrame, excerptOf(line))
	}
	if len(bytes.TrimSpace(line)) > 0 {
		if fault := q.understand(line); fault != nil {
			return fault
		}
	}
	if err != nil {
		return errSilent
	}
	return nil
}

// interrupted says why reading was broken off.
func (q *peer) interrupted() error {
	q.handler.mu.Lock()
	defer q.handler.mu.Unlock()
	if q.muted {
		return errSilent
	}
	q.attended = false
	_ = q.stdout.SetReadDeadline(time.Time{}) // as interrupt
	return errInterrupted
}

// understand takes a line. The error says how it breaks the protocol.
func (q *peer) understand(line []byte) error {
	f, fault := readFrame(line)
	switch {
	case errors.Is(fault, errStray):
		if q.noise += len(line); q.noise > maxStray {
			return fmt.Errorf("it wrote more than %d bytes that are no frame, the last of them %s", maxStray, excerptOf(line))
		}
		q.passOver(line)
		return nil
	case fault != nil:
		return fault
	}
	late, fault := q.take(f)
	switch {
	case fault != nil:
		return fault
	case !late:
		q.noise = 0
	default:
		if q.noise += len(line); q.noise > maxStray {
			return fmt.Errorf("it wrote more than %d bytes about messages that it had answered", maxStray)
		}
	}
	return nil
}

// passOver notes a line that is no frame.
func (q *peer) passOver(line []byte) {
	p := q.handler
	text := excerptOf(line)
	p.mu.Lock()
	q.stray = text
	p.mu.Unlock()
	p.log.warn("stray", "a process of the handler writes to its standard output what is no frame of the protocol, and is ignored",
		"program", p.settings.program(), "pid", q.child.Pid(), "line", text, "messages", q.inHand())
}

// take does what a frame says. late is true where it is of a message that was answered. The error says how it breaks the protocol.
func (q *peer) take(f frame) (late bool, fault error) {
	p := q.handler
	if f.word == wordHello {
		if q.places > 0 {
			return false, errors.New("it said hello twice")
		}
		p.greet(q, f.places)
		return false, nil
	}
	if q.places == 0 {
		return false, fmt.Errorf("it wrote a %s before its hello", f.word)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := q.calls[f.id]
	switch {
	case c == nil && (f.id == 0 || f.id > q.lastID):
		return false, fmt.Errorf("it wrote a %s for the message %d, which it was never given", f.word, f.id)
	case c == nil:
		if !q.condemned {
			p.log.warn("late", "a process of the handler speaks of a message that it has answered; the first answer counts",
				"program", p.settings.program(), "pid", q.child.Pid(), "frame", f.word)
		}
	case f.word == wordProgress && p.pool.isDrained():
		c.cut = true
	case f.word == wordProgress:
		select {
		case c.progress <- struct{}{}:
		default: // it is told already
		}
	default:
		q.release(c)
		p.pool.crashes = 0
		c.end(ending{kind: endAnswered, failure: f.failure})
		p.settle(q)
	}
	return c == nil, nil
}
