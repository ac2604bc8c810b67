// Command broker runs another command beside a RabbitMQ of its own:
//
//	go run ./hack/broker -- go test ./...
//
// The command finds the broker in AMQP_URL and MANAGEMENT_URL; where both are set already, that broker is used and none is
// started. Without a command it prints the two variables for a shell and keeps the broker until it is interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"redrive.dev/redrive/internal/testbroker"
)

const (
	stopWithin = time.Minute

	failed = 1
	// noCommand and the offset of signals are what a shell answers.
	noCommand    = 127
	signalOffset = 128
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run returns the exit code.
func run(arguments []string) int {
	if len(arguments) > 0 && arguments[0] == "--" {
		arguments = arguments[1:]
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)

	broker, stop, err := provide(signals)
	if err != nil {
		complain(err)
		return failed
	}
	code := use(broker, arguments, signals)
	if err := stop(); err != nil {
		complain(fmt.Errorf("stop RabbitMQ: %w", err))
		return max(code, failed)
	}
	return code
}

// provide returns the broker of the environment, else a new one, and what ends it. A signal ends the wait for it.
func provide(signals <-chan os.Signal) (*testbroker.Broker, func() error, error) {
	if broker := testbroker.FromEnvironment(); broker != nil {
		return broker, func() error { return nil }, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	started := make(chan struct{})
	interrupted := make(chan bool, 1)
	go func() {
		select {
		case <-signals:
			cancel()
			interrupted <- true
		case <-started:
			interrupted <- false
		}
	}()
	broker, err := testbroker.Start(ctx, os.Stderr)
	close(started)
	stop := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
		defer cancel()
		return broker.Stop(ctx)
	}
	if <-interrupted {
		if err == nil {
			err = stop()
		}
		return nil, nil, errors.Join(errors.New("interrupted while RabbitMQ was starting"), err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("start RabbitMQ: %w", err)
	}
	return broker, stop, nil
}

// use runs the command beside the broker, or prints where the broker is and waits for a signal.
func use(broker *testbroker.Broker, arguments []string, signals <-chan os.Signal) int {
	variables := []string{
		testbroker.AMQPVariable + "=" + broker.AMQPURL,
		testbroker.ManagementVariable + "=" + broker.ManagementURL,
	}
	if len(arguments) == 0 {
		for _, variable := range variables {
			name, value, _ := strings.Cut(variable, "=")
			_, _ = fmt.Printf("export %s='%s'\n", name, value)
		}
		_, _ = fmt.Fprintln(os.Stderr, "RabbitMQ is up; Ctrl-C stops it")
		<-signals
		return 0
	}
	command := exec.Command(arguments[0], arguments[1:]...) //nolint:gosec,noctx // what the user asked for; ended by signals
	command.Env = append(os.Environ(), variables...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	// In a group of its own it gets each signal once: a terminal would send it another one beside ours.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		complain(err)
		return noCommand
	}
	return wait(command, signals)
}

// wait hands signals on to the command and all that it started, until it ends.
func wait(command *exec.Cmd, signals <-chan os.Signal) int {
	done := make(chan error, 1)
	go func() { done <- command.Wait() }()
	for {
		select {
		case s := <-signals:
			if number, ok := s.(syscall.Signal); ok {
				_ = syscall.Kill(-command.Process.Pid, number)
			}
		case err := <-done:
			return exitCode(err)
		}
	}
}

func exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		complain(err)
		return failed
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return signalOffset + int(status.Signal())
	}
	return exit.ExitCode()
}

func complain(err error) {
	_, _ = fmt.Fprintln(os.Stderr, "broker:", err)
}
