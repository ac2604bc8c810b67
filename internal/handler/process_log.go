package handler

import (
	"bytes"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/subprocess"
)

const (
	// recordBurst and recordsPerSecond bound how many records tell of the standard errors of a handler's programs.
	recordBurst      = 200
	recordsPerSecond = 50
	// maxLoggedIDs is how many messages in hand a record is logged with.
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

// write logs a record with what args returns, if there is room.
func (l *stderrLog) write(args func() []any) {
	if !l.limit.Allow() {
		l.dropped.Add(1)
		return
	}
	record := args()
	if dropped := l.dropped.Swap(0); dropped > 0 {
		record = append(record, "leftOut", dropped)
	}
	l.log.Info("handler's standard error", record...)
}

// processLog writes what processes say and do, and keeps it within bounds.
type processLog struct {
	*stderrLog

	mu     sync.Mutex
	warned map[string]time.Time
}

func newProcessLog(log *slog.Logger) *processLog {
	return &processLog{stderrLog: newStderrLog(log), warned: map[string]time.Time{}}
}

// record logs a record of a process's standard error, if there is room.
func (l *processLog) record(pid int, r stderrRecord) {
	if len(bytes.TrimSpace(r.text)) == 0 {
		return
	}
	l.write(func() []any {
		return []any{"pid", pid, "text", subprocess.Text(r.text, false, maxRecord), "messages", r.ids}
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

// excerptOf is the beginning of what a process wrote, as an error shows it.
func excerptOf(text []byte) string {
	text = bytes.TrimRight(text, "\r\n")
	cut := ""
	if len(text) > maxExcerpt {
		text, cut = text[:maxExcerpt], "…"
	}
	return strconv.Quote(message.Text(string(text), maxExcerpt) + cut)
}
