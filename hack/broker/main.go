// Command broker runs another command beside a RabbitMQ of its own:
//
//	go run ./hack/broker -- go test ./...
//
// The command finds the broker in AMQP_URL and MANAGEMENT_URL; where both are set already, that broker is used and none is
// started. Without a command it prints the two variables for a shell and keeps the broker until it is interrupted.
//
// With -nodes 3 before it all it is a cluster of so many nodes on loopback. The two variables name the first; AMQP_URL_NODE_2,
// MANAGEMENT_URL_NODE_2 and so on name each. What it prints besides tells the process group of each node, to kill or freeze it by:
// `kill -KILL -- -GROUP`, `kill -STOP -- -GROUP`, `kill -CONT -- -GROUP`.
package main

import (
	"context"
	"errors"
	"flag"
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
	usage  = 2
	// noCommand and the offset of signals are what a shell answers.
	noCommand    = 127
	signalOffset = 128
)

func main() {
	os.Exit(run(os.Args[1:]))
}

// run returns the exit code.
func run(arguments []string) int {
	flags := flag.NewFlagSet("broker", flag.ContinueOnError)
	size := flags.Int("nodes", 1, "how many nodes")
	if err := flags.Parse(arguments); err != nil || *size < 1 {
		return usage
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)

	nodes, stop, err := provide(signals, *size)
	if err != nil {
		complain(err)
		return failed
	}
	code := use(nodes, flags.Args(), signals)
	if err := stop(); err != nil {
		complain(fmt.Errorf("stop RabbitMQ: %w", err))
		return max(code, failed)
	}
	return code
}

// provide returns the broker of the environment where one node is asked for, else a new cluster, and what ends it. A signal ends the
// wait for it.
func provide(signals <-chan os.Signal, size int) ([]*testbroker.Broker, func() error, error) {
	if broker := testbroker.FromEnvironment(); broker != nil && size == 1 {
		return []*testbroker.Broker{broker}, func() error { return nil }, nil
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
	cluster, err := testbroker.StartCluster(ctx, os.Stderr, size)
	close(started)
	stop := func() error {
		ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
		defer cancel()
		return cluster.Stop(ctx)
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
	return cluster.Nodes, stop, nil
}

// use runs the command beside the broker, or prints where the broker is and waits for a signal.
func use(nodes []*testbroker.Broker, arguments []string, signals <-chan os.Signal) int {
	variables := []string{
		testbroker.AMQPVariable + "=" + nodes[0].AMQPURL,
		testbroker.ManagementVariable + "=" + nodes[0].ManagementURL,
	}
	for i, node := range nodes {
		if len(nodes) > 1 {
			variables = append(variables,
				fmt.Sprintf("%s_NODE_%d=%s", testbroker.AMQPVariable, i+1, node.AMQPURL),
				fmt.Sprintf("%s_NODE_%d=%s", testbroker.ManagementVariable, i+1, node.ManagementURL))
			_, _ = fmt.Fprintf(os.Stderr, "node %d is %s, process group %d\n", i+1, node.Name, node.Group())
		}
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
