//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package quarantine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock makes this process the only one that uses a journal, until unlock is called or the process ends, however it ends. It
// does not wait for another. Programs that the process starts do not inherit the lock: Go opens files to be closed by exec.
func lock(dir string) (unlock func(), err error) {
	file, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // the folder is the caller's
	if err != nil {
		return nil, wrap(err)
	}
	descriptor := int(file.Fd())
	if err := syscall.Flock(descriptor, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("journal: %s is in use by another process: end that one, or give this one another folder with --journal", dir)
		}
		return nil, fmt.Errorf("journal: lock %s: %w", file.Name(), err)
	}
	return func() {
		// Closing alone does not do: a program that is being started this moment has the descriptor until its exec.
		_ = syscall.Flock(descriptor, syscall.LOCK_UN)
		_ = file.Close()
	}, nil
}
