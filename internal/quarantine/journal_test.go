package quarantine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// noon is the clock of tests.
func noon() time.Time { return time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC) }

// open opens a journal that has nothing to tell, and lets others have it too: a test stands for one process after another.
func open(t *testing.T, dir string) *Journal {
	t.Helper()
	var log bytes.Buffer
	j := openShared(t, bootID(), dir, noon, &log)
	if log.Len() > 0 {
		t.Errorf("it told something: %s", &log)
	}
	return j
}

func openShared(t *testing.T, boot, dir string, now func() time.Time, log io.Writer) *Journal {
	t.Helper()
	j, err := openInBoot(boot, dir, now, slog.New(slog.NewTextHandler(log, nil)))
	ok(t, err)
	j.unlock()
	return j
}

// crashing is a process that ends while it has a message.
func crashing(t *testing.T, dir, id, queue, exit string) {
	t.Helper()
	ok(t, open(t, dir).Begin(id, queue))
	if exit == "" {
		return
	}
	if left, err := recordEnd(dir, os.Getpid(), exit); err != nil || left == nil || left.ID != id {
		t.Fatalf("got %v, %v; want the message %s", left, err, id)
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, j *Journal, id, queue string, count int64, exit string) {
	t.Helper()
	if n, how := j.Crashes(id, queue); n != count || how != exit {
		t.Errorf("message %s of %s: %d crashes, %q; want %d, %q", id, queue, n, how, count, exit)
	}
}

// files of a journal, without the one that stays.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	ok(t, err)
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		if entry.Name() != lockFile {
			names = append(names, entry.Name())
		}
	}
	return names
}

func TestJournal_CountsOneCrashOfTheMessageAtTheHandler(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "by", "open")
	crashing(t, dir, "a", "test.quarantine", "signal: killed")
	j := open(t, dir)
	expect(t, j, "a", "test.quarantine", 1, "signal: killed")
	expect(t, j, "b", "test.quarantine", 0, "")
	expect(t, j, "a", "other.quarantine", 0, "")
	expect(t, open(t, dir), "a", "test.quarantine", 1, "signal: killed") // it waits to be charged
	ok(t, j.Charged("a", "test.quarantine"))
	expect(t, j, "a", "test.quarantine", 0, "")
	expect(t, open(t, dir), "a", "test.quarantine", 0, "")
	if left := files(t, dir); len(left) > 0 {
		t.Errorf("files are left: %v", left)
	}
}

func TestJournal_CountsNoCrashOfAnAnsweredMessage(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	ok(t, j.Begin("a", "test"))
	ok(t, j.End())
	ok(t, j.End()) // twice is once
	if left, err := recordEnd(dir, os.Getpid(), "signal: killed"); err != nil || left != nil {
		t.Errorf("got %v, %v; want no message", left, err)
	}
	expect(t, open(t, dir), "a", "test", 0, "")
}

func TestJournal_AddsUpCrashesBeforeTheCharge(t *testing.T) {
	dir := t.TempDir()
	crashing(t, dir, "a", "test", "exit status 2")
	crashing(t, dir, "b", "test", "")
	crashing(t, dir, "a", "test", "signal: killed")
	crashing(t, dir, "a", "test", "")
	j := open(t, dir)
	expect(t, j, "b", "test", 1, "")
	if n, _ := j.Crashes("a", "test"); n != 3 {
		t.Errorf("%d crashes, want 3", n)
	}
	ok(t, j.Charged("a", "test"))
	expect(t, j, "a", "test", 0, "")
	expect(t, open(t, dir), "b", "test", 1, "")
}

func TestJournal_LastCrashSaysHowItEnded(t *testing.T) {
	dir := t.TempDir()
	for hour, exit := range []string{"exit status 2", "signal: killed", "signal: segmentation fault"} {
		j := openShared(t, bootID(), dir, func() time.Time { return noon().Add(time.Duration(hour) * time.Hour) }, io.Discard)
		ok(t, j.Begin("a", "test"))
		_, err := recordEnd(dir, os.Getpid(), exit)
		ok(t, err)
	}
	expect(t, open(t, dir), "a", "test", 3, "signal: segmentation fault")
}

