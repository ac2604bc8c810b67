//go:build !linux

package subprocess

import "syscall"

// EndWithParent are no attributes: only Linux knows such.
func EndWithParent() *syscall.SysProcAttr { return nil }
