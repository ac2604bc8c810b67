package worker

import (
	"log/slog"
	"sync"
	"time"
)

const (
	sampleEvery = time.Minute
	sampleKinds = 256
)

// sampled logs what may happen with every message, but each kind of it at most once a minute.
type sampled struct {
	log *slog.Logger
	now func() time.Time

	mu   sync.Mutex
	last map[string]time.Time
}

func newSampled(log *slog.Logger, now func() time.Time) *sampled {
	return &sampled{log: log, now: now, last: map[string]time.Time{}}
}

// warn logs unless the same kind was logged within the last minute.
func (s *sampled) warn(kind, message string, args ...any) {
	s.mu.Lock()
	now := s.now()
	last, seen := s.last[kind]
	due := !seen || now.Sub(last) >= sampleEvery
	if due {
		if len(s.last) >= sampleKinds {
			clear(s.last)
		}
		s.last[kind] = now
	}
	s.mu.Unlock()
	if due {
		s.log.Warn(message, args...)
	}
}