func TestRecordEnd_RecordsAnEndOnce(t *testing.T) {
	dir := t.TempDir()
	crashing(t, dir, "a", "test", "signal: killed")
	// The next process ended before it opened the journal.
	if left, err := recordEnd(dir, os.Getpid(), "exit status 1"); err != nil || left != nil {
		t.Errorf("got %v, %v; want no message", left, err)
	}
	expect(t, open(t, dir), "a", "test", 1, "signal: killed")
}

func TestRecordEnd_LeavesTheMessageOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	crashing(t, dir, "a", "test", "")
	// The next process was told that the journal is in use.
	if left, err := recordEnd(dir, os.Getpid()+1, "exit status 1"); err != nil || left != nil {
		t.Errorf("got %v, %v; want no message", left, err)
	}
	expect(t, open(t, dir), "a", "test", 1, "")
}

func TestJournal_FindsAnIDThatIsNoText(t *testing.T) {
	dir, id := t.TempDir(), "a\xff\xfe\"b\n"
	ok(t, open(t, dir).Begin(id, "test"))
	j := open(t, dir)
	expect(t, j, id, "test", 1, "")
	ok(t, j.Charged(id, "test"))
	expect(t, open(t, dir), id, "test", 0, "")
}

func TestJournal_TellsOfATornFileAndDropsIt(t *testing.T) {
	for name, content := range map[string]string{
		"empty": "", "half": `{"id":"a","queue":"te`, "zeros": strings.Repeat("\x00", 100), "no message": "{}", "a list": "[1]",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			crashing(t, dir, "b", "test", "signal: killed")
			open(t, dir)
			for _, file := range []string{runningFile, crashPrefix + "X" + suffix} {
				ok(t, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600))
			}
			if left, err := recordEnd(dir, os.Getpid(), "signal: killed"); err == nil || left != nil {
				t.Errorf("got %v, %v; want an error", left, err)
			}
			var log bytes.Buffer
			j := openShared(t, bootID(), dir, noon, &log)
			if told := strings.Count(log.String(), "cannot be read"); told != 2 {
				t.Errorf("told %d times: %s", told, &log)
			}
			expect(t, j, "b", "test", 1, "signal: killed")
			open(t, dir) // tells nothing
		})
	}
}

func TestJournal_ForgetsCrashesOfMessagesThatStayAway(t *testing.T) {
	dir := t.TempDir()
	write := func(n int, began time.Time) {
		data, err := json.Marshal(run{ID: strconv.Itoa(n), Queue: "test", Began: began})
		ok(t, err)
		ok(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(crashPrefix, n, suffix)), data, 0o600))
	}
	write(0, noon().Add(-maxAge-time.Second))
	for n := 1; n <= maxCrashes+10; n++ {
		write(n, noon().Add(-maxAge+time.Duration(n)*time.Minute))
	}
	j := openShared(t, bootID(), dir, noon, io.Discard)
	for n := range 11 {
		expect(t, j, strconv.Itoa(n), "test", 0, "")
	}
	for n := 11; n <= maxCrashes+10; n++ {
		expect(t, j, strconv.Itoa(n), "test", 1, "")
	}
	if left := len(files(t, dir)); left != maxCrashes {
		t.Errorf("%d files are left, want %d", left, maxCrashes)
	}
}

func TestJournal_ChargesNoMessageOnAFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Log("this system has no device that is always full: only the message that cannot be noted is tested")
	}
	dir := t.TempDir()
	j := open(t, dir)
	ok(t, j.Begin("a", "test")) // its end could not be noted, say
	ok(t, os.Symlink("/dev/full", filepath.Join(dir, runningFile+draftSuffix)))
	if err := j.Begin("b", "test"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v, want that there is no space", err)
	}
	if left, err := recordEnd(dir, os.Getpid(), "signal: killed"); err != nil || left != nil {
		t.Errorf("got %v, %v: a is charged for b", left, err)
	}
	expect(t, open(t, dir), "a", "test", 0, "")
	ok(t, j.Begin("c", "test")) // there is space again
	expect(t, open(t, dir), "c", "test", 1, "")
}

