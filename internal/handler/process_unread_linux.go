package handler

import (
	"os"

	"golang.org/x/sys/unix"
)

// unreadBytes is how much of what was written to a pipe nobody has read yet. It is known even after the last reader has gone.
func unreadBytes(pipe *os.File) int64 {
	connection, err := pipe.SyscallConn()
	if err != nil {
		return 0
	}
	unread := 0
	err = connection.Control(func(fd uintptr) {
		if n, failed := unix.IoctlGetInt(int(fd), unix.TIOCINQ); failed == nil {
			unread = n
		}
	})
	if err != nil {
		return 0
	}
	return int64(unread)
}
