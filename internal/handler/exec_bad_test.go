package handler_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"redrive.dev/redrive/internal/handler"
	"redrive.dev/redrive/internal/retry"
)

// becomes waits until a handler is ready or not, and returns why not.
func becomes(t *testing.T, h handler.Handler, ready bool) string {
	t.Helper()
	for deadline := time.After(30 * time.Second); ; {
		why, changed := h.Ready()
		if (why == nil) == ready {
			if why != nil {
				return why.Error()
			}
			return ""
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("after half a minute: %v", why)
		}
	}
}

// put puts a program in place at once.
func put(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func isNotStarted(t *testing.T, got *retry.Failure, text string) {
	t.Helper()
	if got == nil || got.Source != retry.SourceConnection || got.Class != handler.ClassNotStarted || !strings.Contains(got.Message, text) {
		t.Errorf("got %+v", got)
	}
}

func TestExec_IsNotReadyUntilItsCommandIsThere(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "handle")
	h := execute(t, path)
	if why := becomes(t, h, false); why != path+" does not exist" {
		t.Errorf("got %q", why)
	}
	isNotStarted(t, h.Handle(t.Context(), handler.Request{}), "does not exist") // one that was under way
	put(t, path, "#!/bin/sh\nexit 3\n", 0o644)
	for _, changed := h.Ready(); ; _, changed = h.Ready() {
		if why := becomes(t, h, false); strings.Contains(why, "may not be executed by user") {
			break
		}
		<-changed
	}
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	becomes(t, h, true)
	if got := h.Handle(t.Context(), handler.Request{}); got == nil || got.Status != 3 {
		t.Errorf("got %+v", got)
	}
}

func TestExec_IsNotReadyWithACommandThatCannotStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	put(t, filepath.Join(dir, "text"), "echo hello\n", 0o755)
	put(t, filepath.Join(dir, "php"), "#!/usr/bin/env php99\n", 0o755)
	for command, want := range map[string]string{
		"no-such-handler":           `there is no program "no-such-handler" in PATH`,
		dir:                         "is a directory",
		filepath.Join(dir, "text"):  "is a text without a first line that names its interpreter",
		filepath.Join(dir, "php"):   "needs the interpreter php99",
		"./no/such/handler":         "./no/such/handler does not exist",
		"redrive\x00.dev":           "there is no program",
		"/bin/sh\x00":               "cannot be reached: invalid argument",
		filepath.Join(dir, "text/"): "is a text",
	} {
		if why := becomes(t, execute(t, command), false); !strings.Contains(why, want) {
			t.Errorf("%q: %q", command, why)
		}
	}
}

// TestExec_FindsARelativeCommandInTheWorkingDirectory is not parallel for the sake of that.
func TestExec_FindsARelativeCommandInTheWorkingDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	put(t, "handle", "#!/bin/sh\nexit 3\n", 0o755)
	if got := execute(t, "./handle").Handle(t.Context(), handler.Request{}); got == nil || got.Status != 3 {
		t.Errorf("got %+v", got)
	}
	if why := becomes(t, execute(t, "handle"), false); !strings.Contains(why, "for the one in the working directory write ./handle") {
		t.Errorf("got %q", why)
	}
}

func TestExec_IsNotReadyWhileItsCommandIsGone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "handle")
	put(t, path, "#!/bin/sh\n", 0o755)
	h := execute(t, path)
	becomes(t, h, true)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() { isNotStarted(t, h.Handle(t.Context(), handler.Request{}), "does not exist") })
	}
	calls.Wait()
	becomes(t, h, false)
	put(t, path, "#!/bin/sh\n", 0o755)
	becomes(t, h, true)
	if got := h.Handle(t.Context(), handler.Request{}); got != nil {
		t.Errorf("got %+v", got)
	}
}

