//go:build !linux

package subprocess

import "errors"

// Memory is known on Linux only.
func Memory(int) (int64, error) {
	return 0, errors.New("the memory of a process is known on Linux only")
}
