//go:build unix

package subprocess

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// killGroup kills the processes of a group, and its leader even where that moved to another one.
func killGroup(leader int) {
	// An error says that nothing of it is left.
	_ = syscall.Kill(-leader, syscall.SIGKILL)
	_ = syscall.Kill(leader, syscall.SIGKILL)
}

// killRest kills what is left of a group whose leader has ended.
func killRest(leader int) { _ = syscall.Kill(-leader, syscall.SIGKILL) }

func signalName(s syscall.Signal) string { return unix.SignalName(s) }
