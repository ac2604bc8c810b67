// Package quarantine finds out which message brings down its worker. A Journal says which message was being handled when a
// process ended, and a Supervisor runs that process as its child and starts it again. Both belong to any program that runs
// a worker; neither knows a broker.
package quarantine

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// runningFile is there while a message is handled. It is renamed to a crash's when the next process finds it.
	runningFile = "running.json"
	crashPrefix = "crash-"
	suffix      = ".json"
	// lockFile is locked by the process that uses the journal. It stays: who removed it could remove another's.
	lockFile = "lock"
	// draftSuffix ends the name of a file that is being written.
	draftSuffix = ".new"

	// maxCrashes and maxAge bound what is kept of messages that never come back to be charged.
	maxCrashes = 256
	maxAge     = 3 * 24 * time.Hour
)

// Journal tells which messages were being handled when earlier processes ended. It is a folder: one file says which message
// is handled now, and one file for each crash which message it is to be charged to.
//
// Every change is one rename or one removal, so that a process may be killed at any point, and giving a message back needs no
// space on a full disk. Nothing is synced: what is written survives the process, which is all that is asked; what the end of
// the whole system leaves of a run is told and dropped. It is safe for concurrent use, by one process at a time.
type Journal struct {
	dir  string
	boot string
	now  func() time.Time
	// unlock lets another process have the journal. Nothing but the end of this one does, once it is open.
	unlock func()

	mu sync.Mutex
	// crashes that are not charged yet, oldest first.
	crashes []crash
}

// run is one message at the handler.
type run struct {
	ID    string    `json:"id"`
	Queue string    `json:"queue"`
	Began time.Time `json:"began"`
	// Process that had it.
	Process int `json:"process"`
	// Boot of the system in which it began; empty where the system does not name them.
	Boot string `json:"boot,omitempty"`
	// Exit says how the process ended; empty where that is not known.
	Exit string `json:"exit,omitempty"`
}

type crash struct {
	run

	path string
}

func (c crash) of(id, queue string) bool { return c.ID == readable(id) && c.Queue == queue }

// Open reads the journal in a folder, which is made if it is not there. The journal is this process's until it ends: for
// another, Open is an error that says so. A message that is found at the handler counts as one crash of that message, as no
// process ends so on its own, but not where the system has been started anew since. What cannot be read is logged and dropped.
func Open(dir string, now func() time.Time, log *slog.Logger) (*Journal, error) {
	return openInBoot(bootID(), dir, now, log)
}

func openInBoot(boot, dir string, now func() time.Time, log *slog.Logger) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, wrap(err)
	}
	unlock, err := lock(dir)
	if err != nil {
		return nil, err
	}
	j := &Journal{dir: dir, boot: boot, now: now, unlock: unlock}
	if err := errors.Join(j.conclude(log), j.read(log)); err != nil {
		unlock()
		return nil, err
	}
	j.prune(log)
	return j, nil
}

// bootID names the time from a start of the system to the next; empty where it does not: only Linux does.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(id))
}

// conclude makes a crash of the run that the last process left. Of another boot it is no crash: the whole system has ended.
func (j *Journal) conclude(log *slog.Logger) error {
	left, err := readRun(filepath.Join(j.dir, runningFile))
	if err == nil && left.Boot != j.boot {
		log.Info("the node has restarted: the message that was at the handler then is not charged with a crash",
			"queue", left.Queue, "message", left.ID, "at", left.Began)
		return wrap(removeRun(j.dir))
	}
	// One that cannot be read is told with the crashes.
	err = os.Rename(filepath.Join(j.dir, runningFile), filepath.Join(j.dir, crashPrefix+rand.Text()+suffix))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return wrap(err)
}

// read takes in all crashes.
func (j *Journal) read(log *slog.Logger) error {
	entries, err := os.ReadDir(j.dir)
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), crashPrefix) || !strings.HasSuffix(entry.Name(), suffix) {
			continue
		}
		path := filepath.Join(j.dir, entry.Name())
		found, err := readRun(path)
		if err != nil {
			log.Warn("an entry of the journal cannot be read: a crash is charged to no message", "error", err)
			_ = os.Remove(path) // else it is told again
			continue
		}
		j.crashes = append(j.crashes, crash{run: found, path: path})
	}
	slices.SortFunc(j.crashes, func(a, b crash) int { return a.Began.Compare(b.Began) })
	return nil
}

