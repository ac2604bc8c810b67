package subprocess

import (
	"os"
	"syscall"
)

// killGroup kills the leader. What it started lives on: Windows has no groups in this sense.
func killGroup(leader int) {
	if process, err := os.FindProcess(leader); err == nil {
		_ = process.Kill() // an error says that it has ended
		_ = process.Release()
	}
}

// killRest does nothing: nobody knows what belonged to a leader that has ended.
func killRest(int) {}

func signalName(syscall.Signal) string { return "" }

func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}
