//go:build !linux

package subprocess

import (
	"os"
	"syscall"
)

// system is the process as Go's library knows it.
type system struct {
	process *os.Process
	state   **os.ProcessState
}

func startSystem(path string, c Command, files [3]*os.File) (pid int, _ system, err error) {
	process, err := os.StartProcess(path, c.Args, &os.ProcAttr{Dir: c.Dir, Env: c.Env, Files: files[:], Sys: ownGroup()})
	if err != nil {
		return 0, system{}, err //nolint:wrapcheck // the caller explains it
	}
	return process.Pid, system{process, new(*os.ProcessState)}, nil
}

// await waits until the process has ended. These systems forget it at once.
func (s system) await(int) {
	*s.state, _ = s.process.Wait() // a state that is missing says it
}

func (s system) reap(int) Exit { return exitOfState(*s.state) }

func exitOfState(state *os.ProcessState) Exit {
	if state == nil {
		return Exit{Code: -1}
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok {
		return exitOf(status)
	}
	return Exit{Code: state.ExitCode()}
}
