//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package quarantine

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"redrive.dev/redrive/internal/testtransport"
)

func TestJournal_BelongsToOneProcess(t *testing.T) {
	dir := t.TempDir()
	found, out := newLines(t)
	owner := as("obedient", dir, out)(t.Context())
	input, err := owner.StdinPipe()
	ok(t, err)
	ok(t, owner.Start())
	found.next(t)
	before := running(t, dir)

	_, err = Open(dir, noon, slog.New(slog.DiscardHandler))
	refused := func(err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), dir+" is in use by another process") || !strings.Contains(err.Error(), "--journal") {
			t.Errorf("error %v, want that the journal is in use, and the way out", err)
		}
	}
	refused(err)
	left, err := recordEnd(dir, owner.Process.Pid, "exit status 1")
	refused(err)
	if left != nil {
		t.Errorf("another's message %v is taken for one that was left", left)
	}
	refused(forgetRun(dir))
	if after := running(t, dir); !bytes.Equal(before, after) {
		t.Errorf("%s has become %s", before, after)
	}

	ok(t, owner.Process.Kill())
	_ = owner.Wait()
	_ = input.Close()
	expect(t, open(t, dir), "m", "test", 1, "")
}

// running is what the journal says of the message at the handler.
func running(t *testing.T, dir string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, runningFile))
	ok(t, err)
	return data
}

func TestJournal_IsNotKeptByAProgramThatOutlivesItsParent(t *testing.T) {
	dir := t.TempDir()
	found, out := newLines(t)
	reader, input := must2(os.Pipe())
	forebear := as("forebear", dir, out)(t.Context())
	forebear.Stdin = reader
	ok(t, forebear.Start())
	ok(t, reader.Close())
	for _, want := range []string{"began", "survivor"} {
		if got := found.next(t); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	_ = forebear.Wait()
	expect(t, open(t, dir), "m", "test", 1, "")
	ok(t, input.Close())
	if got := found.next(t); got != "end" {
		t.Errorf("got %q: the program did not live until now", got)
	}
}

func TestSupervisor_LeavesTheMessageOfAnotherAlone(t *testing.T) {
	dir := t.TempDir()
	first := supervise(t, "obedient", dir, nil)
	first.next(t)
	before := running(t, dir)
	second := supervise(t, "obedient", dir, nil)
	testtransport.Eventually(t, "the second child to end", func() bool {
		return strings.Contains(second.log.String(), "is started again")
	})
	second.end(t)
	if log := second.log.String(); !strings.Contains(log, "in use by another process") || strings.Contains(log, "was at the handler") {
		t.Errorf("the log does not say why: %s", log)
	}
	if after := running(t, dir); !bytes.Equal(before, after) {
		t.Errorf("%s has become %s", before, after)
	}
	first.end(t)
	expect(t, open(t, dir), "m", "test", 0, "")
}
