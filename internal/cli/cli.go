// Package cli holds the commands of redrive. Most do what the operator and its workers do, from the same files, without
// Kubernetes; status looks at what the operator of a cluster does.
package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"redrive.dev/redrive/internal/local"
	"redrive.dev/redrive/internal/version"
)

// Exit codes.
const (
	exitOK      = 0
	exitError   = 1
	exitChanges = 2

	// Those of status.
	exitNotReady    = 1
	exitStatusError = 2

	// Those of replays.
	exitUnfinished = 1

	// Those of policy.
	exitCasesDiffer = 1
	exitFileError   = 2
)

// pluginName is the name under which kubectl finds the command as its plugin "redrive".
const pluginName = "kubectl-redrive"

// errChanges is a plan that has changes. It is no failure, and is not printed.
var errChanges = errors.New("there are changes")

// Environment is what the commands take from the process.
type Environment struct {
	In       io.Reader
	Out, Err io.Writer
	Getenv   func(string) string
	// Signals asks to stop: the first to drain, the second at once.
	Signals <-chan os.Signal
	// Program is the name by which the process was started.
	Program string
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
	case errors.Is(err, errNotReady):
		return exitNotReady
	case errors.Is(err, errUnfinished):
		return exitUnfinished
	case errors.Is(err, errCasesDiffer):
		return exitCasesDiffer
	}
	_ = write(env.Err, []byte(errorText(err)))
	if _, ok := errors.AsType[*statusError](err); ok {
		return exitStatusError
	}
	if _, ok := errors.AsType[*fileError](err); ok {
		return exitFileError
	}
	return exitError
}

func newRoot(env Environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "redrive",
		Short: "Retry topology on RabbitMQ, from two kinds of YAML",
		Long: `Redrive turns Transports and RetryPolicies into RabbitMQ exchanges, queues and workers. On Kubernetes an operator does
so; this command does it from the same files on its own, shows beforehand what would change, and shows how the Transports of a
cluster are.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	if filepath.Base(env.Program) == pluginName {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl redrive"}
	}
	root.SetIn(env.In)
	root.SetOut(env.Out)
	root.SetErr(env.Err)
	root.AddCommand(newRun(env), newQuarantine(env), newPlan(env), newPolicy(env), newStatus(env), newFailed(env), newReplay(env), newVersion(env))
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

func errorText(err error) string { return "redrive: " + plainText(err.Error()) + "\n" }
