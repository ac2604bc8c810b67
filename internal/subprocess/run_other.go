//go:build !linux

package subprocess

import (
	"bytes"
	"context"
	"io"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"
)

// lingering is how long the pipes of a program that has ended are waited for, where another process holds them.
const lingering = 100 * time.Millisecond

// Run starts the program that Find found, writes input to it and what it says to output and problems, and waits for its end. What
// is left of its group is killed then, and what left the group is not waited for. A program need not read its input. When ctx ends, the
// group is killed at once. The writers must not fail. The error says why the program was not started.
func Run(ctx context.Context, path string, c Command, input []byte, output, problems io.Writer) (Exit, error) {
	command := exec.CommandContext(ctx, path)
	command.Args, command.Dir, command.Env = c.Args, c.Dir, c.Env
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(input), output, problems
	command.SysProcAttr, command.WaitDelay = ownGroup(), lingering
	var killed atomic.Bool
	command.Cancel = func() error {
		killed.Store(true)
		killGroup(command.Process.Pid)
		return nil
	}
	if err := command.Start(); err != nil {
		return Exit{}, startError(path, c, err)
	}
	_ = command.Wait() // the state says it better
	killRest(command.Process.Pid)
	if exit := exitOfState(command.ProcessState); !killed.Load() || exit.Code == 0 {
		return exit, nil
	}
	return Exit{Code: -1, Signal: syscall.SIGKILL}, nil // Windows knows no signals
}
