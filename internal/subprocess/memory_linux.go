package subprocess

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// Memory returns how many bytes of a process are resident, what it shares with others included; that of its children is not.
func Memory(pid int) (int64, error) {
	name := fmt.Sprintf("/proc/%d/statm", pid)
	text, err := os.ReadFile(name) //nolint:gosec // a number is no way out of /proc
	if err != nil {
		return 0, err //nolint:wrapcheck // it names the file
	}
	fields := bytes.Fields(text)
	if len(fields) < 2 {
		return 0, fmt.Errorf("%s: %q", name, text)
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return pages * int64(os.Getpagesize()), nil
}
