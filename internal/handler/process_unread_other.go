//go:build !linux

package handler

import (
	"os"
	"sync"
)

// unreadBytes is known on Linux only. Elsewhere what was written counts as read.
func unreadBytes(*os.File) int64 { return 0 }

// readCounted reads once, and calls took with what it read while it holds the lock.
func readCounted(pipe *os.File, buffer []byte, lock sync.Locker, took func([]byte)) error {
	n, err := pipe.Read(buffer)
	lock.Lock()
	defer lock.Unlock()
	took(buffer[:n])
	return err //nolint:wrapcheck // it only says that there is no more
}
