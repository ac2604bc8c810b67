//go:build unix

package handler

import (
	"errors"
	"syscall"
)

// isAlive reports whether an idle connection can be used: one that was closed, or on which there is something to read, cannot.
func (c *wireConn) isAlive() bool {
	if c.raw == nil {
		return true
	}
	c.alive = false
	return c.raw.Read(c.peek) == nil && c.alive
}

func (c *wireConn) peek(fd uintptr) bool {
	var b [1]byte
	_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	c.alive = errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
	return true // do not wait
}
