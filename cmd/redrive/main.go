// Command redrive runs Transports without Kubernetes, shows what would change on the broker, and how the Transports of a
// cluster are. Installed as kubectl-redrive it is the kubectl plugin of that name.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"redrive.dev/redrive/internal/cli"
	"redrive.dev/redrive/internal/httpserver"
	"redrive.dev/redrive/internal/subprocess"
)

func main() {
	httpserver.GuardStandardLog()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	os.Exit(subprocess.Main(func() int {
		return cli.Main(context.Background(), cli.Environment{
			In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Signals: signals, Program: os.Args[0],
		}, os.Args[1:])
	}))
}
