package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// stopWithin is how long a program may take to end.
const stopWithin = 30 * time.Second

// crew are the programs of an example.
type crew struct {
	place   *place
	members []*member
	folder  string
}

type member struct {
	name    string
	command *exec.Cmd
	ended   chan struct{}
	// mustSucceed is true where an exit code other than 0 is an error.
	mustSucceed bool
}

// redrive builds the CLI, for `go run` would not pass signals on, and runs it.
func (c *crew) redrive(ctx context.Context, program []string) error {
	var err error
	if c.folder, err = os.MkdirTemp("", "redrive-example"); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	cli := filepath.Join(c.folder, "redrive")
	build := exec.CommandContext(ctx, "go", "build", "-o", cli, "redrive.dev/redrive/cmd/redrive") //nolint:gosec // our own program
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build redrive: %w", err)
	}
	arguments := []string{cli, "run", "-f", "redrive.yaml"}
	if len(program) > 0 {
		arguments = append(append(arguments, "--"), program...)
	}
	return c.start(arguments, true)
}

func (c *crew) start(arguments []string, mustSucceed bool) error {
	command := exec.Command(arguments[0], arguments[1:]...) //nolint:gosec,noctx // it is the user's, and stopped by a signal
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.Env = append(os.Environ(), "AMQP_URL="+c.place.url)
	if err := command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", arguments[0], err)
	}
	m := &member{name: filepath.Base(arguments[0]), command: command, ended: make(chan struct{}), mustSucceed: mustSucceed}
	c.members = append(c.members, m)
	go func() {
		defer close(m.ended)
		_ = command.Wait() // the state says it
	}()
	return nil
}

// trouble is an error where a program has ended.
func (c *crew) trouble() error {
	for _, m := range c.members {
		select {
		case <-m.ended:
			return fmt.Errorf("%s ended: %s", m.name, m.command.ProcessState)
		default:
		}
	}
	return nil
}

// stop ends the programs, the last one first.
func (c *crew) stop() error {
	var errs []error
	for _, m := range slices.Backward(c.members) {
		_ = m.command.Process.Signal(syscall.SIGTERM)
		select {
		case <-m.ended:
		case <-time.After(stopWithin):
			_ = m.command.Process.Kill()
			<-m.ended
		}
		if m.mustSucceed && !m.command.ProcessState.Success() {
			errs = append(errs, fmt.Errorf("%s: %s", m.name, m.command.ProcessState))
		}
	}
	if c.folder != "" {
		errs = append(errs, os.RemoveAll(c.folder))
	}
	return errors.Join(errs...)
}
