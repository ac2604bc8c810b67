package handler

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"redrive.dev/redrive/internal/message"
)

const (
	// maxLine is the longest line of a standard error that is logged, in bytes.
	maxLine = 2 << 10
	// lineBuffer is how much of a standard error is read at a time.
	lineBuffer = 32 << 10
	// recordBurst and recordsPerSecond bound how many records tell of the standard errors of a handler's programs.
	recordBurst      = 200
	recordsPerSecond = 50
	// maxLoggedIDs is how many messages in hand a line is logged with.
	maxLoggedIDs = 10
	// warnEvery is how often the same kind of thing is told.
	warnEvery = time.Minute
	// maxExcerpt is how much of a line an error shows, in bytes.
	maxExcerpt = 120
)

// stderrLog logs what programs write to their standard error, and keeps it within bounds.
type stderrLog struct {
	log *slog.Logger
	// limit is that of records, and dropped how many were left out since the last one.
	limit   *rate.Limiter
	dropped atomic.Int64
}

func newStderrLog(log *slog.Logger) *stderrLog {
	return &stderrLog{log: log, limit: rate.NewLimiter(recordsPerSecond, recordBurst)}
}

// write logs a record with what args returns, if there is room, and says whether there was.
func (l *stderrLog) write(args func() []any) bool {
	if !l.limit.Allow() {
		l.leaveOut(1)
		return false
	}
	record := args()
	if dropped := l.dropped.Swap(0); dropped > 0 {
		record = append(record, "leftOut", dropped)
	}
	l.log.Info("handler's standard error", record...)
	return true
}

// leaveOut counts records that there was no room for.
func (l *stderrLog) leaveOut(records int) { l.dropped.Add(int64(records)) }

// processLog writes what processes say and do, and keeps it within bounds.
type processLog struct {
	*stderrLog

	mu     sync.Mutex
	warned map[string]time.Time
}

func newProcessLog(log *slog.Logger) *processLog {
	return &processLog{stderrLog: newStderrLog(log), warned: map[string]time.Time{}}
}

// line logs a line of a process's standard error, if there is room. inHand tells the ids of its messages.
func (l *processLog) line(pid int, text []byte, inHand func() []string) bool {
	return l.write(func() []any {
		return []any{"pid", pid, "line", message.Text(string(text), maxLine), "messages", inHand()}
	})
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
