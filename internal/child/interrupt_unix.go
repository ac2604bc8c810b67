//go:build unix

package child

import "syscall"

func interruptGroup(leader int) { _ = syscall.Kill(-leader, syscall.SIGINT) }
