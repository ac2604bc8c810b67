package handler

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"redrive.dev/redrive/internal/subprocess"
)

const (
	// tailSize is how much of a standard error is kept for errors.
	tailSize = 2 << 10
	// drainTime is how long the output of a process that has ended is read, where something that it started holds it open.
	drainTime = 500 * time.Millisecond
	// pipeGrace is the time that a process has to end after it has closed its standard input or output.
	pipeGrace = time.Second
	// stubborn is how long the end of a process that was killed is waited for.
	stubborn = 5 * time.Second
	// weighEvery is how often the memory of a process is looked at.
	weighEvery = 100 * time.Millisecond
)

var (
	errOutputClosed = errors.New("it closed its standard output")
	errInputClosed  = errors.New("it closed its standard input")
)

// peer is one process. The mutex of its handler guards all that has no other guard.
type peer struct {
	handler *Process
	child   *subprocess.Process
	stdin   *os.File
	stdout  *os.File
	stderr  *stderrReader
	// heard is closed when all of its standard error was read.
	heard chan struct{}

	state  peerState
	calls  map[uint64]*call
	lastID uint64
	// taken is how many messages it had so far.
	taken int64
	// places is how many it takes at a time; 0 before its hello.
	places int
	// listed is true while it is in pool.free; alone while it has one message and must not get another.
	listed, alone bool
	// due is true when it is to be replaced.
	due    bool
	aging  *time.Timer
	weight time.Time

	// reason is why it is to end, condemned says that it was killed for it, and fault how it broke the protocol.
	reason    exitReason
	condemned bool
	fault     error
	// grace is how long it may take to end, and reaper kills it then.
	grace  time.Duration
	reaper *time.Timer
	// stray is the last that it wrote that is no frame, as an error shows it.
	stray string
	// calm is how much it had written to its standard error when it had nothing in hand any more.
	calm int64

	// lines is what it writes, and noise how much of that was no frame since the last one. They belong to who took the value out of ear;
	// see listenFor. over gets why nobody listens any more.
	lines lineReader
	noise int
	ear   chan struct{}
	over  chan error
	// attended is true while its own goroutine listens, and muted when the end of the listening is set.
	attended, muted bool
	// killed is true once it was.
	killed bool

	writing sync.Mutex
	// written is how much was written to it, and closed says that nothing more will be. They are guarded by writing.
	written int64
	closed  bool
}

// run is the life of a process.
func (q *peer) run() {
	p := q.handler
	if err := q.launch(); err != nil {
		p.failed(q, err)
		return
	}
	defer func() { _ = q.stdout.Close() }()
	late := time.AfterFunc(p.settings.startTimeout, q.late)
	fault := q.attend()
	q.lines.letGo()
	late.Stop()
	q.part()
	exit := q.finish(fault)
	p.bury(q, exit, q.hangUp())
}

// part is called when nobody listens to the process any more: whatever its end will be, it gets no further message.
func (q *peer) part() {
	p := q.handler
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.state != stateStopping {
		p.leave(q)
	}
}

// launch starts the program and what reads of it.
func (q *peer) launch() error {
	var pipes [3][2]*os.File // reader, writer
	for i := range pipes {
		var err error
		if pipes[i][0], pipes[i][1], err = os.Pipe(); err != nil {
			closeAll(pipes[:i], 0, 1)
			return fmt.Errorf("no pipe for the process: %w", err)
		}
	}
	started, err := subprocess.Start(q.handler.settings.command, pipes[0][0], pipes[1][1], pipes[2][1])
	closeAll(pipes[:1], 0)
	closeAll(pipes[1:], 1)
	if err != nil {
		closeAll(pipes[:1], 1)
		closeAll(pipes[1:], 0)
		return err
	}
	stderr := pipes[2][0]
	q.heard = make(chan struct{})
	p := q.handler
	p.mu.Lock()
	q.child, q.stdin, q.stdout = started, pipes[0][1], pipes[1][0]
	q.stderr = newStderrReader(stderr, started.Pid(), p.log)
	q.lines.room, q.lines.peer = p.lines, q
	q.lines.reader = bufio.NewReaderSize(&q.lines, lineBuffer)
	if q.condemned {
		q.kill()
	}
	p.mu.Unlock()
	p.running.Go(func() { q.hear(stderr) })
	p.running.Go(func() { q.watch(stderr) })
	return nil
}

// closeAll closes ends of pipes.
func closeAll(pipes [][2]*os.File, ends ...int) {
	for _, pipe := range pipes {
		for _, end := range ends {
			_ = pipe[end].Close() // nothing was written
		}
	}
}

// watch waits for the process to end. From then on it gets no message, and little time is left for its last words.
func (q *peer) watch(stderr *os.File) {
	<-q.child.Done()
	p := q.handler
	p.mu.Lock()
	if q.state != stateStopping {
		p.leave(q)
	}
	q.mute(drainTime)
	p.mu.Unlock()
	_ = stderr.SetReadDeadline(time.Now().Add(drainTime)) // where that is not possible, nothing holds it open but what it started
}

