package handler

import (
	"errors"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// lookEvery is how often a program that is not there is looked for.
	lookEvery = 3 * time.Second
	// longestStumble is the longest pause after a start that failed for want of something that may come back.
	longestStumble = 30 * time.Second
	// unchanged is the pause after a start that failed although the program looks well, where its file stays the same.
	unchanged = 5 * time.Minute
)

// lookout knows whether a handler's program can be started.
type lookout struct {
	find func() (path string, err error)
	log  *slog.Logger

	// stumbles are the starts that failed one after the other.
	stumbles atomic.Int32

	mu      sync.Mutex
	path    string
	why     error
	changed chan struct{}

	looking sync.WaitGroup
	closing chan struct{}
	once    sync.Once
}

func newLookout(find func() (string, error), log *slog.Logger) *lookout {
	l := &lookout{find: find, log: log, changed: make(chan struct{}), closing: make(chan struct{})}
	if l.path, l.why = find(); l.why != nil {
		l.log.Warn("the handler's command cannot be started; it is looked for again", "error", l.why)
		l.look(lookEvery, nil)
	}
	return l
}

func (l *lookout) ready() (changed <-chan struct{}, why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed, l.why
}

// program returns the path of the program, or why there is none.
func (l *lookout) program() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path == "" {
		return "", l.why
	}
	return l.path, nil
}

// walked notes that the program was started.
func (l *lookout) walked() {
	if l.stumbles.Load() != 0 {
		l.stumbles.Store(0)
	}
}

// stumbled notes that a program could not be started. Nothing is handed over until there is hope again: at once when another file
// is in its place, and after a pause where the system had no room for it.
func (l *lookout) stumbled(path string, cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return // somebody is looking already
	}
	l.log.Warn("the handler's command could not be started; it is looked for again", "error", cause)
	l.why = cause
	l.announce()
	if isShortage(cause) {
		l.look(min(time.Second<<min(l.stumbles.Add(1)-1, 10), longestStumble), nil)
		return
	}
	file, _ := os.Stat(path) // none is another one
	l.look(lookEvery, file)
}

// isShortage reports whether a start failed for want of something of the system, and says nothing about the program.
func isShortage(err error) bool {
	for _, kind := range []error{
		syscall.EAGAIN, syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.E2BIG, syscall.ETXTBSY, syscall.EIO,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// look looks for the program again and again until there is one. A file that could not be started is no hope while it is the same.
func (l *lookout) look(every time.Duration, failed os.FileInfo) {
	since := time.Now()
	l.looking.Go(func() {
		ticks := time.NewTicker(every)
		defer ticks.Stop()
		for {
			select {
			case <-l.closing:
				return
			case <-ticks.C:
			}
			path, err := l.find()
			if err == nil && failed != nil && time.Since(since) < unchanged && isSame(path, failed) {
				continue
			}
			if l.found(path, err) {
				return
			}
		}
	})
}

// found notes what a look has shown.
func (l *lookout) found(path string, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		if err.Error() != l.why.Error() {
			l.why = err
			l.announce()
		}
		return false
	}
	l.log.Info("the handler's command is there", "path", path)
	l.path, l.why = path, nil
	l.announce()
	return true
}

func (l *lookout) announce() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *lookout) close() {
	l.once.Do(func() { close(l.closing) })
	l.looking.Wait()
}

// isSame reports whether a file is still the one that it was.
func isSame(path string, before os.FileInfo) bool {
	now, err := os.Stat(path)
	return err == nil && os.SameFile(now, before) && now.Size() == before.Size() && now.ModTime().Equal(before.ModTime()) &&
		now.Mode() == before.Mode()
}
