//go:build unix

package subprocess_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"redrive.dev/redrive/internal/subprocess"
)

// outcome of a run.
type outcome struct {
	exit             subprocess.Exit
	output, problems string
}

// run runs a script in a shell.
func run(ctx context.Context, t *testing.T, input, script string, args ...string) outcome {
	t.Helper()
	c := shell(script, args...)
	path, err := subprocess.Find(c)
	ok(t, err)
	var output, problems bytes.Buffer
	exit, err := subprocess.Run(ctx, path, c, []byte(input), &output, &problems)
	ok(t, err)
	return outcome{exit, output.String(), problems.String()}
}

func TestRun_TakesInputAndGivesOutput(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 4096, 4097, 65536, 65537, 3 << 20} {
		input := strings.Repeat("x", size)
		got := run(t.Context(), t, input, "tee /dev/stderr; exit 5")
		if got.exit != (subprocess.Exit{Code: 5}) || got.output != input || got.problems != input {
			t.Errorf("of %d bytes: %+v, %d and %d bytes", size, got.exit, len(got.output), len(got.problems))
		}
	}
}

func TestRun_AllowsAProgramNotToReadItsInput(t *testing.T) {
	t.Parallel()
	input := strings.Repeat("x", 10<<20)
	for _, script := range []string{"exit 0", "exec <&-; exit 0", "head -c 5000 >/dev/null", "exec <&- >&- 2>&-; exit 0"} {
		if got := run(t.Context(), t, input, script); got != (outcome{}) {
			t.Errorf("%s: %+v", script, got)
		}
	}
}

func TestRun_WaitsForAProgramThatClosesItsOutputs(t *testing.T) {
	t.Parallel()
	got := run(t.Context(), t, "x", "echo out; echo err >&2; exec >&- 2>&-; cat >/dev/null; sleep 0.05; exit 7")
	if got != (outcome{subprocess.Exit{Code: 7}, "out\n", "err\n"}) {
		t.Errorf("got %+v", got)
	}
}

func TestRun_KillsTheGroupWithTheContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := shell(`trap "" TERM; sh -c 'echo $$; sleep 1000'; exit 0`)
	path, err := subprocess.Find(c)
	ok(t, err)
	output := firstLine{got: make(chan string, 1)}
	go func() { // it says that it is at work
		output.got <- <-output.got
		cancel()
	}()
	exit, err := subprocess.Run(ctx, path, c, nil, &output, &bytes.Buffer{})
	ok(t, err)
	if exit.Signal != syscall.SIGKILL {
		t.Errorf("got %+v", exit)
	}
	pid := <-output.got
	eventually(t, "the grandchild ends", func() bool { return !isAlive(t, pid) })
}

// firstLine tells the first line that is written to it.
type firstLine struct {
	once sync.Once
	got  chan string
}

func (l *firstLine) Write(p []byte) (int, error) {
	l.once.Do(func() { l.got <- strings.TrimSpace(string(p)) })
	return len(p), nil
}

func TestRun_KillsWhatStaysInTheGroup(t *testing.T) {
	t.Parallel()
	got := run(t.Context(), t, "", "sleep 1000 & echo $!")
	if got.exit != (subprocess.Exit{}) {
		t.Errorf("got %+v", got)
	}
	pid := strings.TrimSpace(got.output)
	eventually(t, "what was left ends", func() bool { return !isAlive(t, pid) })
}

func TestRun_DoesNotWaitForWhatHasLeftTheGroup(t *testing.T) {
	t.Parallel()
	for what, command := range map[string]string{"holds the pipes": "sleep 1000", "writes without end": "yes"} {
		pidFile := filepath.Join(t.TempDir(), "pid")
		// It is there when it has left the group.
		const script = `setsid sh -c 'echo $$ >"$0.new"; mv "$0.new" "$0"; exec $1' "$1" "$2" & until [ -e "$1" ]; do sleep 0.01; done`
		got := run(t.Context(), t, "", script, pidFile, command)
		text, err := os.ReadFile(pidFile)
		ok(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || got.exit != (subprocess.Exit{}) {
			t.Fatalf("one that %s: %+v", what, got.exit)
		}
		if command != "yes" { // that one cannot write any more
			if !isAlive(t, strconv.Itoa(pid)) {
				t.Errorf("one that %s was killed", what)
			}
			ok(t, syscall.Kill(pid, syscall.SIGKILL))
		}
		eventually(t, "it ends", func() bool { return !isAlive(t, strconv.Itoa(pid)) })
	}
}

func TestRun_ManyAtATimeGetTheirOwn(t *testing.T) {
	t.Parallel()
	var runs sync.WaitGroup
	for i := range 100 {
		runs.Go(func() {
			want := strconv.Itoa(i)
			got := run(t.Context(), t, want, "read word; echo out $word; echo err $word >&2; exit "+want)
			if got != (outcome{subprocess.Exit{Code: i}, "out " + want + "\n", "err " + want + "\n"}) {
				t.Errorf("%d: got %+v", i, got)
			}
		})
	}
	runs.Wait()
}

func TestRun_SaysWhyItCannotStart(t *testing.T) {
	t.Parallel()
	path := script(t, t.TempDir(), "it", "\x00")
	_, err := subprocess.Run(t.Context(), path, subprocess.Command{Args: []string{path}}, nil, &bytes.Buffer{}, &bytes.Buffer{})
	if err == nil || !errors.Is(err, syscall.ENOEXEC) {
		t.Errorf("got %v", err)
	}
}

func TestRun_DoesNotKillAProgramThatEndsInTime(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	got := run(ctx, t, "", "exit 9")
	cancel()
	if got.exit.Code != 9 {
		t.Errorf("got %+v", got)
	}
}
