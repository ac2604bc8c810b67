//go:build !linux

package faults

import "syscall"

// endWithTest does nothing where the kernel has no such service.
func endWithTest(*syscall.SysProcAttr) {}
