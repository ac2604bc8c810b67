package faults

import "syscall"

// endWithTest lets the kernel end a worker when the test's process is killed.
func endWithTest(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGKILL }
