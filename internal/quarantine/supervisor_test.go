package quarantine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// supervised is a supervisor at work.
type supervised struct {
	lines

	stop context.CancelFunc
	code chan int
	log  *synced
}

func supervise(t *testing.T, role, dir string, input func(context.Context, io.Writer)) *supervised {
	t.Helper()
	found, out := newLines(t)
	log := &synced{}
	ctx, stop := context.WithCancel(t.Context())
	s := &supervised{lines: found, stop: stop, code: make(chan int, 1), log: log}
	supervisor := Supervisor{Command: as(role, dir, out), Journal: dir, Input: input, Log: slog.New(slog.NewTextHandler(log, nil))}
	go func() { s.code <- supervisor.Run(ctx) }()
	return s
}

// end stops the supervisor and returns its exit code.
func (s *supervised) end(t *testing.T) int {
	t.Helper()
	s.stop()
	select {
	case code := <-s.code:
		return code
	case <-time.After(30 * time.Second):
		t.Fatal("the supervisor does not end")
		return 0
	}
}

type synced struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *synced) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *synced) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestSupervisor_StartsAtOnceAfterACrashWithAMessage(t *testing.T) {
	for role, exit := range map[string]string{"victim": "signal: killed", "quitter": "exit status 7"} {
		t.Run(role, func(t *testing.T) {
			dir := t.TempDir()
			s := supervise(t, role, dir, nil)
			// With pauses, twelve starts would take minutes.
			for range 12 {
				s.next(t)
			}
			s.end(t)
			count, last := open(t, dir).Crashes("m", "test")
			if count < 11 || last != exit {
				t.Errorf("%d crashes, the last with %q; want 11 or more with %q", count, last, exit)
			}
			if log := s.log.String(); !strings.Contains(log, "queue=test message=m") {
				t.Errorf("the log does not name the message: %s", log)
			}
		})
	}
}

func TestSupervisor_CountsNoCrashOfAChildThatIsToldToStop(t *testing.T) {
	dir := t.TempDir()
	s := supervise(t, "obedient", dir, nil)
	s.next(t)
	if code := s.end(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	expect(t, open(t, dir), "m", "test", 0, "")
}

func TestSupervisor_EndsWithTheChildsExitCode(t *testing.T) {
	dir := t.TempDir()
	s := supervise(t, "sulking", dir, nil)
	s.next(t)
	if code := s.end(t); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	expect(t, open(t, dir), "m", "test", 1, "exit status 3")
}

func TestSupervisor_FeedsEachChild(t *testing.T) {
	starts := 0
	s := supervise(t, "echo", t.TempDir(), func(_ context.Context, to io.Writer) {
		starts++
		_, _ = fmt.Fprintln(to, "start", starts)
	})
	for _, want := range []string{"read start 1", "read start 2"} {
		if got := s.next(t); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	s.end(t)
}

func TestSupervisor_TellsOfAFailedStartAndTriesAgain(t *testing.T) {
	log := &synced{}
	ctx, stop := context.WithCancel(t.Context())
	tries := make(chan struct{}, 10)
	supervisor := Supervisor{Command: func(ctx context.Context) *exec.Cmd {
		tries <- struct{}{}
		return exec.CommandContext(ctx, t.TempDir()+"/missing")
	}, Journal: t.TempDir(), Log: slog.New(slog.NewTextHandler(log, nil))}
	code := make(chan int)
	go func() { code <- supervisor.Run(ctx) }()
	<-tries
	<-tries
	stop()
	<-code
	if !strings.Contains(log.String(), "not started") {
		t.Errorf("the log does not say why: %s", log)
	}
}

func TestSupervisor_ChildEndsWithIt(t *testing.T) {
	found, out := newLines(t)
	pod := as("pod", t.TempDir(), out)(t.Context())
	ok(t, pod.Start())
	found.next(t)
	ok(t, pod.Process.Kill())
	_ = pod.Wait()
	// The child has the other end of the pipe too.
	ok(t, out.Close())
	select {
	case _, open := <-found:
		if open {
			t.Error("the child goes on")
		}
	case <-time.After(30 * time.Second):
		t.Error("the child lives on")
	}
}

func TestItself_MarksTheChildAlone(t *testing.T) {
	if IsChild() {
		t.Error("this process is marked")
	}
	command := Itself(t.Context())
	if command.Env[len(command.Env)-1] != childVariable+"=1" || len(command.Args) != len(os.Args) {
		t.Errorf("%v, %v", command.Args, command.Env)
	}
}
