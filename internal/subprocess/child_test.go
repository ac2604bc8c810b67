//go:build unix

package subprocess_test

import (
	"bufio"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"redrive.dev/redrive/internal/subprocess"
)

// shell is a command of the shell.
func shell(script string, args ...string) subprocess.Command {
	return subprocess.Command{Args: append([]string{"sh", "-c", script, "sh"}, args...)}
}

// begun is a program at work, with our ends of its pipes.
type begun struct {
	*subprocess.Process

	input  *os.File
	output *bufio.Reader
}

// begin starts a command, which is killed with the test at the latest.
func begin(t *testing.T, c subprocess.Command) begun {
	t.Helper()
	inRead, inWrite, err := os.Pipe()
	ok(t, err)
	outRead, outWrite, err := os.Pipe()
	ok(t, err)
	process, err := subprocess.Start(c, inRead, outWrite, os.Stderr)
	ok(t, inRead.Close())
	ok(t, outWrite.Close())
	ok(t, err)
	t.Cleanup(func() {
		process.Kill()
		<-process.Done()
		_ = inWrite.Close()
		_ = outRead.Close()
	})
	return begun{process, inWrite, bufio.NewReader(outRead)}
}

// says fails the test unless the program says something next.
func (b begun) says(t *testing.T, want string) {
	t.Helper()
	if got := b.line(t); got != want {
		t.Fatalf("it says %q, want %q", got, want)
	}
}

func (b begun) line(t *testing.T) string {
	t.Helper()
	text, err := b.output.ReadString('\n')
	ok(t, err)
	return strings.TrimSpace(text)
}

// isAlive reports whether there is a process that has not ended.
func isAlive(t *testing.T, pid string) bool {
	t.Helper()
	number, err := strconv.Atoi(pid)
	ok(t, err)
	if syscall.Kill(number, 0) != nil {
		return false
	}
	stat, _ := os.ReadFile(filepath.Join("/proc", pid, "stat")) // which not every system has
	return !strings.Contains(string(stat), ") Z ")
}

func TestProcess_ReadsWritesAndEnds(t *testing.T) {
	t.Parallel()
	p := begin(t, shell("read word; echo got $word; exit 3"))
	if _, err := p.input.WriteString("it\n"); err != nil {
		t.Fatal(err)
	}
	p.says(t, "got it")
	<-p.Done()
	if exit := p.Exit(); exit != (subprocess.Exit{Code: 3}) || p.Wait() != exit {
		t.Errorf("got %+v", exit)
	}
	p.Kill() // of nothing, and nobody else
	p.Interrupt()
}

func TestProcess_WaitHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	for range 20 {
		p := begin(t, shell("read word"))
		waiting, ended := make(chan struct{}), make(chan subprocess.Exit, 1)
		go func() {
			close(waiting)
			ended <- p.Wait()
		}()
		<-waiting
		runtime.Gosched()
		done := make(chan (<-chan struct{}), 1)
		go func() { done <- p.Done() }()
		select {
		case <-done: // while the program runs
		case <-time.After(patience):
			t.Fatal("Done waits")
		}
		ok(t, p.input.Close())
		if exit := <-ended; exit.Code != 1 {
			t.Errorf("got %+v", exit)
		}
	}
}

func TestProcess_KillEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	p := begin(t, shell(`trap "" TERM; sh -c 'trap "" TERM; echo $$; sleep 1000' & wait`))
	grandchild := p.line(t)
	p.Kill()
	if exit := p.Wait(); exit.Signal != syscall.SIGKILL || exit.String() != "killed by SIGKILL" {
		t.Errorf("got %+v", exit)
	}
	eventually(t, "the grandchild ends", func() bool { return !isAlive(t, grandchild) })
}

func TestProcess_InterruptReachesTheWholeGroup(t *testing.T) {
	t.Parallel()
	p := begin(t, shell(`trap "exit 4" INT; sh -c 'trap "echo bye; exit" INT; echo ready; while :; do sleep 0.01; done'`))
	p.says(t, "ready")
	p.Interrupt()
	p.says(t, "bye")
	if exit := p.Wait(); exit.Code != 4 {
		t.Errorf("got %+v", exit)
	}
}

func TestProcess_EndKillsWhatAProgramLeavesBehind(t *testing.T) {
	t.Parallel()
	p := begin(t, shell("sleep 1000 & echo $!"))
	left := p.line(t)
	if exit := p.Wait(); exit.Code != 0 {
		t.Errorf("got %+v", exit)
	}
	eventually(t, "what was left ends", func() bool { return !isAlive(t, left) })
}

func TestExit_NamesTheSignal(t *testing.T) {
	t.Parallel()
	c := shell("ulimit -c unlimited; kill -ABRT $$")
	c.Dir = t.TempDir() // of the core
	exit := begin(t, c).Wait()
	if exit.Signal != syscall.SIGABRT || exit.Code != -1 || exit.SignalName() != "SIGABRT" {
		t.Errorf("got %+v", exit)
	}
	for exit, want := range map[subprocess.Exit]string{
		{}:        "exit status 0",
		{Code: 3}: "exit status 3",
		{Code: -1, Signal: syscall.SIGSEGV, Core: true}: "killed by SIGSEGV (core dumped)",
		{Code: -1, Signal: syscall.SIGTERM}:             "killed by SIGTERM",
		{Code: -1, Signal: syscall.Signal(99)}:          "killed by signal 99",
	} {
		if exit.String() != want {
			t.Errorf("%+v is %q, want %q", exit, exit, want)
		}
	}
}

func TestStart_GivesTheDirectoryAndEnvironmentOfTheCommand(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	ok(t, err)
	script(t, dir, "say", "#!/bin/sh\npwd; echo $A; echo $0")
	p := begin(t, subprocess.Command{Args: []string{"./say"}, Dir: dir, Env: []string{"A=b", "PATH=/bin:/usr/bin"}})
	p.says(t, dir)
	p.says(t, "b")
	p.says(t, "./say")
}