// hear reads the standard error.
func (q *peer) hear(stderr *os.File) {
	defer close(q.heard)
	defer func() { _ = stderr.Close() }()
	q.stderr.run()
}

// inHand are the ids of the messages in hand, the oldest first.
func (q *peer) inHand() []string {
	q.handler.mu.Lock()
	defer q.handler.mu.Unlock()
	var ids []string
	for _, id := range slices.Sorted(maps.Keys(q.calls)) {
		if len(ids) == maxLoggedIDs {
			break
		}
		ids = append(ids, q.calls[id].messageID)
	}
	return ids
}

// send writes the frame of a message.
func (q *peer) send(c *call, frame []byte) {
	q.writing.Lock()
	defer q.writing.Unlock()
	if q.closed {
		return // it has ended, and so will the call
	}
	c.start = q.written
	n, err := q.stdin.Write(frame)
	q.written += int64(n)
	if err != nil {
		q.handler.deaf(q)
	}
}

// deaf ends a process that reads no more. Mostly it is about to end by itself.
func (p *Process) deaf(q *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, there := p.pool.all[q]; !there {
		return
	}
	if q.state != stateStopping {
		p.leave(q)
	}
	if q.reaper == nil {
		q.reaper = time.AfterFunc(pipeGrace, func() { p.kill(q, exitProtocol, errInputClosed) })
	}
}

// kill is condemn for those that do not hold the mutex.
func (p *Process) kill(q *peer, reason exitReason, fault error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.condemn(q, reason, fault)
}

// late ends a process that has not said hello in time.
func (q *peer) late() {
	p := q.handler
	p.mu.Lock()
	defer p.mu.Unlock()
	if q.state == stateStarting {
		p.condemn(q, exitTimeout, fmt.Errorf("it did not say hello within %s", p.settings.startTimeout))
	}
}

// kill ends the process and what it started. The system may keep it, for a disk or a file server that is gone: then no more is
// read of it.
func (q *peer) kill() {
	if q.child != nil {
		q.child.Kill()
		q.killed = true
		q.mute(stubborn)
	}
}

// mute sets the end of what is read of its standard output.
func (q *peer) mute(after time.Duration) {
	q.muted = true
	_ = q.stdout.SetReadDeadline(time.Now().Add(after)) // where that is not possible it ends with the process
}

// closeInput tells the process to end; it is killed when its grace is over.
func (q *peer) closeInput() {
	if q.reaper != nil {
		return
	}
	_ = q.stdin.Close() // nothing is left to be written
	q.reaper = time.AfterFunc(q.grace, q.expire)
}

// expire kills a process that has not ended within its grace.
func (q *peer) expire() {
	p := q.handler
	p.mu.Lock()
	defer p.mu.Unlock()
	q.kill()
	p.grow()
}

// finish waits for the end of a process that writes no more, or ends it.
func (q *peer) finish(fault error) subprocess.Exit {
	p := q.handler
	if fault != nil {
		p.kill(q, exitProtocol, fault)
	}
	if !isWithin(pipeGrace, q.child.Done()) {
		p.mu.Lock()
		if q.reaper == nil { // else its end is near
			p.condemn(q, exitProtocol, errOutputClosed)
		}
		p.mu.Unlock()
	}
	limit := stubborn + q.allowed()
	if !isWithin(limit, q.child.Done()) || !isWithin(limit, q.heard) {
		p.log.warn("stubborn", "a process of the handler was killed and does not end", "program", p.settings.program(), "pid", q.child.Pid())
		return subprocess.Exit{Code: -1, Signal: syscall.SIGKILL}
	}
	return q.child.Exit()
}

// allowed is how long the process may take to end by itself.
func (q *peer) allowed() time.Duration {
	q.handler.mu.Lock()
	defer q.handler.mu.Unlock()
	return q.grace
}

// isWithin waits, but not for longer than limit.
func isWithin(limit time.Duration, done <-chan struct{}) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// hangUp closes the standard input of a process that has ended, and returns how much the process has read of it.
func (q *peer) hangUp() (read int64) {
	_ = q.stdin.SetWriteDeadline(time.Unix(1, 0)) // whoever waits for it to read gives up
	q.writing.Lock()
	defer q.writing.Unlock()
	q.closed = true
	read = q.written - unreadBytes(q.stdin)
	_ = q.stdin.Close() // nobody reads it
	return read
}

// isOver reports whether the process has more memory than it may have. It does not look each time.
func (q *peer) isOver(limit int64) bool {
	now := time.Now()
	if now.Sub(q.weight) < weighEvery {
		return false
	}
	q.weight = now
	size, err := subprocess.Memory(q.child.Pid())
	return err == nil && size > limit
}
