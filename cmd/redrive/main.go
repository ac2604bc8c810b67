// Command redrive runs Transports without Kubernetes, and shows what would change on the broker.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"redrive.dev/redrive/internal/cli"
)

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	os.Exit(cli.Main(context.Background(), cli.Environment{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Signals: signals,
	}, os.Args[1:]))
}
