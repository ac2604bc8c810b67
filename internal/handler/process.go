package handler

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/subprocess"
)

const (
	defaultStartTimeout = 30 * time.Second
	// closeGrace is how long processes may take to end with the handler.
	closeGrace = 5 * time.Second
	// recycleGrace is how long a process may take to end that is replaced.
	recycleGrace = 10 * time.Second
	// atOnce is how much certainly fits into an empty pipe.
	atOnce = 4 << 10
	// maxKeptBuffer is the largest buffer for frames that is kept for the next one.
	maxKeptBuffer = 1 << 20
	// usualBuffer is the largest buffer that any frame may have.
	usualBuffer = 16 << 10
)

// Process hands messages to processes that stay, over their standard input and output. docs/process-protocol.md is what they
// speak. It starts as many as there are messages to hand over, at most the spec's number and one more while one is replaced;
// the first starts with the handler, so that Ready knows whether they do.
type Process struct {
	settings processSettings
	log      *processLog
	metrics  processMetrics
	// buffers of frames.
	buffers sync.Pool
	// lines is what long lines of the processes may take; nil is no limit.
	lines *LineRoom
	// running are the goroutines of the processes.
	running sync.WaitGroup

	mu   sync.Mutex
	pool pool
}

// processSettings are what a spec says, with its defaults filled in.
type processSettings struct {
	command subprocess.Command
	// processes is the largest number of them, and places the largest number of messages at a time that one of them gets.
	processes, places int
	startTimeout      time.Duration
	closeGrace        time.Duration
	// A process is replaced after so many messages, after this time, and over this memory in bytes; 0 is never.
	messages int64
	age      time.Duration
	memory   int64
}

// NewProcess makes the handler and starts the first process. The error says what is wrong with the spec; a command that cannot
// be started is an error of Ready.
func NewProcess(spec v1alpha1.ProcessHandler, o Options) (*Process, error) {
	settings, err := readProcessSpec(spec, max(1, o.Concurrency), inherited(os.Environ(), o.Withheld))
	if err != nil {
		return nil, fmt.Errorf("process handler: %w", err)
	}
	metrics, err := newProcessMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Process{settings: settings, log: newProcessLog(o.Log), metrics: metrics, lines: o.Lines}
	p.buffers.New = func() any { return new([]byte) }
	p.pool = newPool()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.review()
	p.grow()
	return p, nil
}

func readProcessSpec(spec v1alpha1.ProcessHandler, concurrency int, environment []string) (s processSettings, err error) {
	if len(spec.Command) == 0 || spec.Command[0] == "" {
		return s, errors.New("the command names no program")
	}
	s = processSettings{
		command:   subprocess.Command{Args: spec.Command, Env: append(environment, "REDRIVE_PROTOCOL="+strconv.Itoa(protocolVersion))},
		processes: concurrency, places: concurrency, startTimeout: defaultStartTimeout,
		closeGrace: closeGrace,
	}
	if spec.Processes != nil {
		s.processes = max(1, int(*spec.Processes))
	}
	if spec.StartTimeout != nil {
		s.startTimeout = spec.StartTimeout.Duration.Duration
	}
	if recycle := spec.Recycle; recycle != nil {
		if recycle.Messages != nil {
			s.messages = *recycle.Messages
		}
		if recycle.Age != nil {
			s.age = recycle.Age.Duration.Duration
		}
		if recycle.Memory != nil {
			s.memory, err = readMemory(*recycle.Memory)
		}
	}
	return s, err
}

