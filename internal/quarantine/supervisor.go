package quarantine

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"time"

	"redrive.dev/redrive/internal/subprocess"
)

// Supervisor runs the quarantine worker as a child process, and again whenever it ends. It writes into the journal how the child
// ended, which the child itself cannot. All but Input are needed.
type Supervisor struct {
	// Command of the child, made anew for each start. Its standard input is the supervisor's: its end tells the child to stop.
	Command func(context.Context) *exec.Cmd
	// Journal is the folder of the child's Journal.
	Journal string
	// Input writes to the child's standard input, from each start on until ctx ends; nil where there is nothing to write.
	Input func(ctx context.Context, to io.Writer)
	// OnEnd is called when a child has ended and what it wrote was read; nil where that concerns nobody.
	OnEnd func()
	Log   *slog.Logger
}

// Run keeps a child running until ctx ends. Then it tells the child to stop, waits for it without a limit, and returns its exit
// code: 0 after a clean stop or where none was running, 1 where a signal ended it.
//
// Where the child left a message at the handler the next one starts at once: each crash is charged to one message, so this
// comes to an end. Where it did not, something else is wrong, and there is a pause that grows from a second to half a minute.
//
// On Linux the kernel kills the child when this process ends; elsewhere it stops by itself, as it does when it is told to.
func (s *Supervisor) Run(ctx context.Context) int {
	// What the kernel watches is the thread that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var pause subprocess.Backoff
	for {
		began := time.Now()
		end := s.runChild(ctx)
		if ctx.Err() != nil {
			s.stopped(end)
			return end.code
		}
		wait := pause.After(time.Since(began), s.ended(end), rand.Int64N)
		s.Log.Warn("the quarantine worker ended by itself and is started again", "exit", end.exit, "in", wait)
		select {
		case <-ctx.Done():
			return 0
		case <-time.After(wait):
		}
	}
}

// end of a child.
type end struct {
	process int
	// exit says how it ended; code is its exit code, 1 where it has none.
	exit string
	code int
}

// runChild runs one child to its end.
func (s *Supervisor) runChild(ctx context.Context) end {
	command := s.Command(context.WithoutCancel(ctx))
	command.SysProcAttr = subprocess.EndWithParent() // two of them must not share a journal
	input, err := command.StdinPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		return end{exit: fmt.Sprintf("not started: %v", err), code: 1}
	}
	s.Log.Info("the quarantine worker starts", "process", command.Process.Pid)
	alive, ended := context.WithCancel(ctx)
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		if s.Input != nil {
			s.Input(alive, input)
		}
		<-alive.Done()
	}()
	stop := context.AfterFunc(alive, func() { _ = input.Close() })
	_ = command.Wait() // the state says it better
	ended()
	stop()
	_ = input.Close()
	<-fed
	if s.OnEnd != nil {
		s.OnEnd()
	}
	code := command.ProcessState.ExitCode()
	if code < 0 {
		code = 1
	}
	return end{process: command.Process.Pid, exit: command.ProcessState.String(), code: code}
}

// ended notes in the journal how a child ended that nobody told to. It is true where a message was at the handler.
func (s *Supervisor) ended(child end) bool {
	left, err := recordEnd(s.Journal, child.process, child.exit)
	if err != nil {
		s.Log.Warn("the end of the quarantine worker cannot be noted", "error", err)
		return false
	}
	if left == nil {
		return false
	}
	s.Log.Warn("a message was at the handler when the quarantine worker ended", "queue", left.Queue, "message", left.ID, "exit", child.exit)
	return true
}

// stopped is ended for a child that was told to stop. A message that it had to leave has brought nothing down.
func (s *Supervisor) stopped(child end) {
	if child.code != 0 {
		s.ended(child)
		return
	}
	if err := forgetRun(s.Journal); err != nil {
		s.Log.Warn("the quarantine worker stopped; its journal cannot be written", "error", err)
	}
}