// prune forgets crashes of messages that did not come back in time.
func (j *Journal) prune(log *slog.Logger) {
	oldest := j.now().Add(-maxAge)
	excess := len(j.crashes) - maxCrashes
	kept := j.crashes[:0]
	for i, c := range j.crashes {
		if i >= excess && c.Began.After(oldest) {
			kept = append(kept, c)
			continue
		}
		log.Info("a crash is forgotten: its message did not come back", "queue", c.Queue, "message", c.ID, "at", c.Began)
		_ = os.Remove(c.path) // else it is forgotten the next time too
	}
	j.crashes = kept
}

// Begin notes that the handler gets a message. Where that fails nobody will be charged for a crash.
func (j *Journal) Begin(id, queue string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := writeRun(j.dir, run{ID: readable(id), Queue: queue, Began: j.now(), Process: os.Getpid(), Boot: j.boot})
	if err != nil {
		// The note of an earlier message must not stand for this one.
		err = errors.Join(err, removeRun(j.dir))
	}
	return wrap(err)
}

// End notes that the handler has answered.
func (j *Journal) End() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return wrap(removeRun(j.dir))
}

func removeRun(dir string) error {
	if err := os.Remove(filepath.Join(dir, runningFile)); !errors.Is(err, os.ErrNotExist) {
		return err //nolint:wrapcheck // the caller says of what
	}
	return nil
}

// Crashes is the number of processes that a message has brought down and that are not written on it yet, and how the last
// of them ended, such as "signal: killed"; empty where that is not known.
func (j *Journal) Crashes(id, queue string) (count int64, exit string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, c := range j.crashes {
		if c.of(id, queue) {
			count++
			exit = c.Exit
		}
	}
	return count, exit
}

// Charged forgets the crashes of a message that carries them now, or is gone.
func (j *Journal) Charged(id, queue string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var problems []error
	j.crashes = slices.DeleteFunc(j.crashes, func(c crash) bool {
		if !c.of(id, queue) {
			return false
		}
		// Even where it cannot be removed it must not be charged twice.
		problems = append(problems, os.Remove(c.path))
		return true
	})
	return wrap(errors.Join(problems...))
}

// recordEnd notes how a process ended on the message that it left at the handler, and returns the message; nil where there
// is none. It is an error where another process has the journal: what is noted there is that one's.
func recordEnd(dir string, process int, exit string) (*run, error) {
	unlock, err := lock(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // no process has opened the journal yet
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	left, err := readRun(filepath.Join(dir, runningFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, nil //nolint:nilnil // there is no message
	case err != nil:
		return nil, err
	case left.Process != process || left.Exit != "":
		return nil, nil //nolint:nilnil // it is of a process before: the one that ended has not even opened the journal
	}
	left.Exit = exit
	return &left, writeRun(dir, left)
}

// forgetRun drops the message that a process left at the handler, which is not to blame for its end. It is an error where
// another process has the journal.
func forgetRun(dir string) error {
	unlock, err := lock(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	return wrap(removeRun(dir))
}

func readRun(path string) (run, error) {
	data, err := os.ReadFile(path) //nolint:gosec // the folder is the caller's, the names are ours
	if err != nil {
		return run{}, wrap(err)
	}
	var found run
	if err := json.Unmarshal(data, &found); err != nil {
		return run{}, fmt.Errorf("journal: %s: %w", path, err)
	}
	if found.ID == "" || found.Queue == "" {
		return run{}, fmt.Errorf("journal: %s names no message", path)
	}
	return found, nil
}

// writeRun puts a file in its place as a whole.
func writeRun(dir string, r run) error {
	data, err := json.Marshal(r)
	if err != nil {
		return wrap(err)
	}
	path := filepath.Join(dir, runningFile)
	draft := path + draftSuffix
	if err := os.WriteFile(draft, data, 0o600); err != nil {
		_ = os.Remove(draft) // it may hold the last space there is
		return wrap(err)
	}
	return wrap(os.Rename(draft, path))
}

// readable is an id as JSON holds it: without bytes that are no text.
func readable(id string) string { return strings.ToValidUTF8(id, "\uFFFD") }

func wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("journal: %w", err)
}
