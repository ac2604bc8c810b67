//go:build unix

package subprocess

import "syscall"

func interruptGroup(leader int) { _ = syscall.Kill(-leader, syscall.SIGINT) }
