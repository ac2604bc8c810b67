package handler

import (
	"bufio"
	"errors"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lineBuffer is what each process may have of an unfinished line without asking for room.
	lineBuffer = 64 << 10
	// lineCost is what a byte of a line takes that was read whole: itself, what it was copied from, and what is decoded of it.
	lineCost = 3
	// lineTime is how long a line may come to a halt while others wait for the room that it takes.
	lineTime = 10 * time.Second
	// lineLook is how often who waits for room looks whether it is to go on waiting.
	lineLook = 100 * time.Millisecond
)

var errUnfinished = errors.New("it did not go on with a line of more than 64 KiB, and others waited for the memory that it takes")

// LineRoom is the memory that long lines of all processes may take together, until they are read whole and decoded. Each process may have
// written the most of a line: there may be a thousand of them.
type LineRoom struct {
	limit int64
	// patience is lineTime but in tests.
	patience time.Duration

	mu    sync.Mutex
	taken int64
	// lines are those that have room or wait for it, the oldest first. The first always gets more: else all could wait for each other.
	lines []*lineReader
	// freed is closed when there is more room than before; nil where nobody waits for that.
	freed chan struct{}
}

// NewLineRoom returns a LineRoom of so many bytes; 0 is no limit.
func NewLineRoom(limit int64) *LineRoom {
	if limit == 0 {
		limit = math.MaxInt64
	}
	return &LineRoom{limit: limit, patience: lineTime}
}

// take takes room for a line, so that it has so many bytes in all, unless one that is older waits. Where there is none, freed is closed when
// there may be, and halted are the lines that keep it from others.
func (r *LineRoom) take(l *lineReader, bytes int64) (freed <-chan struct{}, halted []*lineReader, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !l.listed {
		l.listed, r.lines = true, append(r.lines, l)
	}
	more, older := bytes-l.taken, r.lines[:slices.Index(r.lines, l)]
	fits := r.taken+more <= r.limit && !slices.ContainsFunc(older, func(other *lineReader) bool { return other.waits })
	if fits || len(older) == 0 {
		r.taken += more
		l.taken, l.waits = bytes, false
		l.moves() // it could not be read while it waited
		return nil, nil, true
	}
	l.waits = true
	for _, other := range r.lines {
		if !other.waits && time.Since(*other.moved.Load()) > r.patience {
			halted = append(halted, other)
		}
	}
	if r.freed == nil {
		r.freed = make(chan struct{})
	}
	return r.freed, halted, false
}

// leave gives back what a line has.
func (r *LineRoom) leave(l *lineReader) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = slices.DeleteFunc(r.lines, func(other *lineReader) bool { return other == l })
	r.taken -= l.taken
	l.taken, l.listed, l.waits = 0, false, false
	if r.freed != nil {
		close(r.freed)
		r.freed = nil
	}
}

// lineReader reads lines, and goes on where a deadline broke it off. A line that finds no room is not read on: then its process waits.
type lineReader struct {
	reader *bufio.Reader
	// room is that of all processes; nil is no limit.
	room *LineRoom
	peer *peer
	// long is the beginning of a line that did not fit into the reader's buffer, or was broken off.
	long []byte

	// moved is when something was read last, with its monotonic reading: the time of day may be set meanwhile. It is set in each line of a room's list
	// that does not wait.
	moved atomic.Pointer[time.Time]

	// taken is the room that it has, in bytes. listed is true while it is in the room's list, and waits while it waits for more. They are the
	// room's.
	taken         int64
	listed, waits bool
}

func (l *lineReader) moves() {
	now := time.Now()
	l.moved.Store(&now)
}

// Read reads what the process writes.
func (l *lineReader) Read(into []byte) (int, error) {
	n, err := l.peer.stdout.Read(into)
	if n > 0 {
		l.moves()
	}
	return n, err //nolint:wrapcheck // it is told by its value
}

// next reads a line of at most maxFrame bytes. It is valid until letGo is called. With an error there may be the beginning of one.
func (l *lineReader) next() ([]byte, error) {
	for {
		if len(l.long) >= lineBuffer {
			if err := l.grow(); err != nil {
				return nil, err
			}
		}
		line, err := l.reader.ReadSlice('\n')
		if err == nil && len(l.long) == 0 {
			return line, nil
		}
		l.long = append(l.long, line...)
		switch full := errors.Is(err, bufio.ErrBufferFull); {
		case full && len(l.long) > maxFrame:
			return l.long, bufio.ErrTooLong
		case full:
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, err //nolint:wrapcheck // it is told by its value
		}
		line, l.long = l.long, nil
		return line, err //nolint:wrapcheck // it is told by its value
	}
}

// grow makes room for what is read next of a long line. The error is os.ErrDeadlineExceeded where that is not to be waited for any more.
func (l *lineReader) grow() error {
	if cap(l.long)-len(l.long) >= lineBuffer && l.room == nil {
		return nil
	}
	size := min(max(2*len(l.long), 4*lineBuffer), maxFrame+2*lineBuffer)
	if l.room != nil {
		if l.taken >= lineCost*int64(len(l.long)+lineBuffer) {
			return nil
		}
		if !l.wait(lineCost * int64(size)) {
			return os.ErrDeadlineExceeded
		}
	}
	l.long = append(make([]byte, 0, size), l.long...)
	return nil
}

// wait waits until the line has so much room. It is false where its process was killed meanwhile, or a message is to listen to it.
func (l *lineReader) wait(bytes int64) bool {
	for waited := false; ; waited = true {
		freed, halted, ok := l.room.take(l, bytes)
		if ok {
			if waited {
				l.peer.listenOn()
			}
			return true
		}
		for _, other := range halted {
			other.peer.handler.kill(other.peer, exitProtocol, errUnfinished)
		}
		select {
		case <-freed:
		case <-time.After(lineLook):
		}
		if l.peer.isInterrupted() {
			return false
		}
	}
}

// isWaiting is true while the line waits for room.
func (l *lineReader) isWaiting() bool {
	if l.room == nil {
		return false
	}
	l.room.mu.Lock()
	defer l.room.mu.Unlock()
	return l.waits
}

// letGo gives back what the line took that was read last.
func (l *lineReader) letGo() {
	if l.listed {
		l.room.leave(l)
	}
}

// isInterrupted is true where its own goroutine is to leave the listening to a message, or the process was killed.
func (q *peer) isInterrupted() bool {
	q.handler.mu.Lock()
	defer q.handler.mu.Unlock()
	return q.killed || q.attended && len(q.calls) > 0
}

// listenOn gives a process that has ended meanwhile the time that its last words take.
func (q *peer) listenOn() {
	q.handler.mu.Lock()
	defer q.handler.mu.Unlock()
	if q.muted && !q.killed {
		q.mute(drainTime)
	}
}
