package subprocess_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"redrive.dev/redrive/internal/subprocess"
)

var (
	parentRole = role("parent", func() int {
		process, err := subprocess.Start(shell("echo $$; exec sleep 1000"), os.Stdin, os.Stdout, os.Stderr)
		if err != nil {
			return 1
		}
		return process.Wait().Code
	})
	firstRole = role("first", func() int { return subprocess.Main(first) })
)

func TestProcess_IsKilledWithThisProcess(t *testing.T) {
	t.Parallel()
	parent := as(t.Context(), t, parentRole)
	output, err := parent.StdoutPipe()
	ok(t, err)
	ok(t, parent.Start())
	pid := line(t, output)
	if !isAlive(t, pid) {
		t.Fatal("there is no child")
	}
	ok(t, parent.Process.Kill())
	_ = parent.Wait()
	eventually(t, "the child ends", func() bool { return !isAlive(t, pid) })
}

// The kernel kills a program when the thread ends that has started it.
func TestStart_ProgramsDoNotEndWithTheirThreads(t *testing.T) {
	var processes []*subprocess.Process
	var threads []string
	var mu sync.Mutex
	var starts, met sync.WaitGroup
	met.Add(50)
	for range 50 {
		starts.Go(func() {
			runtime.LockOSThread() // so that each is another thread
			defer runtime.UnlockOSThread()
			thread := strconv.Itoa(unix.Gettid())
			process, err := subprocess.Start(shell("exec sleep 1000"), os.Stdin, os.Stdout, os.Stderr)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			processes, threads = append(processes, process), append(threads, thread)
			mu.Unlock()
			met.Done()
			met.Wait()
		})
	}
	starts.Wait()
	slices.Sort(threads)
	if n := len(slices.Compact(threads)); n != 50 {
		t.Errorf("%d threads", n)
	}
	debug.FreeOSMemory() // all that Go gives back by itself
	for _, p := range processes {
		if !isAlive(t, strconv.Itoa(p.Pid())) {
			t.Error("a child has ended with its thread")
		}
		p.Kill()
		p.Wait()
	}
}

func TestProcess_WaitingTakesNoThread(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/task")
		ok(t, err)
		return len(entries)
	}
	before := count()
	var processes []*subprocess.Process
	for range 100 {
		process, err := subprocess.Start(shell("exec sleep 1000"), os.Stdin, os.Stdout, os.Stderr)
		ok(t, err)
		process.Done()
		processes = append(processes, process)
	}
	for _, p := range processes { // each of them has been waited for by now
		p.Kill()
		<-p.Done()
	}
	if after := count(); after > before+20 {
		t.Errorf("%d threads, then %d", before, after)
	}
}

func TestMemory_IsWhatAProgramHasResident(t *testing.T) {
	t.Parallel()
	p := begin(t, shell(`x=$(head -c 40000000 /dev/zero | tr '\0' x); echo ready; read x`))
	before, err := subprocess.Memory(os.Getpid())
	ok(t, err)
	p.says(t, "ready")
	memory, err := subprocess.Memory(p.Pid())
	ok(t, err)
	if memory < 40_000_000 || memory > 400_000_000 || before < 1_000_000 {
		t.Errorf("%d bytes, ours %d", memory, before)
	}
	ok(t, p.input.Close())
	p.Wait()
	if memory, err := subprocess.Memory(p.Pid()); err == nil {
		t.Errorf("of a process that has ended: %d", memory)
	}
}

// TestTakeOrphans_TakesOrphansAndNothingElse runs a process as the first of a namespace.
func TestTakeOrphans_TakesOrphansAndNothingElse(t *testing.T) {
	t.Parallel()
	command := as(t.Context(), t, firstRole)
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		command.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		command.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
	}
	output, err := command.Output()
	if string(output) != "done\n" || err != nil {
		t.Errorf("%v: %s", err, output)
	}
}

// first is what the first process does: many programs end with an exit code that must arrive, and leave orphans behind.
func first() int {
	if err := ownProc(); err != nil {
		return complain(err)
	}
	const orphans = `setsid sh -c 'sleep 0.01; exit 3' & setsid sh -c 'kill -9 $$' & (sh -c 'exit 5' &)`
	var programs sync.WaitGroup
	failures := make(chan error, 1000)
	for i := range 4 {
		programs.Go(func() {
			for n := range 15 {
				code := 1 + (i+n)%100
				// One that Go's own library waits for, late.
				script := fmt.Sprintf("%s; exit %d", orphans, code)
				command := exec.CommandContext(context.Background(), "sh", "-c", script)
				if err := command.Start(); err != nil {
					failures <- err
					continue
				}
				exit, err := subprocess.Run(context.Background(), "/bin/sh", subprocess.Command{Args: []string{"sh", "-c", script}}, nil, io.Discard, io.Discard)
				if err != nil || exit.Code != code {
					failures <- fmt.Errorf("%v, %w", exit, err)
				}
				_ = command.Wait()
				if command.ProcessState == nil || command.ProcessState.ExitCode() != code {
					failures <- fmt.Errorf("os/exec: %v", command.ProcessState)
				}
			}
		})
	}
	programs.Wait()
	close(failures)
	for err := range failures {
		return complain(err)
	}
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		zombies := zombies()
		if len(zombies) == 0 {
			_, _ = os.Stdout.WriteString("done\n")
			return 0
		}
		if time.Now().After(deadline) {
			return complain(fmt.Errorf("%d orphans are left: %v", len(zombies), zombies))
		}
	}
}

// ownProc shows this namespace's processes in /proc.
func ownProc() error {
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	return unix.Mount("proc", "/proc", "proc", 0, "")
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "the first process:", err)
	return 1
}

// zombies are the children that have ended and that nobody has taken away.
func zombies() []string {
	entries, _ := os.ReadDir("/proc")
	var found []string
	for _, entry := range entries {
		stat, _ := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if strings.Contains(string(stat), ") Z ") {
			found = append(found, string(stat))
		}
	}
	return found
}
