package handler_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// writers are processes that have a message each, and make a file when they have written a part of their answer.
type writers struct {
	t     *testing.T
	p     *handler.Process
	dir   string
	calls sync.WaitGroup
	// failures are what became of the messages.
	failures []*retry.Failure
}

func newWriters(t *testing.T, most int32, room *handler.LineRoom) *writers {
	t.Helper()
	p, err := handler.NewProcess(v1alpha1.ProcessHandler{Command: scripted("say " + hello), Processes: &most},
		handler.Options{Concurrency: int(most), Lines: room})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return &writers{t: t, p: p, dir: t.TempDir(), failures: make([]*retry.Failure, most)}
}

func (w *writers) file(name string) string { return filepath.Join(w.dir, name) }

// give gives a process a message.
func (w *writers) give(n int, commands ...string) {
	w.calls.Go(func() { w.failures[n] = give(w.t, w.p, patience, strings.Join(commands, "\n")) })
}

// written is how many have written what they were to write.
func (w *writers) written() int {
	files, err := filepath.Glob(w.file("written-*"))
	if err != nil {
		w.t.Fatal(err)
	}
	return len(files)
}

// A worker of 256 MiB was killed when 80 processes had written half of a result of a MiB.
func TestLineRoom_BoundsLongLines(t *testing.T) {
	t.Parallel()
	const all, half, room = 12, 500_000, 4 << 20
	lines := handler.NewLineRoom(room).Patience(10 * patience)
	w := newWriters(t, all, lines)
	for n := range all {
		w.give(n, fmt.Sprint("begin ", half), "touch "+w.file(fmt.Sprint("written-", n)), "await "+w.file("go"), fmt.Sprint("end ", half))
	}
	// The second one may have to wait for the first, where all others have begun meanwhile.
	eventually(t, "one has written the half of its line", func() bool { return w.written() >= 1 })
	time.Sleep(500 * time.Millisecond) // in which all others would, too
	if got := w.written(); got > room/half {
		t.Errorf("%d processes have written %d bytes each, and %d bytes is the room for all of it", got, half, room)
	}
	touch(w.file("go"))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.calls.Wait()
	}()
	for over := false; !over; {
		select {
		case <-ended:
			over = true
		case <-time.After(time.Millisecond):
		}
		if taken := lines.Taken(); taken > room+4<<20 {
			t.Fatalf("lines take %d bytes, and their room is %d and one line more", taken, room)
		}
	}
	for n, failure := range w.failures {
		if failure != nil {
			t.Errorf("message %d: %+v", n, failure)
		}
	}
	if taken := lines.Taken(); taken != 0 {
		t.Errorf("lines that were read take %d bytes", taken)
	}
}

func TestLineRoom_IsTakenFromALineThatDoesNotGoOn(t *testing.T) {
	t.Parallel()
	w := newWriters(t, 2, handler.NewLineRoom(1).Patience(500*time.Millisecond))
	w.give(0, "begin 200000", "touch "+w.file("written-0"), "hang")
	eventually(t, "one has written a part of its line", func() bool { return w.written() == 1 })
	began := time.Now()
	w.give(1, "begin 200000", "end 200000")
	w.calls.Wait()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it took %s until the other's answer was read", took)
	}
	if failure := w.failures[0]; failure == nil || failure.Class != handler.ClassMalformedResponse || !strings.Contains(failure.Message, "did not go on with a line") {
		t.Errorf("the one that did not go on: %+v", failure)
	}
	if w.failures[1] != nil {
		t.Errorf("the other one: %+v", w.failures[1])
	}
}

// A program that was slow, and not at a halt, was killed: only more memory for its line was taken for a sign of life.
func TestLineRoom_StaysWithALineThatGoesOnSlowly(t *testing.T) {
	t.Parallel()
	w := newWriters(t, 2, handler.NewLineRoom(1).Patience(2*time.Second))
	commands := []string{"begin 200000", "touch " + w.file("written-0")}
	for range 20 { // 4 s, within the room that it has from its first bytes on
		commands = append(commands, "sleep 200", "more 1000")
	}
	w.give(0, append(commands, "end 1")...)
	eventually(t, "one has written a part of its line", func() bool { return w.written() == 1 })
	w.give(1, "begin 200000", "end 1")
	w.calls.Wait()
	for n, failure := range w.failures {
		if failure != nil {
			t.Errorf("message %d: %+v", n, failure)
		}
	}
}

func TestLineRoom_ServesALineAfterTheEndOfItsProcess(t *testing.T) {
	t.Parallel()
	w := newWriters(t, 2, handler.NewLineRoom(1))
	w.give(0, "begin 200000", "touch "+w.file("written-0"), "await "+w.file("go"), "end 1")
	eventually(t, "one has written a part of its line", func() bool { return w.written() == 1 })
	w.give(1, "begin 100000", "end 1", "touch "+w.file("written-1"), "exit 0")
	eventually(t, "the other one has written all of its own", func() bool { return w.written() == 2 })
	time.Sleep(time.Second) // longer than the last words of a process are waited for
	touch(w.file("go"))
	w.calls.Wait()
	for n, failure := range w.failures {
		if failure != nil {
			t.Errorf("message %d: %+v", n, failure)
		}
	}
}

func TestLineRoom_TimesOutAnAnswerThatFindsNone(t *testing.T) {
	t.Parallel()
	w := newWriters(t, 2, handler.NewLineRoom(1))
	w.give(0, "begin 200000", "touch "+w.file("written-0"), "await "+w.file("go"), "end 1")
	eventually(t, "one has written a part of its line", func() bool { return w.written() == 1 })
	failure := give(t, w.p, time.Second, "begin 200000", "end 1")
	if failure == nil || failure.Source != retry.SourceTimeout || !strings.Contains(failure.Message, "no memory") {
		t.Errorf("got %+v", failure)
	}
	touch(w.file("go"))
	w.calls.Wait()
	if w.failures[0] != nil {
		t.Errorf("the one that had the room: %+v", w.failures[0])
	}
}
