//go:build !linux

package handler

import "syscall"

// unsentBytes is not known here.
func unsentBytes(syscall.Conn) int { return 0 }
