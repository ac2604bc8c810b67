//go:build !linux

package testbroker

import "syscall"

// endWithParent does nothing where the kernel has no such service: a process that is killed leaves its node running.
func endWithParent(*syscall.SysProcAttr) {}

// prefer does nothing: tests are to run on an idle machine.
func prefer(int) {}

// inMemory is the folder of no system but Linux.
func inMemory() string { return "" }
