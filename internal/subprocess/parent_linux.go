package subprocess

import "syscall"

// EndWithParent are the attributes of a program that the kernel kills when the thread that starts it ends, as it does when its
// process is killed.
func EndWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
