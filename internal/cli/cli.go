// Package cli holds the commands of redrive. They do what the operator and its workers do, from the same files, without
// Kubernetes.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/version"
)

// Exit codes.
const (
	exitOK      = 0
	exitError   = 1
	exitChanges = 2
)

// errChanges is a plan that has changes. It is no failure, and is not printed.
var errChanges = errors.New("there are changes")

// Environment is what the commands take from the process.
type Environment struct {
	In       io.Reader
	Out, Err io.Writer
	Getenv   func(string) string
	// Signals asks to stop: the first to drain, the second at once.
	Signals <-chan os.Signal
}

// Main runs a command line and returns its exit code.
func Main(ctx context.Context, env Environment, args []string) int {
	root := newRoot(env) //nolint:contextcheck // cobra hands the context to each command
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errChanges):
		return exitChanges
	default:
		_, _ = fmt.Fprintf(env.Err, "redrive: %v\n", err)
		return exitError
	}
}

func newRoot(env Environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "redrive",
		Short: "Retry topology on RabbitMQ, from two kinds of YAML",
		Long: `Redrive turns Transports and RetryPolicies into RabbitMQ exchanges, queues and workers. On Kubernetes an operator does
so; this command does it from the same files on its own, and shows beforehand what would change.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	root.AddCommand(newRun(env), newPlan(env), newVersion(env))
	return root
}

func newVersion(env Environment) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return write(env.Out, []byte("redrive "+version.Long()+"\n"))
		},
	}
}

// brokerHelp says how a command finds the broker.
const brokerHelp = `The broker of a Transport is that of the Secret in spec.broker.secretRef, if the files hold it. Otherwise it is that of
` + local.EnvAMQP + ` (such as amqp://guest:guest@127.0.0.1:5672) and ` + local.EnvManagement + ` (left out: port 15672 of the same host). The vhost in
spec.broker.vhost holds before those.`

func fromFlag(command *cobra.Command, from *string) {
	command.Flags().StringVarP(from, "filename", "f", "", "`path` of a directory, a file, or - for a stream on stdin")
	_ = command.MarkFlagRequired("filename") // the flag was made a line before
}