func TestJournal_RefusesAFolderThatCannotBeWritten(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	ok(t, os.WriteFile(file, nil, 0o600))
	if _, err := Open(file, noon, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("a file was taken for a folder")
	}
	dir := t.TempDir()
	j := open(t, dir)
	ok(t, os.RemoveAll(dir))
	if err := j.Begin("a", "test"); err == nil {
		t.Error("a message was noted in a folder that is gone")
	}
	ok(t, j.End())
}

func TestJournal_IsPrivateAndHoldsNoMoreThanItNeeds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	crashing(t, dir, "a", "test", "signal: killed")
	ok(t, open(t, dir).Begin("b", "test"))
	_, err := recordEnd(dir, os.Getpid(), "signal: killed")
	ok(t, err)
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder: %v, %v", info.Mode(), err)
	}
	for _, name := range append(files(t, dir), lockFile) {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		ok(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v", name, info.Mode())
		}
		if name == lockFile {
			if info.Size() > 0 {
				t.Errorf("%s holds something", name)
			}
			continue
		}
		data, err := os.ReadFile(path)
		ok(t, err)
		var fields map[string]any
		ok(t, json.Unmarshal(data, &fields))
		if got := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, []string{"began", "boot", "exit", "id", "process", "queue"}) {
			t.Errorf("%s has %v", name, got)
		}
	}
}

func TestJournal_ChargesNoRunOfAnotherBoot(t *testing.T) {
	for name, test := range map[string]struct {
		before, after string
		crashes       int64
	}{
		"the same boot":                      {"one", "one", 1},
		"another boot":                       {"one", "two", 0},
		"a system that names no boots":       {"", "", 1},
		"a note of a system without, on one": {"", "two", 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ok(t, openShared(t, test.before, dir, noon, io.Discard).Begin("a", "test"))
			var log bytes.Buffer
			expect(t, openShared(t, test.after, dir, noon, &log), "a", "test", test.crashes, "")
			if told := strings.Contains(log.String(), "queue=test message=a"); told != (test.crashes == 0) {
				t.Errorf("told: %v: %s", told, &log)
			}
			if left := len(files(t, dir)); left != int(test.crashes) {
				t.Errorf("%d files are left, want %d", left, test.crashes)
			}
		})
	}
}

func TestJournal_KeepsACrashAfterAnotherBoot(t *testing.T) {
	dir := t.TempDir()
	ok(t, openShared(t, "one", dir, noon, io.Discard).Begin("a", "test"))
	if left, err := recordEnd(dir, os.Getpid(), "signal: killed"); err != nil || left == nil {
		t.Fatalf("got %v, %v; want a message", left, err)
	}
	openShared(t, "one", dir, noon, io.Discard) // finds it, and ends before it is charged
	expect(t, openShared(t, "two", dir, noon, io.Discard), "a", "test", 1, "signal: killed")
}

func TestBootID_IsKnownOnLinux(t *testing.T) {
	if id := bootID(); (id != "") != (runtime.GOOS == "linux") {
		t.Errorf("the boot is %q", id)
	}
}

func TestJournal_IsWholeAfterAKillAtAnyPoint(t *testing.T) {
	dir := t.TempDir()
	crashed := 0
	for range 40 {
		found, out := newLines(t)
		writer := as("writer", dir, out)(t.Context())
		ok(t, writer.Start())
		found.next(t)
		time.Sleep(time.Duration(rand.Int64N(int64(5 * time.Millisecond)))) // any point
		ok(t, writer.Process.Kill())
		_ = writer.Wait()
		before := len(files(t, dir))
		j := open(t, dir)
		if len(j.crashes) > crashed+1 {
			t.Fatalf("one process is %d crashes", len(j.crashes)-crashed)
		}
		if after := len(files(t, dir)); after > before {
			t.Fatalf("%d files have become %d", before, after)
		}
		crashed = len(j.crashes)
	}
	t.Logf("40 kills: %d with a message at the handler", crashed)
	if crashed == 0 {
		t.Error("no kill hit a message at the handler: the test shows nothing")
	}
}
