package handler

import (
	"errors"
	"io"
	"os"
	"sync"

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

// readCounted waits until there is something to read, reads it, and calls took with it. It holds the lock from before it reads: for who has
// the lock, what was written is either unread or taken.
func readCounted(pipe *os.File, buffer []byte, lock sync.Locker, took func([]byte)) error {
	connection, err := pipe.SyscallConn()
	if err != nil {
		return err //nolint:wrapcheck // it only says that there is no more
	}
	var n int
	var failed error
	err = connection.Read(func(fd uintptr) (done bool) {
		lock.Lock()
		defer lock.Unlock()
		n, failed = unix.Read(int(fd), buffer)
		if n > 0 {
			took(buffer[:n])
		}
		return !errors.Is(failed, unix.EAGAIN)
	})
	switch {
	case err != nil:
		return err //nolint:wrapcheck // as above
	case errors.Is(failed, unix.EINTR):
		return nil
	case failed == nil && n == 0:
		return io.EOF
	}
	return failed //nolint:wrapcheck // as above
}