// readMemory reads a size such as 256Mi.
func readMemory(text string) (int64, error) {
	unit := int64(1 << 20)
	digits, ok := strings.CutSuffix(text, "Mi")
	if !ok {
		unit = 1 << 30
		digits, ok = strings.CutSuffix(text, "Gi")
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || n < 1 || !ok {
		return 0, fmt.Errorf("recycle.memory %q is not a size such as 256Mi or 1Gi", text)
	}
	return n * unit, nil
}

// program names the command for people, without its arguments: they may be anything.
func (s *processSettings) program() string { return filepath.Base(s.command.Args[0]) }

// Handle gives the message to a process and waits for its answer. A message that no process has begun when ctx ends, or at its deadline, has a
// failure of the class ClassNotBegun. The time that it waits for a process is not the attempt's, where ctx is of WithTimeout.
func (p *Process) Handle(ctx context.Context, request Request) *retry.Failure {
	c := newCall(ctx, request.ID)
	defer func() { c.cancel() }()
	c.key, c.begin = request.IdempotencyKey, request.Begin
	if !request.Deadline.IsZero() {
		c.deadline = time.Now().Add(time.Until(request.Deadline)) // which no change of the clock moves
	}
	for {
		if failure := p.place(c); failure != nil { //nolint:contextcheck // the call has the context
			p.remember(c)
			return failure
		}
		end := p.exchange(c, &request) //nolint:contextcheck // the call has the context, for that changes
		switch end.kind {
		case endAnswered:
			return end.failure
		case endUntouched:
			c.extend(0) // its attempt has not begun
		case endQuarantine:
			if c.ctx.Err() != nil {
				return unanswered(c.ctx, "") //nolint:contextcheck // as above
			}
			// The attempt gets what was left of its time once there is a process for it alone.
			c.alone, c.remaining = true, max(time.Millisecond, c.left())
			c.extend(0)
		}
	}
}

// exchange writes a placed message to its process and waits for the end of that.
func (p *Process) exchange(c *call, request *Request) ending {
	q, id := c.peer, c.id
	watch := func() (stop func() bool) {
		ctx := c.ctx
		return context.AfterFunc(ctx, func() { p.abandon(ctx, c, q, id) })
	}
	stop := watch()
	defer func() { stop() }()

	written := p.hand(c, q, id, request)
	for {
		select {
		case end := <-c.ended:
			if !c.awaitRead(written) {
				p.abandon(c.ctx, c, q, id) // the watch has just been told that the time is over, and may be stopped before it comes to it
			}
			return end
		case <-c.progress:
			stop()
			c.extend(0)
			stop = watch()
		case <-q.ear:
			q.listenFor(c)
		}
	}
}

// hand writes the frame of a message. The channel that it returns is closed when that is done; nil where it is.
func (p *Process) hand(c *call, q *peer, id uint64, request *Request) (written <-chan struct{}) {
	deadline, _ := c.ctx.Deadline()
	frame := p.frameOf(id, deadline, request)
	c.unread.Store(true)
	write := func() {
		q.send(c, *frame)
		p.keep(frame)
		c.unread.Store(false)
	}
	if len(*frame) <= atOnce {
		write()
		return nil
	}
	done := make(chan struct{})
	go func() { // for a process may wait until somebody reads what it writes, before it reads
		defer close(done)
		write()
	}()
	return done
}

// frameOf makes the frame of a message, in a buffer that is kept from another one. A much larger buffer is not taken for it: it would be in
// use for as long as the process does not read, while what is counted is the frame.
func (p *Process) frameOf(id uint64, deadline time.Time, request *Request) *[]byte {
	buffer, _ := p.buffers.Get().(*[]byte)
	*buffer = appendMessage((*buffer)[:0], id, deadline, request)
	if size := cap(*buffer); size > usualBuffer && len(*buffer) < size-size/4 {
		frame := bytes.Clone(*buffer)
		p.keep(buffer)
		return &frame
	}
	return buffer
}

// keep keeps a buffer for the next frame.
func (p *Process) keep(buffer *[]byte) {
	if cap(*buffer) <= maxKeptBuffer {
		p.buffers.Put(buffer)
	}
}

// abandon ends an attempt of which the context has ended. Nobody can ask a process to let go of a message, so it is killed.
func (p *Process) abandon(ctx context.Context, c *call, q *peer, id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	late := errors.Is(ctx.Err(), context.DeadlineExceeded)
	reason := exitStopped
	if late {
		reason = exitTimeout
	}
	if q.calls[id] != c && c.unread.Load() {
		p.condemn(q, reason, nil) // it has answered what it does not read
	}
	if q.calls[id] != c || late && q.condemned {
		return // it has just ended, or is about to, and nobody knows yet whether it had begun
	}
	delete(q.calls, id)
	p.condemn(q, reason, nil)
	failure := unanswered(ctx, q.unheard())
	if late && c.cut {
		failure = NotBegun("the worker stops, and a process that was at work on the message did not answer in time; it was killed")
	}
	c.end(ending{kind: endAnswered, failure: failure})
}

const killedInTime = "no answer in time; the process was killed"

// unheard is what the process wrote and nobody took for an answer; empty where that is nothing.
func (q *peer) unheard() string {
	switch {
	case q.lines.isWaiting():
		return "a line of more than 64 KiB, for which others left no memory, was not read"
	case q.stray != "":
		return "what it wrote last that is no frame: " + q.stray
	}
	return ""
}

// unanswered is the failure of an attempt of which the context has ended. unheard is what its process wrote meanwhile.
func unanswered(ctx context.Context, unheard string) *retry.Failure {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return &retry.Failure{Source: retry.SourceConnection, Class: ClassCanceled, Message: wasBrokenOff, Logged: wasBrokenOff}
	}
	text := killedInTime
	if unheard != "" {
		text += "; " + unheard
	}
	return &retry.Failure{Source: retry.SourceTimeout, Class: ClassTimeout, Message: message.Text(text, message.MaxText), Logged: killedInTime}
}

// Ready is nil while there is a process that takes messages, or will be in a moment.
func (p *Process) Ready() (why error, changed <-chan struct{}) { //nolint:revive,staticcheck // the order is Handler's
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pool.why, p.pool.changed
}

// Close ends the processes: their standard input is closed, and those that have not ended after closeGrace are killed.
func (p *Process) Close() error {
	p.mu.Lock()
	if p.pool.closed {
		p.mu.Unlock()
		return nil
	}
	p.pool.closed = true
	close(p.pool.closing)
	if p.pool.pause != nil {
		p.pool.pause.Stop()
	}
	for q := range p.pool.all {
		if q.state == stateStarting {
			p.condemn(q, exitStopped, nil)
			continue
		}
		p.retire(q, exitStopped, p.settings.closeGrace)
	}
	p.review()
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		p.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-time.After(p.settings.closeGrace + closeGrace): // what the system does not end when it is killed
		return fmt.Errorf("processes of %s do not end", p.settings.program())
	}
}
