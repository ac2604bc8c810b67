package subprocess

import (
	"fmt"
	"syscall"
)

// Exit is how a program ended.
type Exit struct {
	// Code is the exit code, -1 where a signal ended the program.
	Code int
	// Signal that ended the program, 0 where it ended by itself.
	Signal syscall.Signal
	// Core says that the system has written the program's memory to a file.
	Core bool
}

func exitOf(status syscall.WaitStatus) Exit {
	if status.Signaled() {
		return Exit{Code: -1, Signal: status.Signal(), Core: status.CoreDump()}
	}
	return Exit{Code: status.ExitStatus()}
}

// String says it for people, such as "exit status 3" and "killed by SIGSEGV (core dumped)".
func (e Exit) String() string {
	switch {
	case e.Signal == 0:
		return fmt.Sprintf("exit status %d", e.Code)
	case e.Core:
		return fmt.Sprintf("killed by %s (core dumped)", e.SignalName())
	}
	return "killed by " + e.SignalName()
}

// SignalName of the signal that ended the program, such as SIGSEGV; empty where there was none.
func (e Exit) SignalName() string {
	if e.Signal == 0 {
		return ""
	}
	if name := signalName(e.Signal); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(e.Signal))
}
