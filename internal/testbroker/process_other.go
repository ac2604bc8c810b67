//go:build !linux

package testbroker

import "syscall"

// endWithParent does nothing where the kernel has no such service: a process that is killed leaves its node running.
func endWithParent(*syscall.SysProcAttr) {}

// inMemory is the folder of no system but Linux.
func inMemory() string { return "" }
