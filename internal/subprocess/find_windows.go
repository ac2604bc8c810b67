package subprocess

import (
	"errors"
	"fmt"
	"os/exec"
)

// Find returns the path of a command's program.
func Find(c Command) (path string, err error) {
	if len(c.Args) == 0 || c.Args[0] == "" {
		return "", errors.New("the command names no program")
	}
	path, err = exec.LookPath(c.Args[0])
	if err != nil {
		return "", fmt.Errorf("the command: %w", err)
	}
	return path, nil
}

// startError says which program the system did not start.
func startError(path string, _ Command, cause error) error {
	return fmt.Errorf("%s cannot be started: %w", path, cause)
}
