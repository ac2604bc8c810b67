//go:build !linux

package child

import "syscall"

// EndWithParent are no attributes: only Linux knows such.
func EndWithParent() *syscall.SysProcAttr { return nil }
