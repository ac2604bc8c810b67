package quarantine

import (
	"context"
	"io"
	"os"
	"os/exec"
)

// childVariable marks the process that a Supervisor started by Itself.
const childVariable = "REDRIVE_QUARANTINE_CHILD"

// IsChild is true in a process that a Supervisor started by Itself, until Attach is called.
func IsChild() bool { return os.Getenv(childVariable) != "" }

// Itself is a Supervisor's Command for a program that is its own child: the same program with the same arguments, in which
// IsChild is true. What it prints goes where the supervisor's goes.
func Itself(ctx context.Context) *exec.Cmd {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	command := exec.CommandContext(ctx, program, os.Args[1:]...) //nolint:gosec // it is this program
	command.Env = append(os.Environ(), childVariable+"=1")
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	return command
}

// Attach is called by the child. The context that it returns ends when the supervisor tells it to stop or is gone. Standard
// input is used up for that. Processes that the child starts are not marked as its kind.
func Attach(ctx context.Context) context.Context {
	_ = os.Unsetenv(childVariable) // cannot fail for a name without = and NUL
	ctx, stop := context.WithCancel(ctx)
	go func() {
		defer stop()
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	return ctx
}
