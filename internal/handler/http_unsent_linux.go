package handler

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// unsentBytes is how much of what was written to a connection has not arrived at its other end, as far as is known here.
func unsentBytes(conn syscall.Conn) (unsent int) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	err = raw.Control(func(fd uintptr) {
		if n, failed := unix.IoctlGetInt(int(fd), unix.TIOCOUTQ); failed == nil {
			unsent = n
		}
	})
	if err != nil {
		return 0
	}
	return unsent
}
