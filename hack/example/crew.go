package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// stopWithin is how long a program may take to end.
const stopWithin = 30 * time.Second

// crew are the programs of an example.
type crew struct {
	place *place
	// folder for what is made, and manifest the Transport.
	folder, manifest string
	// environment is what the programs get in addition.
	environment []string
	members     []*member
}

type member struct {
	name    string
	command *exec.Cmd
	ended   chan struct{}
	// mustSucceed is true where an exit code other than 0 is an error.
	mustSucceed bool
}

func newCrew(place *place) (*crew, error) {
	folder, err := os.MkdirTemp("", "redrive-example")
	if err != nil {
		return nil, fmt.Errorf("make a folder: %w", err)
	}
	return &crew{place: place, folder: folder, manifest: "redrive.yaml", environment: []string{"AMQP_URL=" + place.url}}, nil
}

// move puts a free port in the place of the one in the manifest, which somebody may have. The programs find it in PORT.
func (c *crew) move(port string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not block
	if err != nil {
		return fmt.Errorf("find a free port: %w", err)
	}
	_, free, err := net.SplitHostPort(listener.Addr().String())
	if err := errors.Join(err, listener.Close()); err != nil {
		return fmt.Errorf("find a free port: %w", err)
	}
	before, err := os.ReadFile(c.manifest)
	if err != nil {
		return err //nolint:wrapcheck // it names the file
	}
	after := strings.ReplaceAll(string(before), ":"+port+"/", ":"+free+"/")
	if after == string(before) {
		return fmt.Errorf("%s: no URL has the port %s", c.manifest, port)
	}
	c.manifest = filepath.Join(c.folder, c.manifest)
	c.environment = append(c.environment, "PORT="+free)
	return os.WriteFile(c.manifest, []byte(after), 0o600) //nolint:gosec,wrapcheck // our own folder; it names the file
}

// redrive runs the CLI of the variable REDRIVE, or else builds it, for `go run` would not pass signals on.
func (c *crew) redrive(ctx context.Context, program []string) error {
	cli := os.Getenv("REDRIVE")
	if cli == "" {
		cli = filepath.Join(c.folder, "redrive")
		build := exec.CommandContext(ctx, "go", "build", "-o", cli, "redrive.dev/redrive/cmd/redrive") //nolint:gosec // our own program
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build redrive: %w", err)
		}
	}
	arguments := []string{cli, "run", "-f", c.manifest}
	if len(program) > 0 {
		arguments = append(append(arguments, "--"), program...)
	}
	return c.start(arguments, true)
}

func (c *crew) start(arguments []string, mustSucceed bool) error {
	command := exec.Command(arguments[0], arguments[1:]...) //nolint:gosec,noctx // it is the example's, and stopped by a signal
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	command.Env = append(os.Environ(), c.environment...)
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
	c.members = nil
	return errors.Join(errs...)
}
