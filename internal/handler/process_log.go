package handler

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"redrive.dev/redrive/internal/message"
)

const (
	// maxLine is the longest line of a standard error that is logged, in bytes.
	maxLine = 2 << 10
	// lineBuffer is how much of a standard error is read at a time.
	lineBuffer = 32 << 10
	// lineBurst and linesPerSecond bound how many lines of all processes of a handler are logged.
	lineBurst      = 200
	linesPerSecond = 50
	// maxLoggedIDs is how many messages in hand a line is logged with.
	maxLoggedIDs = 10
	// warnEvery is how often the same kind of thing is told.
	warnEvery = time.Minute
	// maxExcerpt is how much of a line an error shows, in bytes.
	maxExcerpt = 120
)

// processLog writes what processes say and do, and keeps it within bounds.
type processLog struct {
	log *slog.Logger

	mu sync.Mutex
	// left is how many lines may be logged at refilled, and dropped how many were left out since the last one.
	left     float64
	refilled time.Time
	dropped  int64
	warned   map[string]time.Time
}

func newProcessLog(log *slog.Logger) *processLog {
	return &processLog{log: log, left: lineBurst, refilled: time.Now(), warned: map[string]time.Time{}}
}

// line logs a line of a process's standard error, if there is room. inHand tells the ids of its messages.
func (l *processLog) line(pid int, text []byte, inHand func() []string) bool {
	l.mu.Lock()
	now := time.Now()
	l.left = min(lineBurst, l.left+now.Sub(l.refilled).Seconds()*linesPerSecond)
	l.refilled = now
	if l.left < 1 {
		l.dropped++
		l.mu.Unlock()
		return false
	}
	l.left--
	dropped := l.dropped
	l.dropped = 0
	l.mu.Unlock()
	args := []any{"pid", pid, "line", message.Text(string(text), maxLine), "messages", inHand()}
	if dropped > 0 {
		args = append(args, "linesLeftOut", dropped)
	}
	l.log.Info("handler's standard error", args...)
	return true
}

// leaveOut counts lines that there was no room for.
func (l *processLog) leaveOut(lines int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropped += int64(lines)
}

// warn logs unless the same kind was logged within the last minute.
func (l *processLog) warn(kind, text string, args ...any) {
	l.mu.Lock()
	now := time.Now()
	last, seen := l.warned[kind]
	if seen && now.Sub(last) < warnEvery {
		l.mu.Unlock()
		return
	}
	l.warned[kind] = now
	l.mu.Unlock()
	l.log.Warn(text, args...)
}

// readLines calls take with each line of an output, without its end; of a line that is very long, with its beginning. When take
// refuses one, so it would the next: those that were read with it are left out together, for a flood has millions.
func readLines(output io.Reader, take func(line []byte) bool, leaveOut func(lines int)) {
	reader := bufio.NewReaderSize(output, lineBuffer)
	for {
		line, err := reader.ReadSlice('\n')
		wanted := true
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 {
			wanted = take(line)
		}
		for errors.Is(err, bufio.ErrBufferFull) {
			_, err = reader.ReadSlice('\n')
		}
		if err != nil {
			return
		}
		if !wanted {
			buffered, _ := reader.Peek(reader.Buffered())
			end := bytes.LastIndexByte(buffered, '\n') + 1
			leaveOut(bytes.Count(buffered[:end], []byte{'\n'}))
			_, _ = reader.Discard(end) // it is there
		}
	}
}

// excerptOf is the beginning of what a process wrote, as an error shows it.
func excerptOf(text []byte) string {
	text = bytes.TrimRight(text, "\r\n")
	cut := ""
	if len(text) > maxExcerpt {
		text, cut = text[:maxExcerpt], "…"
	}
	return strconv.Quote(message.Text(string(text), maxExcerpt) + cut)
}
