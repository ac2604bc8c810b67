package run

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const (
	// installedName is the name of the file that is installed.
	installedName = "worker"
	// draftPattern names it while it is being written.
	draftPattern = "." + installedName + "-*"

	installedMode = 0o755
	folderMode    = 0o755
)

// install copies the running program into a folder. Who finds it there finds it whole: it is renamed when it is complete.
func install(dir string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("--install=%s: %w", dir, err)
		}
	}()
	path, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the running program: %w", err)
	}
	program, err := os.Open(path) //nolint:gosec // it is this program
	if err != nil {
		return fmt.Errorf("read the running program: %w", err)
	}
	defer func() { _ = program.Close() }()
	if err := os.MkdirAll(dir, folderMode); err != nil { // the team's container has another user, who has to enter it
		return err //nolint:wrapcheck // it names the folder
	}
	draft, err := os.CreateTemp(dir, draftPattern)
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	if err := writeProgram(draft, program); err != nil {
		_ = os.Remove(draft.Name())
		return err
	}
	return os.Rename(draft.Name(), filepath.Join(dir, installedName)) //nolint:wrapcheck // it names both files
}

// writeProgram copies a program into a file that everybody may run, and closes it.
func writeProgram(to *os.File, from io.Reader) error {
	_, err := io.Copy(to, from)
	if err == nil {
		err = to.Chmod(installedMode)
	}
	if closing := to.Close(); err == nil {
		err = closing
	}
	return err
}