func TestExec_TriesAFileThatIsNoProgramOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "handle")
	put(t, path, "\x00\x01", 0o755)
	h := execute(t, path)
	becomes(t, h, true) // only the system knows
	isNotStarted(t, h.Handle(t.Context(), handler.Request{}), "is not a program for this kind of machine")
	if why := becomes(t, h, false); !strings.Contains(why, "is not a program") {
		t.Errorf("got %q", why)
	}
	put(t, path, "#!/bin/sh\n", 0o755)
	becomes(t, h, true)
	if got := h.Handle(t.Context(), handler.Request{}); got != nil {
		t.Errorf("got %+v", got)
	}
}

// TestExec_SaysThatAnEnvironmentIsTooLong is not parallel for the sake of the environment.
func TestExec_SaysThatAnEnvironmentIsTooLong(t *testing.T) {
	t.Setenv("REDRIVE_TEST_LONG", strings.Repeat("x", 1<<20))
	h := execute(t, "true")
	isNotStarted(t, h.Handle(t.Context(), handler.Request{}), "its arguments and its environment together are too long")
	becomes(t, h, false)
	becomes(t, h, true) // for it may have been the message
}

func TestExec_AwaitsNothingThatACommandLeavesBehind(t *testing.T) {
	t.Parallel()
	for what, text := range map[string]string{
		"in its group":  `sleep 1000 & echo $! >"$0"`,
		"left it":       `setsid sh -c 'echo $$ >"$0"; exec sleep 1000' "$0" & until [ -s "$0" ]; do sleep 0.01; done`,
		"and a failure": `sleep 1000 & echo $! >"$0"; echo '{"outcome":"failure","message":"m"}'`,
	} {
		file := filepath.Join(t.TempDir(), "pid")
		got := execute(t, "sh", "-c", text, file).Handle(t.Context(), handler.Request{Body: make([]byte, 1<<20)})
		if (got != nil) != (what == "and a failure") {
			t.Errorf("%s: got %+v", what, got)
		}
		number, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(string(number)))
		if err != nil {
			t.Fatal(err)
		}
		if what == "left it" {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Errorf("what left the group has ended: %v", err)
			}
		}
		for deadline := time.Now().Add(30 * time.Second); isRunning(pid); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: it lives on", what)
			}
		}
	}
}

func isRunning(pid int) bool {
	stat, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat") // which not every system has
	return syscall.Kill(pid, 0) == nil && !strings.Contains(string(stat), ") Z ")
}

func TestExec_JudgesByTheExitCodeWhereOutputsAreClosed(t *testing.T) {
	t.Parallel()
	if got := shell(t, "exec >&- 2>&-; cat >/dev/null; sleep 0.05"); got != nil {
		t.Errorf("got %+v", got)
	}
	if got := shell(t, `exec >&-; sleep 0.05; echo '{"outcome":"ack"}'; exit 65`); got == nil || got.Status != 65 {
		t.Errorf("got %+v", got)
	}
}

// TestExec_TakesNoMemoryForAGigabyteOfOutput is not parallel, for it measures what the whole process takes.
func TestExec_TakesNoMemoryForAGigabyteOfOutput(t *testing.T) {
	h := execute(t, "sh", "-c", `head -c 1073741824 /dev/zero; head -c 1073741824 /dev/zero >&2; echo the end >&2; echo; echo '{"outcome":"failure"}'`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := h.Handle(t.Context(), handler.Request{})
	runtime.ReadMemStats(&after)
	if got == nil || got.Message != "the end" {
		t.Errorf("got %+v", got)
	}
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 1<<20 {
		t.Errorf("%d bytes were taken altogether", taken)
	}
}

func TestExec_EndsTheInputOfItsCommand(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "x", strings.Repeat("x", 100_000)} {
		got := execute(t, "sh", "-c", "cat >&2; exit 1").Handle(t.Context(), handler.Request{Body: []byte(body)})
		if got == nil || !strings.HasPrefix(got.Message, body[:min(len(body), 500)]) {
			t.Errorf("got %+v", got)
		}
	}
}
